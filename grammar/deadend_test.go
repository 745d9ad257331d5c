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
