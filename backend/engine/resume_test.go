package engine

import (
	"context"
	"slices"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// TestResumeEqualsUnbroken goes on with a generation from every point at which
// it can have been lost, on another engine.
func TestResumeEqualsUnbroken(t *testing.T) {
	for name, req := range map[string]backend.Request{
		"greedy":    {MaxTokens: 24, IgnoreEOS: true},
		"seeded":    {MaxTokens: 24, Sampling: backend.Sampling{Temperature: 1, Seed: 7}},
		"penalties": {MaxTokens: 24, Sampling: backend.Sampling{RepetitionPenalty: 1.3, FrequencyPenalty: 0.5}},
		"regex":     {Constraint: backend.Constraint{Regex: `[a-c]{3}-fixed text-[0-9]{6}`}},
		"schema":    {Constraint: backend.Constraint{JSONSchema: []byte(`{"type":"object","properties":{"reason":{"enum":["one","two"]},"n":{"type":"integer"}},"required":["reason","n"],"additionalProperties":false}`)}, MaxTokens: 60},
		"stop":      {MaxTokens: 40, Stop: []string{"e", "zz"}},
	} {
		t.Run(name, func(t *testing.T) {
			req.ID, req.Turns = name, []backend.Turn{user("say something")}
			var ids []backend.Token
			want, err := newFake(t, nil).Generate(context.Background(), &req, func(d backend.Delta) { ids = append(ids, d.Tokens...) })
			if err != nil {
				t.Fatal(err)
			}
			if len(ids) == 0 {
				t.Fatal("the model said nothing")
			}
			e := newFake(t, nil)
			for cut := range len(ids) + 1 {
				again := req
				again.Resume = ids[:cut]
				var text string
				got, err := e.Generate(context.Background(), &again, func(d backend.Delta) { text += d.Text })
				if err != nil {
					t.Fatalf("cut at %d: %v", cut, err)
				}
				if got.Part.Text != want.Part.Text || !slices.Equal(got.Part.Tokens, want.Part.Tokens) || got.Finish != want.Finish || got.Matched != want.Matched {
					t.Fatalf("cut at %d: %+v, want %+v", cut, got, want)
				}
				if text != want.Part.Text {
					t.Fatalf("cut at %d: streamed %q, want %q", cut, text, want.Part.Text)
				}
				if g, w := got.Usage, want.Usage; g.SampledTokens != w.SampledTokens || g.ForcedTokens != w.ForcedTokens {
					t.Fatalf("cut at %d: usage %+v, want %+v", cut, g, w)
				}
			}
		})
	}
}

// TestResumeSavesPasses: what was generated is fed like a prompt, in one pass.
func TestResumeSavesPasses(t *testing.T) {
	req := &backend.Request{Turns: []backend.Turn{user("go on")}, MaxTokens: 32, IgnoreEOS: true}
	var ids []backend.Token
	if _, err := newFake(t, nil).Generate(context.Background(), req, func(d backend.Delta) { ids = append(ids, d.Tokens...) }); err != nil {
		t.Fatal(err)
	}
	e := newFake(t, nil)
	again := *req
	again.Resume = ids[:30]
	mustGenerate(t, e, &again)
	if n := e.Stats().Steps; n > 4 {
		t.Fatalf("%d passes for two tokens", n)
	}
}

// TestResumeOfAnotherGenerationIsNotUsed: ids that do not fit are dropped.
func TestResumeOfAnotherGenerationIsNotUsed(t *testing.T) {
	e := newFake(t, nil)
	req := &backend.Request{Turns: []backend.Turn{user("x")}, Constraint: backend.Constraint{Regex: `[0-9]{4}`}}
	want := mustGenerate(t, e, req)
	for _, ids := range [][]backend.Token{{-1}, {1 << 30}, {imEnd}, {3, 3, 3, 3, 3, 3, 3, 3, 3}} {
		again := *req
		again.Resume = ids
		if got := mustGenerate(t, e, &again); len(got.Part.Text) != len(want.Part.Text) {
			t.Errorf("%v: %q", ids, got.Part.Text)
		}
	}
}

// TestResumeKeepsTheRules: what the rules about tokens forbid is not resumed.
func TestResumeKeepsTheRules(t *testing.T) {
	e := alphabetFake(t, 0)
	for _, rules := range []backend.TokenRules{{Stop: letters("d")}, {Allowed: letters("bce")}, {Banned: [][]backend.Token{letters("cd")}}} {
		req := &backend.Request{Turns: []backend.Turn{raw("a")}, MaxTokens: 5, IgnoreEOS: true, Tokens: rules}
		want := mustGenerate(t, e, req)
		again := *req
		again.Resume = letters("bcde")
		if got := mustGenerate(t, e, &again); got.Part.Text != want.Part.Text {
			t.Errorf("%+v: %q, want %q", rules, got.Part.Text, want.Part.Text)
		}
	}
}
