package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// picky refuses constraints before any call.
type picky struct {
	*puppet.Model
	refuse func(c backend.Constraint) error
}

func (p picky) CheckConstraint(ctx context.Context, c backend.Constraint) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.refuse(c)
}

func TestConstraintsAreCheckedBeforeTheFirstCall(t *testing.T) {
	g, err := lang.Decode([]byte(`coppice: 1
name: p
inputs: {a: string}
steps:
  - user: x
  - gen: {name: first}
  - gen: {name: fine, regex: "[a-z]+"}
  - gen: {name: back, regex: '(a)\1'}
  - when:
      name: w
      if: a == ""
      then:
        - json: {name: none, schema: {not: {}}}
        - gen: {name: gram, ebnf: 'root ::= x'}
`), "p.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := puppet.New()
	m.OnAny().Reply("ok")
	be := picky{m, func(c backend.Constraint) error {
		switch {
		case c.Regex == `(a)\1`:
			return fmt.Errorf("%w: back reference", backend.ErrUnsupported)
		case c.EBNF != "":
			return fmt.Errorf("%w: no rule x", backend.ErrInvalid)
		case len(c.JSONSchema) > 0:
			return fmt.Errorf("%w: nothing satisfies %s", backend.ErrInvalid, c.JSONSchema)
		}
		return nil
	}}
	report, err := runtime.RunGraph(t.Context(), be, g, nil, lang.Args{"a": "b"})
	if err == nil || report != nil || len(m.Log()) != 0 {
		t.Fatalf("report %+v, error %v, %d calls", report, err, len(m.Log()))
	}
	want := `p.yaml:8: back: not supported by this backend: back reference
p.yaml:13: w/then/none: invalid request: nothing satisfies {"not":{}}
p.yaml:14: w/then/gram: invalid request: no rule x`
	if err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	var node *runtime.NodeError
	if !errors.Is(err, backend.ErrUnsupported) || !errors.Is(err, backend.ErrInvalid) || !errors.As(err, &node) || node.Node != "back" {
		t.Errorf("%#v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := runtime.RunGraph(ctx, be, g, nil, lang.Args{"a": "b"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestPatternCutAtItsLimitIsAnErrorOfItsNode(t *testing.T) {
	for _, c := range []struct {
		limits, reply string
		want          string // of the error; empty: none
	}{
		{`regex: '[a-z]{20,30}END', max_tokens: 3`, "abcdefghijklmnopqrstuvEND", "p.yaml:5: v: cut at the length limit before the end of its pattern (max_tokens 3, 3 bytes came): raise the limit or ask for less"},
		{`ebnf: 'root ::= "a" "b" "c" "d"', max_tokens: 2`, "abcd", "p.yaml:5: v: cut at the length limit before the end of its grammar (max_tokens 2, 2 bytes came): raise the limit or ask for less"},
		{`regex: '[a-z]{2,9}', max_tokens: 3`, "abcdef", ""}, // may end there
		{`ebnf: 'root ::= "a"+', max_tokens: 2`, "aaaa", ""},
		{`max_tokens: 2`, "aaaa", ""},
	} {
		g, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:\n  - user: x\n  - gen: {name: v, "+c.limits+"}\n"), "p.yaml")
		if err != nil {
			t.Fatal(err)
		}
		m := puppet.New()
		m.OnAny().Reply(c.reply)
		_, err = runtime.RunGraph(t.Context(), m, g, nil, nil)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.limits, err)
			}
			continue
		}
		if !errors.Is(err, runtime.ErrTruncated) || err.Error() != c.want {
			t.Errorf("%s: %v", c.limits, err)
		}
	}
}

// full is a model whose context is full.
type full struct{ *puppet.Model }

func (f full) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	r, err := f.Model.Generate(ctx, req, emit)
	if err == nil {
		r.ContextFull, r.Usage.PromptTokens = 8192, 8190
	}
	return r, err
}

func TestFullContextIsNoMatterOfMaxTokens(t *testing.T) {
	g, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:\n  - user: x\n  - json: {name: v, max_tokens: 2, schema: {type: string}}\n"), "p.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := puppet.New()
	m.OnAny().Reply(`"abcdef"`)
	_, err = runtime.RunGraph(t.Context(), full{m}, g, nil, nil)
	want := "p.yaml:5: v: cut at the length limit inside the JSON value (2 bytes came): the context of 8192 tokens is full, and 8190 of them are the prompt: shorten the prompt, ask for less, or use a model with a longer context"
	if !errors.Is(err, runtime.ErrTruncated) || err.Error() != want {
		t.Error(err)
	}
}

func TestLabelsOfBranchesStayOnTheirLine(t *testing.T) {
	err := &runtime.BranchError{Branch: "f[0]", Label: "a\nb: fake", Err: errors.New("no")}
	if err.Error() != "branch f[0] (a b: fake): no" {
		t.Error(err)
	}
}

func TestErrorNamesItsNodeOnce(t *testing.T) {
	g, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:\n  - user: x\n  - gen: {name: b}\n"), "p.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := puppet.New()
	m.OnAny().Fail(fmt.Errorf("b: %w", backend.ErrUnsupported)) // as engines name their requests
	_, err = runtime.RunGraph(t.Context(), m, g, nil, nil)
	if !errors.Is(err, backend.ErrUnsupported) || strings.Count(err.Error(), "b: ") != 1 || !strings.HasPrefix(err.Error(), "p.yaml:5: b: not") {
		t.Error(err)
	}
}

// A number that JSON has and Go has not.
func TestNumberBeyondEveryFloatIsAnErrorOfItsNode(t *testing.T) {
	for _, schema := range []string{`{type: number}`, `{type: object, properties: {f: {type: number}}, required: [f]}`, `{}`} {
		g, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:\n  - user: x\n  - gen: {name: before}\n  - user: y\n  - json: {name: v, schema: "+schema+"}\n  - return: v\n"), "p.yaml")
		if err != nil {
			t.Fatal(err)
		}
		m := puppet.New()
		m.OnID("before").Reply("kept")
		m.OnAny().Reply(map[bool]string{true: `{"f":-1e400}`, false: "1e400"}[strings.Contains(schema, "object")])
		path := filepath.Join(t.TempDir(), "journal")
		report, err := runtime.RunGraph(t.Context(), m, g, nil, nil, runtime.WithJournal(path))
		again, aerr := runtime.Resume(t.Context(), m, path, nil)
		if calls := len(m.Log()); calls != 2 {
			t.Errorf("%d calls", calls)
		}
		for _, got := range []struct {
			report *runtime.Report
			err    error
		}{{report, err}, {again, aerr}} {
			var node *runtime.NodeError
			if !errors.As(got.err, &node) || node.Task != "v" || !strings.HasPrefix(got.err.Error(), "p.yaml:7: v: ") || !strings.Contains(got.err.Error(), "1e400 is out of range") {
				t.Errorf("%s: %v", schema, got.err)
			}
			if got.report == nil || got.report.Usage.SampledTokens == 0 || !strings.Contains(string(got.report.Variables), `"before":"kept"`) {
				t.Errorf("%s: what came before is lost: %+v", schema, got.report)
			}
		}
	}
}
