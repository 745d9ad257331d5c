package engine

import (
	"fmt"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/cache"
)

// flatModel writes "a" for ever and allocates nothing.
type flatModel struct{ fakeModel }
type flatKV struct{ fakeKV }

func (m *flatModel) NewKV(int) (KV, error) { return &flatKV{}, nil }
func (*flatKV) CopyPage(_, _ int32, _ int) {}
func (*flatKV) Forward(_ *model.Batch, logits [][]float32) error {
	for _, l := range logits {
		l['a'] = 1
	}
	return nil
}

// decoding is an engine without a loop whose n sequences have prefilled.
func decoding(tb testing.TB, n int) *Engine {
	return decodingWith(tb, n, Config{Model: &flatModel{fakeModel{context: 1 << 20, vocab: fakeVocab}}}, func(int) *backend.Request {
		return &backend.Request{IgnoreEOS: true}
	})
}

func decodingWith(tb testing.TB, n int, c Config, request func(i int) *backend.Request) *Engine {
	c.Tokenizer, c.Template, c.Fingerprint, c.Pages = fakeTokenizer{}, chatML{}, "flat", 1<<12
	e, err := build(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(e.kv.Close)
	for i := range n {
		req := request(i)
		req.Turns = []backend.Turn{raw(fmt.Sprint(i, " ", longText(200)))}
		if _, _, err := e.submitGeneration(tb.Context(), req, false); err != nil {
			tb.Fatal(err)
		}
	}
	for range 100 + n {
		e.receive()
		e.round()
	}
	return e
}

// TestDecodeAllocatesNothing: in steady state, whatever is asked for and with a real
// forward pass. Lists that double now and then are not counted: less than one a step.
func TestDecodeAllocatesNothing(t *testing.T) {
	flat := func() Model { return &flatModel{fakeModel{context: 1 << 20, vocab: fakeVocab}} }
	plain := func(int) *backend.Request { return &backend.Request{IgnoreEOS: true} }
	for _, c := range []struct {
		name    string
		cfg     Config
		request func(int) *backend.Request
	}{
		{"greedy", Config{Model: flat()}, plain},
		{"sampled", Config{Model: flat()}, func(i int) *backend.Request {
			return &backend.Request{IgnoreEOS: true, Sampling: backend.Sampling{Temperature: 1, TopP: 0.9, TopK: 40, MinP: 0.01, Seed: uint64(i), FrequencyPenalty: 0.1, RepetitionPenalty: 1.1}}
		}},
		{"guesses", Config{Model: flat(), Drafts: 8}, plain},
		{"stop strings", Config{Model: flat()}, func(int) *backend.Request {
			return &backend.Request{IgnoreEOS: true, Stop: []string{"never this", "nor that"}}
		}},
		{"a transformer", Config{Model: tinyModelOf(t, 2, 1<<16, model.Options{Threads: 2})}, plain},
		{"a transformer, 8 bits", Config{Model: tinyModelOf(t, 2, 1<<16, model.Options{Threads: 1, KV: model.Int8})}, plain},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := decodingWith(t, 8, c.cfg, c.request)
			got := testing.AllocsPerRun(1000, func() { e.receive(); e.round() })
			if n := len(e.sched.running); n != 8 {
				t.Fatalf("%d of 8 still decode", n)
			}
			if got >= 1 {
				t.Errorf("%v allocations a step", got)
			}
		})
	}
}

func BenchmarkStep(b *testing.B) {
	for _, n := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e := decoding(b, n)
			b.ReportAllocs()
			for b.Loop() {
				if len(e.sched.running) == 0 { // all at their limit
					b.StopTimer()
					e = decoding(b, n)
					b.StartTimer()
				}
				e.receive()
				e.round()
			}
		})
	}
}

// TestStretchesAreGroups: what the cache keeps together is what the model lays together.
func TestStretchesAreGroups(t *testing.T) {
	if cache.Stretch%model.PageGroup != 0 || cache.PageTokens != model.PageSize {
		t.Fatalf("stretches of %d pages of %d tokens, groups of %d of %d", cache.Stretch, cache.PageTokens, model.PageGroup, model.PageSize)
	}
}
