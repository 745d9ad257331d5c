package engine

import (
	"errors"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// alphabetFake writes the letters of the alphabet after each other.
func alphabetFake(tb testing.TB) *Engine {
	return newFake(tb, func(c *Config, m *fakeModel) {
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
	e := alphabetFake(t)
	turns := []backend.Turn{{Parts: []backend.Part{{Text: "a"}}}}
	for _, x := range []struct {
		name  string
		rules backend.TokenRules
		edit  func(r *backend.Request)
		text  string
		stop  backend.Token
		err   error
	}{
		{name: "none", text: "bcdef"},
		{name: "stop", rules: backend.TokenRules{Stop: letters("xd")}, text: "bc", stop: 'd'},
		{name: "stop, but not so soon", rules: backend.TokenRules{Stop: letters("e")}, edit: func(r *backend.Request) { r.MinTokens = 5 }, text: "bcd*"},
		{name: "ignoring the end does not ignore a stop", rules: backend.TokenRules{Stop: letters("d")}, edit: func(r *backend.Request) { r.IgnoreEOS = true }, text: "bc", stop: 'd'},
		{name: "allowed", rules: backend.TokenRules{Allowed: letters("q")}, text: "qqqqq"},
		{name: "one banned", rules: backend.TokenRules{Banned: [][]backend.Token{letters("b")}}, text: "*"},
		{name: "a sequence banned", rules: backend.TokenRules{Banned: [][]backend.Token{letters("cd")}}, text: "bc*"},
		{name: "a sequence banned that is not there", rules: backend.TokenRules{Banned: [][]backend.Token{letters("xd")}}, text: "bcdef"},
		{name: "stop in a constraint", rules: backend.TokenRules{Stop: letters("3")}, edit: func(r *backend.Request) { r.Constraint.Regex = "12345" }, text: "12", stop: '3'},
		{name: "constraint and rule exclude each other", rules: backend.TokenRules{Allowed: letters("9")}, edit: func(r *backend.Request) { r.Constraint.Regex = "12345" }, err: backend.ErrInvalid},
		{name: "no such token", rules: backend.TokenRules{Stop: []backend.Token{1 << 20}}, err: backend.ErrInvalid},
		{name: "negative", rules: backend.TokenRules{Allowed: []backend.Token{-1}}, err: backend.ErrInvalid},
		{name: "nothing allowed", rules: backend.TokenRules{Allowed: []backend.Token{}}, err: backend.ErrInvalid},
		{name: "nothing banned", rules: backend.TokenRules{Banned: [][]backend.Token{{}}}, err: backend.ErrInvalid},
	} {
		for _, logprobs := range []bool{false, true} {
			req := &backend.Request{ID: x.name, Turns: turns, MaxTokens: 5, Tokens: x.rules, Logprobs: logprobs}
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
				if got[:n-1] != want[:n-1] || got == "bcdef" {
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
	e := alphabetFake(t)
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
