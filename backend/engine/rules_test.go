package engine

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// alphabetFake writes the letters of the alphabet after each other.
func alphabetFake(tb testing.TB, drafts int) *Engine {
	return newFake(tb, func(c *Config, m *fakeModel) {
		c.Drafts = drafts
		m.script = func(tokens []backend.Token) backend.Token {
			last := tokens[len(tokens)-1]
			if last >= 'a' && last < 'z' {
				return last + 1
			}
			return 'a'
		}
	})
}

func letters(text string) (ids []backend.Token) {
	for i := range len(text) {
		ids = append(ids, backend.Token(text[i]))
	}
	return ids
}

func TestTokenRules(t *testing.T) {
	for _, drafts := range []int{0, 6} {
		t.Run(fmt.Sprintf("%d drafts", drafts), func(t *testing.T) { testTokenRules(t, alphabetFake(t, drafts)) })
	}
}

func testTokenRules(t *testing.T, e *Engine) {
	ends := func(r *backend.Request) { // the likeliest token is the end
		r.IgnoreEOS, r.Sampling.LogitBias = true, map[backend.Token]float64{imEnd: 1e6}
	}
	for _, x := range []struct {
		name   string
		prompt string // "a" if empty
		rules  backend.TokenRules
		edit   func(r *backend.Request)
		text   string
		never  string // that is not in the text
		stop   backend.Token
		err    error
	}{
		{name: "none", text: "bcdef"},
		{name: "stop", rules: backend.TokenRules{Stop: letters("xd")}, text: "bc", stop: 'd'},
		{name: "stop, but not so soon", rules: backend.TokenRules{Stop: letters("e")}, edit: func(r *backend.Request) { r.MinTokens = 5 }, text: "bcd*", never: "e"},
		{name: "an end token that nobody named is ignored", edit: ends, text: "bcdef"},
		{name: "one that is a stop is not", rules: backend.TokenRules{Stop: []backend.Token{imEnd}}, edit: ends, stop: imEnd},
		{name: "nor with others", rules: backend.TokenRules{Stop: []backend.Token{imEnd, 'x'}, Allowed: []backend.Token{imEnd, 'q'}}, edit: ends, stop: imEnd},
		{name: "but not so soon", rules: backend.TokenRules{Stop: []backend.Token{imEnd}}, edit: func(r *backend.Request) { ends(r); r.MinTokens = 2 }, text: "bc", stop: imEnd},
		{name: "nor in a constraint", rules: backend.TokenRules{Stop: []backend.Token{imEnd}}, edit: func(r *backend.Request) { ends(r); r.MinTokens, r.Constraint.Regex = 2, "1*" }, text: "11", stop: imEnd},
		{name: "ignoring the end does not ignore a stop", rules: backend.TokenRules{Stop: letters("d")}, edit: func(r *backend.Request) { r.IgnoreEOS = true }, text: "bc", stop: 'd'},
		{name: "allowed", rules: backend.TokenRules{Allowed: letters("q")}, text: "qqqqq"},
		{name: "one banned", rules: backend.TokenRules{Banned: [][]backend.Token{letters("b")}}, text: "*", never: "b"},
		{name: "a sequence banned", rules: backend.TokenRules{Banned: [][]backend.Token{letters("cd")}}, text: "bc*", never: "cd"},
		{name: "a sequence banned that the prompt has", prompt: "efghijkefg", rules: backend.TokenRules{Banned: [][]backend.Token{letters("hi")}}, text: "h*", never: "hi"},
		{name: "a longer one", prompt: "efghijkefg", rules: backend.TokenRules{Banned: [][]backend.Token{letters("hij")}}, text: "hi*", never: "hij"},
		{name: "a sequence banned that is not there", rules: backend.TokenRules{Banned: [][]backend.Token{letters("xd")}}, text: "bcdef"},
		{name: "stop in a constraint", rules: backend.TokenRules{Stop: letters("3")}, edit: func(r *backend.Request) { r.Constraint.Regex = "12345" }, text: "12", stop: '3'},
		{name: "constraint and rule exclude each other", rules: backend.TokenRules{Allowed: letters("9")}, edit: func(r *backend.Request) { r.Constraint.Regex = "12345" }, err: backend.ErrInvalid},
		{name: "no such token", rules: backend.TokenRules{Stop: []backend.Token{1 << 20}}, err: backend.ErrInvalid},
		{name: "negative", rules: backend.TokenRules{Allowed: []backend.Token{-1}}, err: backend.ErrInvalid},
		{name: "nothing allowed", rules: backend.TokenRules{Allowed: []backend.Token{}}, err: backend.ErrInvalid},
		{name: "nothing banned", rules: backend.TokenRules{Banned: [][]backend.Token{{}}}, err: backend.ErrInvalid},
	} {
		for _, logprobs := range []bool{false, true} {
			prompt := cmp.Or(x.prompt, "a")
			req := &backend.Request{ID: x.name, Turns: []backend.Turn{{Parts: []backend.Part{{Text: prompt}}}}, MaxTokens: 5, Tokens: x.rules, Logprobs: logprobs}
			if x.edit != nil {
				x.edit(req)
			}
			res, err := e.Generate(t.Context(), req, nil)
			if !errors.Is(err, x.err) {
				t.Errorf("%s: %v", x.name, err)
			}
			if err != nil {
				continue
			}
			got, want := res.Part.Text, x.text
			if n := len(want); n > 0 && want[n-1] == '*' { // whatever it is, it is not what was forbidden
				if got[:n-1] != want[:n-1] || strings.Contains(got, x.never) {
					t.Errorf("%s: %q, want %q", x.name, got, want)
				}
			} else if got != want {
				t.Errorf("%s: %q, want %q", x.name, got, want)
			}
			if (res.StopToken != nil) != (x.stop != 0) || res.StopToken != nil && *res.StopToken != x.stop {
				t.Errorf("%s: stopped by %v", x.name, res.StopToken)
			}
			if logprobs && len(res.Logprobs) != len(res.Part.Tokens) {
				t.Errorf("%s: %d log-probabilities of %d tokens", x.name, len(res.Logprobs), len(res.Part.Tokens))
			}
		}
	}
	if st := e.Stats(); st.Held != 0 {
		t.Errorf("%+v", st)
	}
}

// Whoever follows a request is told of each pass that it took part in.
func TestTrace(t *testing.T) {
	e := alphabetFake(t, 0)
	var steps []backend.Step
	ctx := backend.WithTrace(t.Context(), &backend.Trace{Step: func(s backend.Step) { steps = append(steps, s) }})
	res, err := e.Generate(ctx, &backend.Request{ID: "r", Turns: []backend.Turn{{Parts: []backend.Part{{Text: "a long prompt"}}}}, MaxTokens: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tokens := 0
	for i, s := range steps {
		tokens += s.Tokens
		if s.Request != "r" || s.End.Before(s.Start) || s.Batch != s.Tokens || s.Sequences != 1 || s.Prompt != (i == 0) {
			t.Errorf("step %d: %+v", i, s)
		}
	}
	if span := res.Usage.Passes[0]; tokens != res.Usage.ComputedTokens || steps[0].Engine != span.Engine || steps[0].Pass != span.From || steps[len(steps)-1].Pass != span.To {
		t.Errorf("%d tokens in %d steps, usage %+v", tokens, len(steps), res.Usage)
	}
}
