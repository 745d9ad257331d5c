package engine

import (
	"context"
	"slices"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// stepped is an engine of a fake model without a loop: the test calls receive and round.
// submit sends a text that is to go on for so many tokens.
func stepped(t *testing.T, c Config) (e *Engine, submit func(text string, limit int) *sequence) {
	t.Helper()
	c.Model, c.Tokenizer, c.Template = &fakeModel{context: 2048, vocab: fakeVocab}, fakeTokenizer{}, chatML{}
	c.Fingerprint, c.Check = "f", true
	e, err := build(c)
	if err != nil {
		t.Fatal(err)
	}
	return e, func(text string, limit int) *sequence {
		t.Helper()
		tokens := encodeText(e.tok, text)
		q := &sequence{ctx: context.Background(), tokens: tokens, prompt: len(tokens), task: &generation{
			engine: e, req: &backend.Request{IgnoreEOS: true}, limit: limit, sample: newSampler(backend.Sampling{}, nil),
			stream: newStream(e.tok.Bytes, nil), out: newOutput[*backend.Result](),
		}}
		if err := e.submit(q); err != nil {
			t.Fatal(err)
		}
		return q
	}
}

// TestTheFirstOfAGroupGoesAlone: requests that begin alike and arrive together do not all
// compute that beginning, though there is room in the step for them.
func TestTheFirstOfAGroupGoesAlone(t *testing.T) {
	e, submit := stepped(t, Config{Pages: 256, MaxBatchTokens: 2048})
	trunk := longText(300)
	for i := range 6 {
		submit(trunk+string(rune('A'+i))+longText(20), 4)
	}
	submit("something else", 4)
	e.receive()
	e.round()
	if n := len(e.sched.running); n != 2 {
		t.Errorf("%d begin at once, want the first of the group and the one that begins otherwise", n)
	}
	e.receive()
	e.round()
	if n := len(e.sched.running); n != 7 {
		t.Errorf("%d run in the second step, want all", n)
	}
	if got, most := e.fake().tokens, len(trunk)+7*30; got > most {
		t.Errorf("%d tokens are computed, want at most %d", got, most)
	}
}

// TestTheLatestArrivalGoesBack: where pages run out the request that came last gives its
// pages up, so that the first one always ends.
func TestTheLatestArrivalGoesBack(t *testing.T) {
	e, submit := stepped(t, Config{Pages: 12})
	var all []*sequence
	for i := range 3 {
		all = append(all, submit(string(rune('a'+i))+longText(30), 100))
	}
	ended := 0
	for step := 0; ended < len(all); step++ {
		if step > 1000 {
			t.Fatal("no end")
		}
		e.receive()
		was := slices.Clone(e.sched.running)
		before := e.sched.preempt
		e.round()
		for ended < len(all) && all[ended].ended {
			ended++
		}
		if e.sched.preempt == before || len(was) == 0 {
			continue
		}
		if !was[0].ended && !slices.Contains(e.sched.running, was[0]) {
			t.Fatalf("step %d: the earliest of %d went back", step, len(was))
		}
		for i, q := range was[1:] { // who is there still arrived before who is not
			if !slices.Contains(e.sched.running, was[i]) && !was[i].ended && slices.Contains(e.sched.running, q) {
				t.Fatalf("step %d: an earlier request went back and a later one did not", step)
			}
		}
	}
	if e.sched.preempt == 0 {
		t.Error("nothing was preempted")
	}
}

// TestPromptsGoOnBesideManyThatDecode: those that decode leave a part of each step to a
// prompt, also where they would fill it.
func TestPromptsGoOnBesideManyThatDecode(t *testing.T) {
	e, submit := stepped(t, Config{Pages: 512, MaxBatchTokens: 8})
	for i := range 8 {
		submit(string(rune('a'+i)), 500)
	}
	for range 60 {
		e.receive()
		e.round()
	}
	late := submit("z"+longText(40), 4)
	for step := 0; !late.ended; step++ {
		if step > 200 {
			t.Fatalf("%d of %d tokens of the prompt are computed after %d steps", late.computed, late.prompt, step)
		}
		e.receive()
		e.round()
	}
	if len(e.sched.running) != 8 {
		t.Errorf("%d others are at work, want all", len(e.sched.running))
	}
}
