package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestRealPerplexity: on real models attention in bfloat16 costs less than half a
// per cent of perplexity against attention in float32, and keys and values in 8
// bits little more.
func TestRealPerplexity(t *testing.T) {
	dir := os.Getenv("COPPICE_MODELS")
	if dir == "" {
		t.Skip("COPPICE_MODELS is not set: it names a folder with real models")
	}
	if testing.Short() {
		t.Skip("computes attention in float32")
	}
	for _, name := range []string{"SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m", "qwen2.5-0.5b-q4"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, name+".gguf")
			if _, err := os.Stat(file); err != nil {
				t.Skip(err)
			}
			var out bytes.Buffer
			args := []string{"perplexity", "--model", file, "--kv", "q8", "--compare", "--file", "testdata/texts/logbook.txt", "--context", "384", "--json"}
			if code := run(t.Context(), args, nil, &out, devNull(t)); code != 0 {
				t.Fatalf("exit code %d", code)
			}
			var r perplexity
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			bf16 := r.BFloat16.Perplexity/r.Float32.Perplexity - 1
			t.Logf("%d tokens: q8 %.4f, bf16 %.4f, float32 %.4f: %+.3f%% and %+.3f%% off", r.Tokens, r.Perplexity, r.BFloat16.Perplexity, r.Float32.Perplexity, 100**r.Off, 100*bf16)
			if math.Abs(bf16) > 0.005 {
				t.Errorf("bfloat16 is %.3f%% off, want within 0.5%%", 100*bf16)
			}
			if math.Abs(*r.Off) > 0.01 {
				t.Errorf("8 bits are %.3f%% off, want within 1%%", 100**r.Off)
			}
		})
	}
}
