package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// recorded holds each instruction that is written as a number, and what the GNU assembler
// makes of it. WORDS=record go test -run TestAssembler writes it anew.
const recorded = "testdata/words.txt"

// words returns the code of each instruction that is written as a number.
func words() map[string]string {
	asm, _ := generate()
	list := map[string]string{}
	for _, m := range regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`).FindAllStringSubmatch(asm, -1) {
		list[m[2]] = m[1]
	}
	return list
}

// TestWords: each instruction that is written as a number is what the GNU assembler
// made of the words beside it.
func TestWords(t *testing.T) {
	data, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(data)) {
		code, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[text] = code
	}
	list := words()
	for text, code := range list {
		if want[text] != code {
			t.Errorf("%s is %q, written as %s; if it is new: WORDS=record", text, want[text], code)
		}
	}
	if len(list) < 300 || len(list) != len(want) {
		t.Errorf("%d different instructions, %d recorded", len(list), len(want))
	}
}

// TestAssembler: what is recorded is what the GNU assembler makes, where it is.
func TestAssembler(t *testing.T) {
	as, err := exec.LookPath("aarch64-linux-gnu-as")
	if err != nil {
		t.Skip("the assembler of binutils for aarch64 is not here: TestWords compares with its recorded answers")
	}
	order := slices.Sorted(maps.Keys(words()))
	object := filepath.Join(t.TempDir(), "words.o")
	listing := exec.Command(as, "-aln", "-o", object, "-")
	listing.Stdin = strings.NewReader(".arch armv8.2-a+dotprod\n" + strings.Join(order, "\n") + "\n")
	out, err := listing.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%.2000s", err, out)
	}
	// A line of the listing: number, address, bytes as they lie in memory, source.
	lines := regexp.MustCompile(`(?m)^ *(\d+) [0-9a-f]+ ([0-9A-F]{2})([0-9A-F]{2})([0-9A-F]{2})([0-9A-F]{2})`).FindAllStringSubmatch(string(out), -1)
	if len(lines) != len(order) {
		t.Fatalf("%d instructions, the listing has %d", len(order), len(lines))
	}
	var made strings.Builder
	for i, m := range lines {
		if m[1] != fmt.Sprint(i+2) {
			t.Fatalf("line %s of the listing follows %d", m[1], i+1)
		}
		fmt.Fprintln(&made, strings.ToLower(m[5]+m[4]+m[3]+m[2]), order[i])
	}
	if os.Getenv("WORDS") == "record" {
		if err := os.WriteFile(recorded, []byte(made.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(recorded); err != nil || string(data) != made.String() {
		t.Errorf("%s is not what the assembler makes (%v)", recorded, err)
	}
}
