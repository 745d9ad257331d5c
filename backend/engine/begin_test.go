package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
)

// broken puts a grammar into the engine that panics as soon as it is used.
func broken(t *testing.T, e *Engine, c backend.Constraint) {
	t.Helper()
	key, _, err := specOf(c)
	if err != nil {
		t.Fatal(err)
	}
	entry := &grammarEntry{key: key, done: make(chan struct{}), g: &grammar.Grammar{}, cancel: func() {}}
	close(entry.done)
	e.grammars.mu.Lock()
	defer e.grammars.mu.Unlock()
	e.grammars.byKey[key] = entry
	entry.el = e.grammars.order.PushBack(entry)
}

func TestPanicOfAGrammarIsAnError(t *testing.T) {
	e := newFake(t, nil)
	c := backend.Constraint{Regex: "[a-z]{9}"}
	broken(t, e, c)
	_, err := e.Generate(context.Background(), &backend.Request{ID: "n", Turns: []backend.Turn{user("x")}, Constraint: c}, nil)
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{user("x")}, MaxTokens: 2}) // the engine goes on
}

func TestCheckConstraint(t *testing.T) {
	e := newFake(t, nil)
	for _, c := range []struct {
		c    backend.Constraint
		want error
	}{
		{backend.Constraint{}, nil},
		{backend.Constraint{Regex: "[a-z]+"}, nil},
		{backend.Constraint{Regex: `(a)\1`}, backend.ErrUnsupported},
		{backend.Constraint{Regex: "("}, backend.ErrInvalid},
		{backend.Constraint{EBNF: "root ::= nothing"}, backend.ErrInvalid},
		{backend.Constraint{JSONSchema: []byte(`{"not":{}}`)}, backend.ErrInvalid},
	} {
		if err := e.CheckConstraint(context.Background(), c.c); !errors.Is(err, c.want) {
			t.Errorf("%+v: got %v, want %v", c.c, err, c.want)
		}
	}
	if e.Stats().Steps != 0 {
		t.Error("checking took a pass")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.CheckConstraint(ctx, backend.Constraint{Regex: "[b-y]+"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}
