package engine

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/sapling"
	"github.com/coppice-run/coppice/backend/tokenizer"
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
		d.propose(s, nil, 8, 100)
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
	if d.propose(s, nil, 8, 3); d.n > 3 {
		t.Errorf("%d guesses where there is room for 3", d.n)
	}
}

// TestWhatIsSpelledIsGuessed: forced text that only the model can cut into tokens
// takes no pass of its own, and where it is cut otherwise the text is the same.
func TestWhatIsSpelledIsGuessed(t *testing.T) {
	f, err := gguf.Parse(sapling.GGUF())
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	const schema = `{"type":"object","properties":{"pod":{"type":"string"},"exit_code":{"type":"integer"},"action":{"type":"string"},"note":{"type":"string"},"more":{"type":"string"}},"required":["pod","exit_code","action"],"additionalProperties":false}`
	for text, fewer := range map[string]int{
		`{"pod":"w-7","exit_code":137,"action":"restart"}`:              1,
		`{"pod":"w-7","exit_code":137,"action":"","note":"","more":""}`: 0, // an empty string may be a token of its own
	} {
		req := &backend.Request{Turns: []backend.Turn{user("Write.")}, Constraint: backend.Constraint{JSONSchema: []byte(schema)}, MaxTokens: 60}
		ids := encodeText(tok, text)
		prompt := 0
		write := func(drafts int, noJump bool) *backend.Result {
			m := puppetOn(tok)
			m.script = func(tokens []backend.Token) backend.Token {
				if n := len(tokens) - prompt; prompt > 0 && n >= 0 && n < len(ids) {
					return ids[n]
				}
				return -1
			}
			e, err := Load(f, Config{Model: m, Pages: 64, Check: true, Drafts: drafts}, model.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			r := *req
			r.NoJump = noJump
			return mustGenerate(t, e, &r)
		}
		prompt = write(0, true).Usage.PromptTokens
		without, jump, guess := write(0, true), write(0, false), write(8, false)
		if without.Part.Text != text {
			t.Fatalf("the script wrote %q", without.Part.Text)
		}
		if jump.Part.Text != text || guess.Part.Text != text || !slices.Equal(jump.Part.Tokens, guess.Part.Tokens) {
			t.Errorf("with jump-forward %q, with guesses %q", jump.Part.Text, guess.Part.Text)
		}
		if p, q := passes(jump.Usage), passes(guess.Usage); q > p-fewer {
			t.Errorf("%s: %d passes with guesses, %d without: wanted at least %d fewer", text, q, p, fewer)
		}
		if jump.Usage.ForcedTokens != guess.Usage.ForcedTokens || jump.Usage.SampledTokens != guess.Usage.SampledTokens {
			t.Errorf("usage with guesses %+v, without %+v", guess.Usage, jump.Usage)
		}
	}
}

// TestFewTokensGuessIfTheyAgree: where all tokens that are compared never stood
// together, fewer of them guess if the same followed them several times.
func TestFewTokensGuessIfTheyAgree(t *testing.T) {
	for _, c := range []struct {
		tokens []backend.Token
		want   []backend.Token
	}{
		{[]backend.Token{1, 2, 3, 9, 8, 7, 1, 2, 3}, []backend.Token{9, 8, 7, 1}},    // three are the same
		{[]backend.Token{5, 2, 3, 9, 6, 2, 3, 9, 7, 2, 3}, []backend.Token{9}},       // two, twice
		{[]backend.Token{5, 2, 3, 9, 6, 2, 3, 4, 7, 2, 3}, nil},                      // two, but not the same behind
		{[]backend.Token{0, 5, 3, 9, 6, 3, 9, 7, 3, 9, 8, 4, 3}, []backend.Token{9}}, // one, three times
		{[]backend.Token{0, 5, 3, 9, 6, 3, 9, 8, 4, 3}, nil},                         // one, twice
		{[]backend.Token{0, 5, 3, 9, 6, 3, 9, 7, 3, 9, 5, 3, 4, 8, 4, 3}, nil},       // one, not always
		{[]backend.Token{1, 2, 3, 4, 5, 6}, nil},
		{[]backend.Token{1, 1}, nil},
	} {
		s := &sequence{tokens: slices.Clone(c.tokens)}
		var d drafts
		d.propose(s, nil, 8, 100)
		got := s.tokens[len(c.tokens):]
		if len(got) != d.n || len(got) < len(c.want) || len(c.want) == 0 && len(got) > 0 || !slices.Equal(got[:len(c.want)], c.want) {
			t.Errorf("behind %v it guesses %v, wanted %v", c.tokens, got, c.want)
		}
	}
}

// TestGuessesThatForcedTextProvesRight: they keep the log-probabilities that their pass
// gave, also where the text ends before the last of them.
func TestGuessesThatForcedTextProvesRight(t *testing.T) {
	for _, stop := range []string{"none", "s:s", "so", "and", "n"} {
		var want *backend.Result
		for _, drafts := range []int{0, 4, 8} {
			e := newFake(t, func(c *Config, m *fakeModel) {
				c.Drafts = drafts
				m.script = func(tokens []backend.Token) backend.Token {
					last := tokens[len(tokens)-3:]
					for at := len(tokens) - 1; at >= 3; at-- {
						if slices.Equal(tokens[at-3:at], last) {
							return tokens[at]
						}
					}
					return -1
				}
			})
			got := mustGenerate(t, e, &backend.Request{
				Turns: []backend.Turn{raw(strings.Repeat("high:the:high:is:so:and:on:", 3))}, MaxTokens: 60, Logprobs: true, Top: 2, Stop: []string{stop},
				Constraint: backend.Constraint{Regex: `(high|low):the:(high|low):is:so:and:on:(high|low):z`},
			})
			if want == nil {
				want = got
			}
			if !reflect.DeepEqual(got.Part, want.Part) || !slices.Equal(got.Logprobs, want.Logprobs) || !reflect.DeepEqual(got.Top, want.Top) {
				t.Errorf("stop at %q, %d drafts: %+v, without %+v", stop, drafts, got, want)
			}
			if n := e.Stats().Rebuilt; n > 0 {
				t.Errorf("stop at %q, %d drafts: what was computed was thrown away %d times", stop, drafts, n)
			}
			if passes(got.Usage) > passes(want.Usage) {
				t.Errorf("stop at %q, %d drafts: %d passes, %d without", stop, drafts, passes(got.Usage), passes(want.Usage))
			}
		}
	}
}

// TestGuessesAreTriedNowAndThen: where none is worth what it costs, one is made after a
// while, the later the more were wrong, and the next at once after a right one.
func TestGuessesAreTriedNowAndThen(t *testing.T) {
	d := drafts{cost: 0.5, width: 8}
	s := &sequence{tokens: []backend.Token{1}}
	guess := func(right bool) {
		s.tokens, d.n = []backend.Token{1, 2}, 1
		d.confirm(s, map[bool]backend.Token{true: 2, false: 3}[right], 1)
	}
	calls := func() (n int) {
		for n = 1; d.worth() == 0; n++ {
			if n > 5000 {
				t.Fatal("no guess is made any more")
			}
		}
		return n
	}
	for range 20 {
		guess(false)
	}
	for _, want := range []int{32, 64, 128, 256, 512, 1024, 1024} {
		if got := calls(); got != want {
			t.Errorf("one is tried after %d passes, want %d", got, want)
		}
		guess(false)
	}
	calls()
	for n := 1; d.odds.worth(d.cost, 8) == 0; n++ {
		if guess(true); n > 40 {
			t.Fatal("right guesses count for nothing")
		}
		if got := calls(); got != 1 {
			t.Errorf("after a right one the next is made after %d passes", got)
		}
	}
}
