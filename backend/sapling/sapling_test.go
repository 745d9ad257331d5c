package sapling

import "testing"

func TestGGUF(t *testing.T) {
	b := GGUF()
	if len(b) < 4 || string(b[:4]) != "GGUF" {
		t.Fatal("the embedded model is no GGUF file")
	}
	if len(b) > 8<<20 {
		t.Fatalf("the embedded model has %d bytes, want at most 8 MiB", len(b))
	}
}
