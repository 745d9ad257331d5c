package engine

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
)

// TestRealModelMatrix: on real models, ids and log-probabilities of a few requests are
// the same bits alone and cold as in every other way of computing them: in a batch of
// 32, warm, in pieces of some tokens, on one thread or two, with and without
// jump-forward, drafts and options computed ahead, on a device that works by itself, on
// a pool that makes them lose their pages, and resumed from some of their tokens. And
// all logits that any of these computes are the same bits behind the same tokens.
func TestRealModelMatrix(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real models twelve times")
	}
	for _, c := range []struct {
		name string
		kv   model.KVType
	}{{smol, model.BFloat16}, {smol, model.Int8}, {"gemma-3-270m-q4_k_m.gguf", model.BFloat16}, {"qwen2.5-0.5b-q4.gguf", model.BFloat16}} {
		t.Run(c.name+" "+string(c.kv), func(t *testing.T) { realMatrix(t, c.name, c.kv) })
	}
}

func realMatrix(t *testing.T, name string, kv model.KVType) {
	requests := func() []*backend.Request {
		list := []*backend.Request{
			{Turns: []backend.Turn{user("Name a cause of restarts.")}, MaxTokens: 64, IgnoreEOS: true, Logprobs: true},
			{Turns: []backend.Turn{user("Write one two three one two three.")}, MaxTokens: 12, IgnoreEOS: true, Logprobs: true},
			{Turns: []backend.Turn{user("Name a colour.")}, MaxTokens: 12, IgnoreEOS: true, Logprobs: true, Sampling: backend.Sampling{Temperature: 1, Seed: 5}},
			{Turns: []backend.Turn{user("Is it out of memory?")}, MaxTokens: 40, Logprobs: true,
				Constraint: backend.Constraint{JSONSchema: []byte(`{"type":"object","properties":{"reason":{"enum":["OOMKilled","NodeNotReady"]},"sure":{"type":"boolean"}},"required":["reason","sure"],"additionalProperties":false}`)}},
			{Turns: []backend.Turn{user("Who is it?")}, MaxTokens: 24, Logprobs: true, CloseAtLimit: true,
				Constraint: backend.Constraint{JSONSchema: []byte(personSchema)}},
		}
		for i, r := range list {
			r.ID = fmt.Sprint("request ", i)
		}
		return list
	}
	type answer struct {
		text     string
		ids      []backend.Token
		logprobs []float64
	}
	ask := func(t *testing.T, e *Engine, r *backend.Request) answer {
		res, err := e.Generate(context.Background(), r, nil)
		if err != nil {
			t.Error(err)
			return answer{}
		}
		if n, most := passes(res.Usage), len(res.Part.Tokens)-len(r.Resume)+1; len(r.Resume) > 0 && !r.CloseAtLimit && n > most {
			t.Errorf("%s: %d passes behind %d of %d tokens", r.ID, n, len(r.Resume), len(res.Part.Tokens))
		}
		return answer{res.Part.Text, res.Part.Tokens, res.Logprobs}
	}
	logits := newLedger()
	open := func(t *testing.T, cfg Config, threads int, device bool) (*Engine, *ledgerEntry) {
		entry := &ledgerEntry{ledger: logits, tb: t}
		return openRealBy(t, name, cfg, model.Options{Threads: threads, KV: kv}, func(m *cpuModel) Model {
			own := &ledgerModel{m, entry}
			if device {
				return ahead{own, t}
			}
			return own
		}), entry
	}
	var want []answer
	{
		e, _ := open(t, Config{Pages: 64}, 1, false)
		for _, r := range requests() {
			want = append(want, ask(t, e, r))
			e.Flush()
		}
	}
	for _, c := range []struct {
		name    string
		cfg     Config
		threads int
		copies  int // of each request, at once
		noJump  bool
		device  bool
		preempt bool // some lose their pages for certain
		resume  bool // from a third, from two thirds, and from all that it wrote
		idsOnly bool // no log-probabilities, which are not known of what is resumed or chosen ahead
		inTurn  bool // one request after the other, so that options are computed ahead for certain
	}{
		{name: "batch of 32", cfg: Config{Pages: 512}, threads: 2, copies: 8},
		{name: "warm", cfg: Config{Pages: 128}, threads: 2, copies: 1},
		{name: "pieces of 5 tokens", cfg: Config{Pages: 128, MaxBatchTokens: 5}, threads: 1, copies: 2},
		{name: "pieces of 37 tokens", cfg: Config{Pages: 128, MaxBatchTokens: 37}, threads: 2, copies: 2},
		{name: "no jump", cfg: Config{Pages: 128}, threads: 2, copies: 1, noJump: true},
		{name: "drafts ahead", cfg: Config{Pages: 128, Drafts: 4}, threads: 2, copies: 1},
		{name: "drafts and options ahead", cfg: Config{Pages: 128, Drafts: 4, Choices: 64}, threads: 2, copies: 1, idsOnly: true, inTurn: true},
		{name: "device", cfg: Config{Pages: 128}, threads: 2, copies: 2, device: true},
		{name: "small pool", cfg: Config{Pages: 12}, threads: 2, copies: 2},
		{name: "preempted", cfg: Config{Pages: 8}, threads: 2, copies: 6, preempt: true},
		{name: "resumed", cfg: Config{Pages: 256}, threads: 2, copies: 3, resume: true, idsOnly: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, entry := open(t, c.cfg, c.threads, c.device)
			var wg sync.WaitGroup
			for n := range c.copies {
				for i, r := range requests() {
					r.NoJump = c.noJump
					if ids := want[i].ids; c.resume {
						r.Resume = ids[:len(ids)*(n+1)/c.copies]
					}
					alone := want[i]
					if c.idsOnly {
						r.Logprobs, alone.logprobs = false, nil
					}
					wg.Go(func() {
						got := ask(t, e, r)
						if again := ask(t, e, r); !reflect.DeepEqual(got, again) {
							t.Errorf("%s: %+v, again %+v", r.ID, got, again)
						}
						if !reflect.DeepEqual(got, alone) {
							t.Errorf("%s: %+v, alone %+v", r.ID, got, alone)
						}
					})
					if c.inTurn {
						wg.Wait()
					}
				}
			}
			wg.Wait()
			if c.inTurn && e.Stats().Chosen == 0 {
				t.Error("no option was computed ahead")
			}
			if c.preempt && e.Stats().Preempted == 0 {
				t.Error("nothing was preempted")
			}
			n := entry.known()
			if n < 30 {
				t.Errorf("only %d logits were computed by another way before", n)
			}
			t.Logf("%d preempted, %d steps, %d logits compared", e.Stats().Preempted, e.Stats().Steps, n)
		})
	}
}
