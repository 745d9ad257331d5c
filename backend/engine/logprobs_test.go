package engine

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// What is read of a text is what was seen when it was generated, whatever is in
// the cache.
func TestLogprobsOfAGeneration(t *testing.T) {
	e := newFake(t, nil)
	turns := []backend.Turn{raw(longText(70))}
	got := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 12, IgnoreEOS: true, Logprobs: true})
	prompt, err := e.Tokenize(turns, true)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(prompt, got.Part.Tokens)
	for range 2 { // the second time all of it is in the cache
		r, err := e.Logprobs(t.Context(), &backend.LogprobRequest{Tokens: all, From: len(prompt), Top: 3})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(r.Logprobs, got.Logprobs) {
			t.Errorf("read %v, generated %v", r.Logprobs, got.Logprobs)
		}
		for i, top := range r.Top {
			best := top[0]
			if best.Token == imEnd { // not to be drawn, as asked
				best = top[1]
			}
			if len(top) != 3 || best.Token != got.Part.Tokens[i] || best.Logprob != r.Logprobs[i] {
				t.Errorf("place %d: greedy drew %d, the likeliest are %v", i, got.Part.Tokens[i], top)
			}
			if !(top[0].Logprob >= top[1].Logprob && top[1].Logprob >= top[2].Logprob) {
				t.Errorf("place %d is out of order: %v", i, top)
			}
		}
	}
	hand := scoreByHand(e.fake(), all[:1], all[1:])
	r, err := e.Logprobs(t.Context(), &backend.LogprobRequest{Tokens: all, From: 1})
	if err != nil || len(r.Logprobs) != len(all)-1 || r.Top != nil {
		t.Fatal(r, err)
	}
	for i, lp := range r.Logprobs {
		if math.Abs(lp-hand[i]) > 1e-4 {
			t.Errorf("place %d: %v, by hand %v", i+1, lp, hand[i])
		}
	}
	// Several tokens that may follow take one pass, and are what each is alone.
	first := got.Part.Tokens[0]
	for range 2 {
		n, err := e.Logprobs(t.Context(), &backend.LogprobRequest{Tokens: prompt, From: len(prompt), Next: []backend.Token{first, 7, first}, Salt: "x"})
		if err != nil || len(n.Logprobs) != 0 || len(n.Next) != 3 || n.Next[0] != got.Logprobs[0] || n.Next[2] != n.Next[0] || passes(n.Usage) != 1 {
			t.Errorf("%+v, %v; generated %v", n, err, got.Logprobs[0])
		}
		seven, err := e.Logprobs(t.Context(), &backend.LogprobRequest{Tokens: append(slices.Clip(prompt), 7), From: len(prompt)})
		if err != nil || seven.Logprobs[0] != n.Next[1] {
			t.Errorf("%v, %v; alone %v", n.Next, err, seven.Logprobs)
		}
	}
}

// A text that is only computed is found by the next who begins with it.
func TestLogprobsOfNothingFillTheCache(t *testing.T) {
	e := newFake(t, nil)
	turns := []backend.Turn{raw(longText(100))}
	ids, _ := e.Tokenize(turns, true)
	if _, err := e.Logprobs(t.Context(), &backend.LogprobRequest{Tokens: ids, From: len(ids)}); err != nil {
		t.Fatal(err)
	}
	if u := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 1}).Usage; u.CachedTokens != len(ids)-1 {
		t.Errorf("%d of %d tokens cached", u.CachedTokens, len(ids))
	}
	u := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 1, Salt: "other"}).Usage
	if u.CachedTokens != 0 {
		t.Errorf("%d tokens cached under another salt", u.CachedTokens)
	}
}

func TestLogprobsRefuses(t *testing.T) {
	e := newFake(t, nil)
	for _, r := range []backend.LogprobRequest{
		{From: 1}, {Tokens: []backend.Token{1, 2}}, {Tokens: []backend.Token{1, 2}, From: 3},
		{Tokens: []backend.Token{1, -2}, From: 1}, {Tokens: []backend.Token{1, 1 << 30}, From: 1},
		{Tokens: []backend.Token{1, 2}, From: 1, Top: -1}, {Tokens: []backend.Token{1, 2}, From: 1, Top: 1 << 30},
		{Tokens: []backend.Token{1, 2}, From: 2, Next: []backend.Token{3, -1}}, {Tokens: []backend.Token{1, 2}, From: 2, Next: []backend.Token{1 << 30}},
	} {
		if _, err := e.Logprobs(t.Context(), &r); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if _, err := e.Logprobs(t.Context(), &backend.LogprobRequest{Tokens: make([]backend.Token, 1<<16), From: 1}); !errors.Is(err, backend.ErrContextLength) {
		t.Error(err)
	}
}

// In a stream each token comes with its log-probability and the likeliest tokens in
// its place, those that are forced too, and its text not before it; they are those
// that are read afterwards.
func TestLogprobsComeWithTheirTokens(t *testing.T) {
	reqs := map[string]*backend.Request{
		"free":     {MaxTokens: 20, IgnoreEOS: true},
		"forced":   {Constraint: backend.Constraint{Regex: `the thing is (high|low) in (the )?ass(ies)?`}},
		"all":      {Constraint: backend.Constraint{Regex: `the thing is`}},
		"stop":     {MaxTokens: 60, Stop: []string{"a", "ing", "the thing"}, Sampling: backend.Sampling{Temperature: 4, Seed: 3}},
		"inside":   {Constraint: backend.Constraint{Regex: `ab the (high|low) is so`}, Stop: []string{"igh", "s s"}},
		"half":     {Constraint: backend.Constraint{Choices: []string{"é", "ü漢!"}}, MaxTokens: 2},
		"one step": {MaxTokens: 1, IgnoreEOS: true},
	}
	for name, req := range reqs {
		for _, drafts := range []int{0, 4} {
			e := newFake(t, func(c *Config, _ *fakeModel) { c.Drafts = drafts })
			req.Turns, req.Logprobs, req.Top = []backend.Turn{raw(longText(40))}, true, 3
			var (
				got  backend.Result
				most int
			)
			res, err := e.Generate(t.Context(), req, func(d backend.Delta) {
				if len(d.Tokens) == 0 || len(d.Logprobs) != len(d.Tokens) || len(d.Top) != len(d.Tokens) {
					t.Errorf("%s: %+v", name, d)
				}
				got.Part.Text += d.Text
				got.Part.Tokens = append(got.Part.Tokens, d.Tokens...)
				got.Logprobs = append(got.Logprobs, d.Logprobs...)
				got.Top = append(got.Top, d.Top...)
				most = max(most, len(d.Tokens))
			})
			if err != nil {
				t.Fatal(name, err)
			}
			if got.Part.Text != res.Part.Text || !slices.Equal(got.Part.Tokens, res.Part.Tokens) || !slices.Equal(got.Logprobs, res.Logprobs) || !reflect.DeepEqual(got.Top, res.Top) {
				t.Errorf("%s: streamed %+v, the result is %+v", name, got, res)
			}
			quiet := mustGenerate(t, e, req)
			if !slices.Equal(quiet.Logprobs, res.Logprobs) || !reflect.DeepEqual(quiet.Top, res.Top) {
				t.Errorf("%s: without a stream %+v, with one %+v", name, quiet, res)
			}
			if len(res.Part.Tokens) == 0 || name == "inside" || name == "stop" { // their last token may be cut
				continue
			}
			prompt, _ := e.Tokenize(req.Turns, true)
			r, err := e.Logprobs(t.Context(), &backend.LogprobRequest{Tokens: slices.Concat(prompt, res.Part.Tokens), From: len(prompt), Top: 3})
			if err != nil || !slices.Equal(r.Logprobs, res.Logprobs) || !reflect.DeepEqual(r.Top, res.Top) {
				t.Errorf("%s: read %+v, generated %+v; %v", name, r, res, err)
			}
		}
	}
	e := newFake(t, nil)
	for _, top := range []int{-1, fakeVocab + 1} {
		if _, err := e.Generate(t.Context(), &backend.Request{Turns: []backend.Turn{raw("a")}, MaxTokens: 1, Logprobs: true, Top: top}, nil); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("top %d: %v", top, err)
		}
	}
}
