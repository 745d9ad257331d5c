package grammar

import (
	"context"
	"errors"
	"testing"
)

func TestSchemaThatLeadsNowhereIsRefused(t *testing.T) {
	for _, schema := range []string{
		`{"type":"array","minItems":2,"uniqueItems":true,"items":{"const":1}}`,
		`{"type":"object","properties":{"a":{"type":"array","minItems":3,"uniqueItems":true,"items":{"enum":[1,2]}}},"required":["a"],"additionalProperties":false}`,
	} {
		g, err := Compile(context.Background(), Spec{JSONSchema: []byte(schema)}, ByteVocab())
		if err == nil {
			// Not seen at once: then the way must end in a clear refusal.
			walkToDeadEnd(t, g)
			continue
		}
		if !errors.Is(err, ErrUnsatisfiable) {
			t.Errorf("%s: %v, want ErrUnsatisfiable", schema, err)
		}
	}
}

// walkToDeadEnd takes the first legal byte again and again: no panic, and in the
// end an empty mask or a byte that is refused.
func walkToDeadEnd(t *testing.T, g *Grammar) {
	t.Helper()
	mask := make([]uint64, g.Vocab().MaskWords())
	s := g.Start()
	for range 200 {
		s.Jump()
		s.Mask(mask)
		next := -1
		for i := range g.Vocab().Size() {
			if mask[i/64]>>(i%64)&1 != 0 {
				next = i
				break
			}
		}
		if next < 0 {
			return
		}
		var err error
		if s, err = s.Accept(int32(next)); err != nil {
			if !errors.Is(err, ErrRejected) {
				t.Fatalf("%v, want ErrRejected", err)
			}
			return
		}
	}
	t.Error("a schema with no value goes on for ever")
}

// A text of several characters does not fit a bound of one, though all of its
// characters can be ended once begun.
func TestNoWordsBeyondTheBound(t *testing.T) {
	for _, schema := range []string{`{"type":"string","maxLength":1,"enum":["ab","a\n"]}`, `{"maxLength":2,"enum":["abc"]}`, `{"type":"string","maxLength":1,"pattern":"^[a-c]{2}$"}`} {
		if _, err := Compile(context.Background(), Spec{JSONSchema: []byte(schema)}, ByteVocab()); !errors.Is(err, ErrUnsatisfiable) {
			t.Errorf("%s: %v, want ErrUnsatisfiable", schema, err)
		}
	}
	g := mustCompile(t, Spec{JSONSchema: []byte(`{"maxLength":1,"enum":["ab","é","\"/",[1,2],{"ab":true}]}`)}, ByteVocab())
	for text, want := range map[string]bool{`"ab"`: false, `"\"/"`: false, `"é"`: true, `[1,2]`: true, `{"ab":true}`: true} {
		if g.Match([]byte(text)) != want {
			t.Errorf("%s: accepted %v", text, !want)
		}
	}
	if s, err := g.Start().AcceptBytes([]byte(`"`)); err != nil || len(s.Forced()) == 0 {
		t.Errorf("after a quote: %q, %v", s.Forced(), err)
	}
}
