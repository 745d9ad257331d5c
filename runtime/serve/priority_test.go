package serve

import (
	"context"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
)

// arrivals tells of each request that its backend has taken in, and remembers in
// which pass each was begun, by the last letter of its prompt.
type arrivals struct {
	*engine.Engine
	queued chan struct{}
	mu     sync.Mutex
	began  map[string]uint64
}

func (a *arrivals) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	ctx = backend.WithTrace(ctx, &backend.Trace{Queued: func(string) { a.queued <- struct{}{} }})
	res, err := a.Engine.Generate(ctx, req, emit)
	if err == nil {
		parts := req.Turns[len(req.Turns)-1].Parts
		text := parts[len(parts)-1].Text
		a.mu.Lock()
		a.began[text[len(text)-1:]] = res.Usage.Passes[0].From
		a.mu.Unlock()
	}
	return res, err
}

// TestPriority: of requests that wait, the more urgent one is begun first, by the
// rule of each API.
func TestPriority(t *testing.T) {
	chat := func(text string, priority int) tree {
		return tree{"messages": []tree{{"role": "user", "content": text}}, "max_tokens": 2, "priority": priority}
	}
	for _, c := range []struct {
		path      string
		body      func(text string, priority int) tree
		low, high int
	}{
		{"/v1/chat/completions", chat, 1, -1},
		{"/v1/completions", func(text string, priority int) tree {
			return tree{"prompt": text, "max_tokens": 2, "priority": priority}
		}, 1, -1},
		{"/generate", func(text string, priority int) tree {
			return tree{"text": text, "sampling_params": tree{"max_new_tokens": 2}, "priority": priority}
		}, -1, 1},
	} {
		t.Run(c.path, func(t *testing.T) {
			m := &chain{next: alphabet, step: make(chan struct{})}
			e, err := engine.New(engine.Config{Model: m, Tokenizer: byteVocab{}, Fingerprint: "chain-1", Name: "chain", Pages: 64, MaxSeqs: 1, Check: true})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			be := &arrivals{Engine: e, queued: make(chan struct{}), began: map[string]uint64{}}
			cl := serveFor(t, be, nil)
			var all sync.WaitGroup
			for i, r := range []tree{c.body("a", 0), c.body("l", c.low), c.body("m", 0), c.body("h", c.high)} {
				all.Go(func() {
					if status, out := cl.post(c.path, r); status != 200 {
						t.Errorf("%d %v", status, out)
					}
				})
				<-be.queued
				if i == 0 {
					m.step <- struct{}{} // it is at work, and is not over after one pass
				}
			}
			close(m.step)
			all.Wait()
			b := be.began
			if !(b["a"] < b["h"] && b["h"] < b["m"] && b["m"] < b["l"]) {
				t.Errorf("begun in the passes %v, want a, h, m, l", b)
			}
		})
	}
}
