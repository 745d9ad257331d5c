package grammar

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
)

func TestCache(t *testing.T) {
	v := ByteVocab()
	c := NewCache(1 << 20)
	ctx := context.Background()
	a, err := c.Compile(ctx, testSpecs["triage"], v)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := c.Compile(ctx, testSpecs["triage"], v); a != b {
		t.Error("the second compile made another grammar")
	}
	loose := testSpecs["triage"]
	loose.AnyOrder = true
	if b, _ := c.Compile(ctx, loose, v); a == b {
		t.Error("another spec gave the same grammar")
	}
	if _, err := c.Compile(ctx, Spec{Regex: "("}, v); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	for i := range 200 {
		if _, err := c.Compile(ctx, Spec{Regex: fmt.Sprintf("[a-z]{%d}", i+1)}, v); err != nil {
			t.Fatal(err)
		}
		if _, bytes := c.Stats(); bytes > 1<<20 {
			t.Fatalf("%d bytes are kept", bytes)
		}
	}
	if n, _ := c.Stats(); n == 0 || n > 150 {
		t.Errorf("%d grammars are kept", n)
	}
	var wg sync.WaitGroup
	got := make([]*Grammar, 8)
	for i := range got {
		wg.Go(func() { got[i], _ = c.Compile(ctx, testSpecs["union"], v) })
	}
	wg.Wait()
	for _, g := range got {
		if g == nil || g != got[0] {
			t.Error("calls at one time made several grammars")
		}
	}
}
