package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// TestDraftsSavePasses: a model that repeats what it read takes a pass for
// several tokens, and writes the same.
func TestDraftsSavePasses(t *testing.T) {
	const period = 9
	repeat := func(tokens []backend.Token) backend.Token {
		if n := len(tokens); n%23 == 0 { // now and then something else
			return 'x'
		} else if n > period {
			return tokens[n-period]
		}
		return -1
	}
	req := &backend.Request{Turns: []backend.Turn{raw(strings.Repeat("Pod-9x2k/", 3))}, MaxTokens: 60, IgnoreEOS: true, Logprobs: true}
	plain := newFake(t, func(_ *Config, m *fakeModel) { m.script = repeat })
	want := mustGenerate(t, plain, req)
	for _, n := range []int{1, 4, 8} {
		e := newFake(t, func(c *Config, m *fakeModel) { c.Drafts, m.script = n, repeat })
		got := mustGenerate(t, e, req)
		if !slices.Equal(got.Part.Tokens, want.Part.Tokens) || !slices.Equal(got.Logprobs, want.Logprobs) || got.Part.Text != want.Part.Text {
			t.Errorf("%d drafts: %v, want %v", n, got.Part, want.Part)
		}
		if p, most := passes(got.Usage), map[int]int{1: 40, 4: 25, 8: 20}[n]; p > most {
			t.Errorf("%d drafts: %d passes for 60 tokens, want at most %d", n, p, most)
		}
		if got.Usage.SampledTokens != 60 || got.Usage.Without != want.Usage.Without {
			t.Errorf("%d drafts: %+v", n, got.Usage)
		}
	}
}

// TestDraftsGiveUp: guesses that are never right are not made for long.
func TestDraftsGiveUp(t *testing.T) {
	e := newFake(t, func(c *Config, m *fakeModel) {
		c.Drafts = 4
		m.script = func(tokens []backend.Token) backend.Token {
			return backend.Token([]byte("abcd")[len(tokens)%4]) - backend.Token(len(tokens)%5/4*32)
		}
	})
	r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{raw("abcdabcd")}, MaxTokens: 200, IgnoreEOS: true})
	if extra := r.Usage.ComputedTokens - r.Usage.PromptTokens - 199; extra > 4*60 {
		t.Errorf("%d tokens were guessed in vain", extra)
	}
}

// TestDraftsGoByTheLastOnes: twice as many guesses after all were right, half as
// many after a wrong one, within bounds.
func TestDraftsGoByTheLastOnes(t *testing.T) {
	s := &sequence{}
	for range 20 {
		s.tokens = append(s.tokens, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	}
	var d drafts
	next := func(n int) backend.Token { return backend.Token(n%11 + 1) }
	for _, step := range []struct {
		wrong bool
		want  int
	}{{false, 4}, {false, 8}, {true, 8}, {true, 4}, {true, 2}, {true, 1}, {false, 1}, {false, 2}, {false, 4}} {
		d.propose(s, 8, 100)
		if d.n != step.want {
			t.Fatalf("%d guesses, want %d", d.n, step.want)
		}
		for d.n > 0 {
			right := next(len(s.tokens) - d.n)
			if !step.wrong {
				d.confirm(s, right, 1)
				continue
			}
			d.confirm(s, right+100, 1)
			s.tokens = append(s.tokens, right)
		}
		if !step.wrong { // the token that follows the guesses is drawn as ever
			s.tokens = append(s.tokens, next(len(s.tokens)))
		}
	}
	if d.propose(s, 8, 3); d.n > 3 {
		t.Errorf("%d guesses where there is room for 3", d.n)
	}
}
