package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

// TestPartsOfAToken: with fewer tokens than threads each is done in parts, which
// changes no bit: of models wide enough for several parts, with widths that do not
// divide into them, one kv head or odd numbers of them, and mixtures.
func TestPartsOfAToken(t *testing.T) {
	f := []gguf.Type{gguf.F32}
	specs := map[string]tinySpec{
		"heads of 64":       {arch: "llama", dim: 64, heads: 9, kvHeads: 3, headDim: 64, ffn: 800},
		"heads of 80":       {arch: "llama", dim: 96, heads: 6, kvHeads: 1, headDim: 80, ffn: 544},
		"heads of 96":       {arch: "qwen2", dim: 64, heads: 6, kvHeads: 2, headDim: 96, ffn: 1024, tied: true},
		"heads of 128":      {arch: "qwen3", dim: 64, heads: 5, kvHeads: 5, headDim: 128, ffn: 288},
		"heads of 256":      {arch: "gemma3", dim: 64, heads: 3, kvHeads: 1, headDim: 256, ffn: 1056, window: 40, tied: true},
		"mixture":           {arch: "llama", dim: 64, heads: 8, kvHeads: 2, headDim: 64, ffn: 800, experts: 5},
		"mixture of qwen3":  {arch: "qwen3moe", dim: 64, heads: 6, kvHeads: 3, headDim: 128, ffn: 544, experts: 4},
		"mixture in halves": {arch: "llama", dim: 64, heads: 4, kvHeads: 4, headDim: 16, ffn: 1024, experts: 3},
	}
	for name, s := range specs {
		s.layers, s.vocab, s.context, s.types = 2, 70, 2048, f
		list := []tinySpec{s, s.quantised(), s.quantised().int8()}
		if s.experts == 0 {
			list = append(list, s.plain())
		}
		if testing.Short() {
			list = list[1:2]
		}
		for _, s := range list {
			t.Run(fmt.Sprintf("%s/%v%s%s", name, s.types[0], s.kv, s.arithmetic), func(t *testing.T) {
				samePartsOnAnyThreads(t, s)
			})
		}
	}
}

// samePartsOnAnyThreads computes a text at once on one thread, and token by token on
// several: alone, and in a batch of three.
func samePartsOnAnyThreads(t *testing.T, s tinySpec) {
	const prompt, more = 20, 12
	tokens := randTokens(rand.New(rand.NewPCG(4, uint64(s.heads))), prompt+more, s.vocab)
	want := allLogits(t, s.load(t, 6, 1), tokens)
	for _, threads := range []int{2, 5} {
		m := s.load(t, 6, threads)
		for _, n := range []int{1, 3} {
			q := newSeqs(t, m, n, len(tokens))
			for i := range q.tokens {
				q.tokens[i] = tokens[:prompt]
			}
			for pos := prompt - 1; pos < len(tokens); pos++ {
				for row, got := range q.step(t) {
					for i, v := range want[pos] {
						if math.Float32bits(v) != math.Float32bits(got[i]) {
							t.Fatalf("%d threads, row %d of %d, position %d: logit %d is %v, on one thread %v", threads, row, n, pos, i, got[i], v)
						}
					}
				}
				for i := range q.tokens {
					q.tokens[i] = tokens[min(pos+1, len(tokens)-1):][:1]
				}
			}
		}
	}
}
