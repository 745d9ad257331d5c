package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// TestChoicesTakeNoPass: values of enums and booleans are decided in the pass
// before, and nothing else changes.
func TestChoicesTakeNoPass(t *testing.T) {
	const schema = `{"type":"object","properties":{"level":{"enum":["high","low","middle"]},"ok":{"type":"boolean"},"kind":{"enum":["in","ing","is","the end"]},"list":{"type":"array","items":{"enum":["ab","abc"]},"minItems":1,"maxItems":4},"note":{"type":"string","maxLength":6}},"required":["level","ok","kind","list","note"],"additionalProperties":false}`
	total, without := 0, 0
	for seed := range uint64(40) {
		req := backend.Request{
			Turns:      []backend.Turn{user(fmt.Sprint("what is it? ", seed))},
			Constraint: backend.Constraint{JSONSchema: []byte(schema)},
		}
		switch seed % 4 {
		case 1:
			req.Sampling = backend.Sampling{Temperature: 3, Seed: seed}
		case 2:
			req.MaxTokens = 3 + int(seed)
		case 3:
			req.Stop = []string{`"ok":t`, "is", "low"}
		}
		plain := mustGenerate(t, newFake(t, nil), &req)
		e := newFake(t, func(c *Config, _ *fakeModel) { c.Choices = 100 })
		r := mustGenerate(t, e, &req)
		if r.Part.Text != plain.Part.Text || !slices.Equal(r.Part.Tokens, plain.Part.Tokens) || r.Finish != plain.Finish || r.Matched != plain.Matched {
			t.Fatalf("seed %d: with choices %+v\nwithout %+v", seed, r, plain)
		}
		if got, want := passes(r.Usage), passes(plain.Usage)-int(e.Stats().Chosen); got != want {
			t.Errorf("seed %d: %d passes, %d without choices, %d choices", seed, got, passes(plain.Usage), e.Stats().Chosen)
		}
		total += passes(r.Usage)
		without += passes(plain.Usage)
	}
	t.Logf("%d passes, %d without", total, without)
	if 4*total > 3*without {
		t.Errorf("%d passes of %d: little was saved", total, without)
	}
}

// TestChoicesOfAModel is the same with a real forward pass, whose logits must
// be the same bits in any row.
func TestChoicesOfAModel(t *testing.T) {
	m := tinyModel(t, 2)
	chosen := uint64(0)
	for i, schema := range jumpSchemas {
		req := backend.Request{Turns: []backend.Turn{user(fmt.Sprint("number ", i))}, Constraint: backend.Constraint{JSONSchema: []byte(schema)}, MaxTokens: 90}
		open := func(choices int) *Engine {
			return newFake(t, func(c *Config, _ *fakeModel) { c.Model, c.Choices = m, choices })
		}
		plain := mustGenerate(t, open(0), &req)
		e := open(40)
		r := mustGenerate(t, e, &req)
		if !slices.Equal(r.Part.Tokens, plain.Part.Tokens) {
			t.Errorf("%s: with choices %q, without %q", schema, r.Part.Text, plain.Part.Text)
		}
		chosen += e.Stats().Chosen
	}
	if chosen == 0 {
		t.Error("no choice was decided")
	}
	t.Logf("%d choices", chosen)
}

// TestChoicesOfWhichSomeFindNoPage: where only some options get a row, the one that
// would have decided what follows may be missing.
func TestChoicesOfWhichSomeFindNoPage(t *testing.T) {
	const pattern = `[ab]-[cd]( and then comes a long text, the longer the better| z)[xy]`
	for pages := 4; pages < 12; pages++ {
		e := newFake(t, func(c *Config, _ *fakeModel) { c.Choices, c.Pages = 400, pages })
		for n := range 40 {
			req := backend.Request{
				Turns:      []backend.Turn{raw(longText(n + 1))},
				Constraint: backend.Constraint{Regex: pattern},
				Sampling:   backend.Sampling{Temperature: 3, Seed: uint64(n)},
			}
			want := mustGenerate(t, newFake(t, func(c *Config, _ *fakeModel) { c.Pages = pages }), &req)
			got, err := e.Generate(t.Context(), &req, nil)
			if err != nil {
				t.Fatalf("%d pages, prompt of %d bytes: %v", pages, n+1, err)
			}
			if got.Part.Text != want.Part.Text {
				t.Fatalf("%d pages, prompt of %d bytes: %q, without choices %q", pages, n+1, got.Part.Text, want.Part.Text)
			}
		}
	}
}
