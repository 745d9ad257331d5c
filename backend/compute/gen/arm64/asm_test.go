package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWords: each instruction that is written as a number is what the GNU assembler
// makes of the words beside it.
func TestWords(t *testing.T) {
	as, err := exec.LookPath("aarch64-linux-gnu-as")
	if err != nil {
		t.Skip("the assembler of binutils for aarch64 is not here")
	}
	asm, _ := generate()
	want := map[string]string{} // code of an instruction
	for _, m := range regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`).FindAllStringSubmatch(asm, -1) {
		want[m[2]] = m[1]
	}
	var source strings.Builder
	var order []string
	source.WriteString(".arch armv8.2-a+dotprod\n")
	for text := range want {
		order = append(order, text)
		source.WriteString(text + "\n")
	}
	object := filepath.Join(t.TempDir(), "words.o")
	listing := exec.Command(as, "-aln", "-o", object, "-")
	listing.Stdin = strings.NewReader(source.String())
	out, err := listing.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%.2000s", err, out)
	}
	// A line of the listing: number, address, bytes as they lie in memory, source.
	lines := regexp.MustCompile(`(?m)^ *(\d+) [0-9a-f]+ ([0-9A-F]{2})([0-9A-F]{2})([0-9A-F]{2})([0-9A-F]{2})`).FindAllStringSubmatch(string(out), -1)
	if len(lines) != len(order) || len(order) < 300 {
		t.Fatalf("%d instructions, the listing has %d", len(order), len(lines))
	}
	for i, m := range lines {
		if m[1] != fmt.Sprint(i+2) {
			t.Fatalf("line %s of the listing follows %d", m[1], i+1)
		}
		if got := strings.ToLower(m[5] + m[4] + m[3] + m[2]); got != want[order[i]] {
			t.Errorf("%s is %s, written as %s", order[i], got, want[order[i]])
		}
	}
	t.Logf("%d different instructions", len(order))
}
