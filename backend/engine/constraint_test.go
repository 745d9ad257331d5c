package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
)

const verdictSchema = `{"type":"object","properties":{"the reason":{"enum":["high","low","in the"]},"is it":{"type":"boolean"},"names":{"type":"array","items":{"type":"string","maxLength":4},"maxItems":2}},"required":["the reason","is it","names"],"additionalProperties":false}`

// jumpAndNot runs req with and without jump-forward, on fresh engines.
func jumpAndNot(t *testing.T, req backend.Request, open func() *Engine) (jump, not *backend.Result) {
	t.Helper()
	jump = mustGenerate(t, open(), &req)
	req.NoJump = true
	not = mustGenerate(t, open(), &req)
	if jump.Part.Text != not.Part.Text || !slices.Equal(jump.Part.Tokens, not.Part.Tokens) || jump.Finish != not.Finish || jump.Matched != not.Matched {
		t.Errorf("with jump-forward %+v\nwithout %+v", jump, not)
	}
	j, n := jump.Usage, not.Usage
	if n.ForcedTokens != 0 || j.ForcedTokens+j.SampledTokens != n.SampledTokens || j.Without != n.Without {
		t.Errorf("usage with jump-forward %+v, without %+v", j, n)
	}
	return jump, not
}

func passes(u backend.Usage) (n int) {
	for _, s := range u.Passes {
		n += int(s.To - s.From + 1)
	}
	return n
}

func TestJumpForwardChangesOnlyTheWork(t *testing.T) {
	for seed := range uint64(30) {
		req := backend.Request{
			Turns:      []backend.Turn{user(fmt.Sprint("what is it? ", seed))},
			Constraint: backend.Constraint{JSONSchema: []byte(verdictSchema)},
		}
		switch seed % 4 {
		case 1:
			req.Sampling = backend.Sampling{Temperature: 3, Seed: seed}
		case 2:
			req.MaxTokens = 3 + int(seed)
		case 3:
			req.Stop = []string{`"is it":t`, "names", "low"}
		}
		jump, not := jumpAndNot(t, req, func() *Engine { return newFake(t, nil) })
		if jump.Usage.ForcedTokens == 0 || passes(jump.Usage) >= passes(not.Usage) {
			t.Errorf("seed %d: nothing was saved: %+v, %+v", seed, jump.Usage, not.Usage)
		}
		if jump.Finish == backend.FinishStop && jump.Matched == "" && !json.Valid([]byte(jump.Part.Text)) {
			t.Errorf("seed %d: %q", seed, jump.Part.Text)
		}
		// One pass a token that was not forced, and none after the last.
		if got := passes(jump.Usage); got > jump.Usage.SampledTokens+1 {
			t.Errorf("seed %d: %d passes for %+v", seed, got, jump.Usage)
		}
	}
}

func TestForcedFromEndToEndNeedsNoPass(t *testing.T) {
	e := newFake(t, nil)
	r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{user("x")}, Constraint: backend.Constraint{Choices: []string{"the high"}}})
	if r.Part.Text != "the high" || r.Finish != backend.FinishStop || e.Stats().Steps != 0 || r.Usage.ForcedTokens != len(r.Part.Tokens) {
		t.Errorf("%+v after %d passes", r, e.Stats().Steps)
	}
}

func TestForcedDeltasSayso(t *testing.T) {
	e := newFake(t, nil)
	var text strings.Builder
	forced, sampled := 0, 0
	r, err := e.Generate(context.Background(), &backend.Request{
		Turns: []backend.Turn{user("x")}, Constraint: backend.Constraint{JSONSchema: []byte(verdictSchema)},
	}, func(d backend.Delta) {
		text.WriteString(d.Text)
		if d.Origin == backend.Forced {
			forced += len(d.Tokens)
		} else {
			sampled += len(d.Tokens)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if text.String() != r.Part.Text || forced != r.Usage.ForcedTokens || sampled != r.Usage.SampledTokens {
		t.Errorf("stream %q, %d forced, %d sampled; result %+v", text.String(), forced, sampled, r)
	}
}

func TestGrammarWinsOverMinTokens(t *testing.T) {
	for _, schema := range []string{`{"type":"boolean"}`, `{"const":"in"}`, `{"enum":["low"]}`} {
		for _, noJump := range []bool{false, true} {
			e := newFake(t, nil)
			r := mustGenerate(t, e, &backend.Request{
				Turns: []backend.Turn{user("x")}, MinTokens: 8, IgnoreEOS: true, NoJump: noJump,
				Constraint: backend.Constraint{JSONSchema: []byte(schema)},
			})
			if r.Finish != backend.FinishStop || !json.Valid([]byte(r.Part.Text)) {
				t.Errorf("%s: %+v", schema, r)
			}
		}
	}
}

// TestMinTokensWithoutConstraint: the model wants to end at once.
func TestMinTokensWithoutConstraint(t *testing.T) {
	e := newFake(t, func(_ *Config, m *fakeModel) {
		m.script = func([]backend.Token) backend.Token { return imEnd }
	})
	for _, n := range []int{0, 1, 5} {
		r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{user("x")}, MinTokens: n, MaxTokens: 20})
		if len(r.Part.Tokens) != n || r.Finish != backend.FinishStop || passes(r.Usage) != n+1 || r.Usage.Without.ForwardPasses != n+1 {
			t.Errorf("min %d: %+v", n, r)
		}
	}
}

// otherEnd is a template whose turns end with a token that the tokenizer does
// not count among its end tokens.
type otherEndTokenizer struct{ fakeTokenizer }

func (otherEndTokenizer) EndTokens() []backend.Token { return []backend.Token{bosToken} }

func TestTemplateEndTokenStops(t *testing.T) {
	e := newFake(t, func(c *Config, m *fakeModel) {
		c.Tokenizer = otherEndTokenizer{}
		m.script = func(tokens []backend.Token) backend.Token {
			if tokens[len(tokens)-1] == 'y' {
				return imEnd
			}
			return 'y'
		}
	})
	r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{user("x")}, Constraint: backend.Constraint{Regex: "y+|no"}})
	if r.Finish != backend.FinishStop || r.Part.Text != "y" {
		t.Errorf("%+v", r)
	}
}

func TestBadConstraints(t *testing.T) {
	e := newFake(t, nil)
	ask := func(c backend.Constraint) error {
		_, err := e.Generate(context.Background(), &backend.Request{ID: "v", Turns: []backend.Turn{user("x")}, MaxTokens: 5, Constraint: c}, nil)
		return err
	}
	good := backend.Constraint{Regex: "(yes|no)"}
	for _, bad := range []backend.Constraint{
		{Regex: "[z-a]"}, {Regex: "("}, {JSONSchema: []byte("{")}, {JSONSchema: []byte(`{"type":"robot"}`)},
		{JSONSchema: []byte(`{"enum":[]}`)},
	} {
		if err := ask(good); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := ask(bad); !errors.Is(err, backend.ErrInvalid) && !errors.Is(err, backend.ErrUnsupported) || !strings.HasPrefix(err.Error(), "v: ") {
				t.Errorf("%+v: %v", bad, err)
			}
		}
	}
	if e.fake().passes > 100 {
		t.Error(e.fake().passes)
	}
}

func TestNoLegalTokenFails(t *testing.T) {
	if _, err := newSampler(backend.Sampling{}, nil).pick(make([]float32, 10), make([]uint64, 1), 0); !errors.Is(err, errNoLegal) {
		t.Error(err)
	}
}

func TestGrammarsAreCompiledOnce(t *testing.T) {
	e := newFake(t, func(_ *Config, m *fakeModel) { m.before = func(*model.Batch) error { return nil } })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 5 {
				c := backend.Constraint{Regex: fmt.Sprintf("(yes|no){%d}", i+1)}
				if _, err := e.grammars.get(context.Background(), c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(e.grammars.byKey); n != 5 {
		t.Errorf("%d grammars kept, want 5", n)
	}
	e.grammars.max = 3
	for i := range 20 {
		if _, err := e.grammars.get(context.Background(), backend.Constraint{Choices: []string{"a", fmt.Sprint(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(e.grammars.byKey); n != 3 || e.grammars.order.Len() != 3 {
		t.Errorf("%d grammars kept, want 3", n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.grammars.get(ctx, backend.Constraint{Regex: "new"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := e.grammars.get(context.Background(), backend.Constraint{Regex: "new"}); err != nil {
		t.Errorf("after a cancelled one: %v", err)
	}
}
