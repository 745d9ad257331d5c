package model

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// tierLogits is the hash of the logits of TestSameBitsOnEveryTier, whatever the
// processor and however the compiler makes its instructions.
const tierLogits = "logits 5a3a0724e404a986"

// TestSameBitsOnEveryTier runs itself with the kernels of lower processors and
// compares a hash of logits.
func TestSameBitsOnEveryTier(t *testing.T) {
	h := fnv.New64a()
	specs := tinySpecs()
	for _, s := range []tinySpec{specs["llama"].quantised(), specs["gemma3"].quantised(), specs["llama"].quantised().int8()} {
		m := s.load(t, 3, 1)
		for _, l := range allLogits(t, m, randTokens(rand.New(rand.NewPCG(8, 8)), 270, s.vocab)) {
			for _, v := range l {
				h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
			}
		}
	}
	got := fmt.Sprintf("logits %016x", h.Sum64())
	if got != tierLogits {
		t.Errorf("%s, want %s: if what the engine computes was changed on purpose, note the new hash", got, tierLogits)
	}
	if os.Getenv("COPPICE_CPU") != "" {
		fmt.Println(got)
		return
	}
	tiers := []string{"go", "avx2", "avx512", "avx512bf16"}
	if runtime.GOARCH == "arm64" {
		tiers = []string{"go", "neon"}
	}
	for _, tier := range tiers {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSameBitsOnEveryTier$")
		cmd.Env = append(os.Environ(), "COPPICE_CPU="+tier)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", tier, err, out)
		}
		if !strings.Contains(string(out), got) {
			t.Errorf("%s differs: want %s, output\n%s", tier, got, out)
		}
	}
}
