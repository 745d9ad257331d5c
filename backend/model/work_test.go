package model

import (
	"math"
	"testing"

	"github.com/coppice-run/coppice/backend/compute"
	"github.com/coppice-run/coppice/backend/gguf"
)

func TestWork(t *testing.T) {
	s := tinySpecs()["gemma3"] // 7 layers, one of them global; window 40
	m := s.load(t, 1, 1)
	w, deep := m.Work(10), m.Work(100)
	qd, kd := s.heads*s.headDim, s.kvHeads*s.headDim
	if want := s.layers * (2*qd*s.dim + 2*kd*s.dim + 3*s.ffn*s.dim); w.MatrixMACs != want || w.OutputMACs != s.vocab*s.dim {
		t.Errorf("%+v, want %d multiply-adds in matrices", w, want)
	}
	if w.WeightBytes != 4*(w.MatrixMACs+w.OutputMACs) { // float32, tied
		t.Errorf("%d bytes of weights, want %d", w.WeightBytes, 4*(w.MatrixMACs+w.OutputMACs))
	}
	if w.KVBytes != 7*10*kd*4 || deep.KVBytes != (6*40+100)*kd*4 {
		t.Errorf("%d and %d bytes of keys and values", w.KVBytes, deep.KVBytes)
	}
	if w.AttentionMACs != 7*10*qd*2 || deep.AttentionMACs != (6*40+100)*qd*2 {
		t.Errorf("%d and %d multiply-adds of attention", w.AttentionMACs, deep.AttentionMACs)
	}
	if got := m.Bytes(); got < int64(w.WeightBytes) {
		t.Errorf("the model takes %d bytes, its weights alone %d", got, w.WeightBytes)
	}
	if d, err := m.Products(9); err != nil || d <= 0 {
		t.Errorf("%v %v", d, err)
	}
	// In 8 bits a head of 32 takes 32 bytes and a scale of two, each for key and value.
	if w := s.int8().load(t, 1, 1).Work(100); w.KVBytes != (6*40+100)*s.kvHeads*2*(s.headDim+2) {
		t.Errorf("%d bytes of keys and values in 8 bits", w.KVBytes)
	}
	if _, err := m.Products(chunkTokens + 1); err == nil {
		t.Error("no error for too many tokens")
	}
}

// TestTokenCost: near the start another token costs its products beside the weights,
// which it does not read again; far away it costs its attention beside keys and values,
// which it does. Weights that the processor's cache holds are read four times as fast,
// and the experts that a token picks are read for it alone.
func TestTokenCost(t *testing.T) {
	specs := tinySpecs()
	large := specs["llama"]
	large.vocab = 1 << 16 // 16 MiB of the output, and as much of embeddings
	experts := specs["llama"]
	experts.experts = 4
	q8 := specs["llama"]
	q8.types = []gguf.Type{gguf.Q8_0}
	product, attention := compute.MACTimes()
	for _, c := range []struct {
		name                string
		spec                tinySpec
		products, attention float64 // to a byte that is read, near the start and far away
	}{
		// Four bytes a product from memory; 4 from the cache in the time of one.
		{"weights in memory", large, 1. / 4, 2 * 2 / 4},
		{"weights in the cache", specs["llama"], 1, 2 * 2 / 4},
		{"weights in 8 bits", q8, 32. / 34 * 4, 2 * 2 / 4},
		// Two queries share a key and a value of 16, each with a scale of two bytes in 32.
		{"keys and values in 8 bits", specs["llama"].int8(), 1, 2 * 2 * 16. / (2 * (32 + 2))},
		{"a key and a value for each query", specs["qwen3"], 1, 2. / 4},
		{"four queries for one", specs["gemma3"], 1, 2 * 4 / 4},
		{"sixteen queries for one", specs["gemma3"].wide(16), 1, 2 * 16 / 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := c.spec.load(t, 1, 1)
			near, far := min(1, product*c.products), min(1, attention*c.attention)
			if got := m.TokenCost(0); math.Abs(got/near-1) > 0.01 {
				t.Errorf("%v near the start, want %v", got, near)
			}
			if got := m.TokenCost(1 << 30); math.Abs(got/far-1) > 0.01 {
				t.Errorf("%v far away, want %v", got, far)
			}
			last := 0.0
			for depth := 0; depth < 1<<20; depth = 2*depth + 1 {
				got := m.TokenCost(depth)
				if got <= 0 || got > 1 || far > near && got < last*(1-1e-9) {
					t.Errorf("%v at depth %d, %v before", got, depth, last)
				}
				last = got
			}
		})
	}
	alike, picked := specs["llama"].load(t, 1, 1).TokenCost(0), experts.load(t, 1, 1).TokenCost(0)
	if picked < min(1, 4*alike) || picked > 1 {
		t.Errorf("%v with experts of its own, %v without", picked, alike)
	}
}

// wide is the spec with so many heads.
func (s tinySpec) wide(heads int) tinySpec {
	s.heads = heads
	return s
}
