package model

import (
	"math"
	"testing"
)

// TestTextsOfModelsTell: a text of one token over and over, or one whose
// next best token is as good, would be the same, or another, whatever the model
// computes.
func TestTextsOfModelsTell(t *testing.T) {
	for _, f := range familyFiles(t) {
		m, err := Load(f.open(t), Options{Threads: 1, Float32Attention: true})
		if err != nil {
			t.Fatal(f.name, err)
		}
		logits := allLogits(t, m, f.tokens())
		m.Close()
		seen, gap := map[int32]bool{}, math.Inf(1)
		for i, id := range f.Greedy {
			seen[id] = true
			gap = min(gap, lead(logits[len(f.Prompt)-1+i], id))
		}
		t.Logf("%s: %d of %d tokens are distinct, the smallest lead is %.3g", f.name, len(seen), len(f.Greedy), gap)
		if len(seen)*3 < len(f.Greedy)*2 {
			t.Errorf("%s: the text has %d distinct tokens of %d, want two thirds: %v", f.name, len(seen), len(f.Greedy), f.Greedy)
		}
		if gap < 1e-3 {
			t.Errorf("%s: a token leads by %.2g of the logits' RMS, want 1e-3", f.name, gap)
		}
	}
}

// lead is how far the logit of id is before the best of the others, as a share of the
// root mean square of all; negative if it is behind.
func lead(logits []float32, id int32) float64 {
	second, sum := math.Inf(-1), 0.0
	for i, v := range logits {
		sum += float64(v) * float64(v)
		if int32(i) != id {
			second = max(second, float64(v))
		}
	}
	return (float64(logits[id]) - second) / math.Sqrt(sum/float64(len(logits)))
}

// TestHeadWidthOfKnownModels: the largest Gemma models scale attention by another
// width than that of their heads, query_pre_attn_scalar in their configurations, which
// is not in the files; the number of layers tells them.
func TestHeadWidthOfKnownModels(t *testing.T) {
	for _, v := range []struct {
		name, arch                string
		layers, dim, heads, width int
		want                      int
	}{
		{"Gemma 2 2B", "gemma2", 26, 2304, 8, 256, 256},
		{"Gemma 2 9B", "gemma2", 42, 3584, 16, 256, 256},
		{"Gemma 2 27B", "gemma2", 46, 4608, 32, 128, 144},
		{"Gemma 3 4B", "gemma3", 34, 2560, 8, 256, 256},
		{"Gemma 3 12B", "gemma3", 48, 3840, 16, 256, 256},
		{"Gemma 3 27B", "gemma3", 62, 5376, 32, 128, 168},
		{"Mistral Nemo", "llama", 40, 5120, 32, 128, 128},
		{"Qwen3 0.6B", "qwen3", 28, 1024, 16, 128, 128},
	} {
		m := Model{cfg: Config{Layers: v.layers, Dim: v.dim, Heads: v.heads, HeadDim: v.width}, fam: families[v.arch]}
		if got := m.headWidth(); got != v.want {
			t.Errorf("%s: attention is scaled by a width of %d, want %d", v.name, got, v.want)
		}
	}
}
