package engine

import (
	"context"
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
	m := &flatModel{fakeModel{context: 1 << 20, vocab: fakeVocab}}
	e, err := build(Config{Model: m, Tokenizer: fakeTokenizer{}, Template: chatML{}, Fingerprint: "flat", Pages: 1 << 15})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range n {
		tokens := encodeText(e.tok, fmt.Sprint(i, " ", longText(200)))
		g := &generation{
			engine: e, req: &backend.Request{IgnoreEOS: true}, limit: 1 << 19, sample: newSampler(backend.Sampling{}, nil),
			stream: newStream(e.tok.Bytes, nil), out: newOutput[*backend.Result](),
		}
		s := &sequence{ctx: context.Background(), ns: cache.Namespace{Model: "flat"}, task: g, tokens: tokens, prompt: len(tokens)}
		if err := e.submit(s); err != nil {
			tb.Fatal(err)
		}
	}
	for range 100 + n {
		e.receive()
		e.round()
	}
	return e
}

func TestDecodeAllocatesNothing(t *testing.T) {
	e := decoding(t, 8)
	// Lists that double now and then are not counted: less than one a step.
	if got := testing.AllocsPerRun(2000, func() { e.receive(); e.round() }); got >= 1 {
		t.Errorf("%v allocations a step", got)
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
