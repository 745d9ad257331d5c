package grammar

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMasksOfHeavyPatterns has patterns with a state of its own for almost every
// text: masks leave tokens out but let none in wrongly, every byte is offered
// that may come, masks are the same whoever asked before, and states are not
// kept for ever.
func TestMasksOfHeavyPatterns(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	var tokens [][]byte
	for b := range 256 {
		tokens = append(tokens, []byte{byte(b)})
	}
	for range 900 {
		word := make([]byte, 2+r.IntN(12))
		for i := range word {
			word[i] = "abcefx"[r.IntN(6)]
		}
		tokens = append(tokens, word)
	}
	vocab, err := NewVocab(tokens, VocabOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		schema string
		leaves bool // tokens out
	}{
		{`{"type":"string","not":{"pattern":"(a|e).{40}(b|c)"},"minLength":80}`, true},
		{`{"type":"string","allOf":[{"pattern":"a.{20}b"},{"pattern":"c.{20}e"},{"pattern":"e.{20}f"}],"minLength":80}`, false},
	} {
		schema := c.schema
		if testing.Short() && c.leaves {
			continue // the one that takes longer
		}
		compile := func() *Grammar {
			g, err := Compile(context.Background(), Spec{JSONSchema: []byte(schema)}, vocab)
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		bits, again := make([]uint64, vocab.MaskWords()), make([]uint64, vocab.MaskWords())
		next := func(step int) int32 {
			for id := range int32(len(tokens)) {
				if id = (id + r.Int32N(int32(len(tokens)))) % int32(len(tokens)); step > 0 && has(bits, id) && tokens[id][0] != '"' {
					return id
				}
			}
			return '"'
		}
		g := compile()
		s, left := g.Start(), 0
		for step := range 4 {
			s.Mask(bits)
			for id, token := range tokens {
				if step > 1 && id%8 != 0 {
					continue // all tokens at the first places only
				}
				p, _ := g.m.walk(s.at, token)
				switch {
				case has(bits, int32(id)) && p == nil:
					t.Fatalf("%s: step %d: %q is let in", schema, step, token)
				case !has(bits, int32(id)) && p != nil && len(token) == 1:
					t.Fatalf("%s: step %d: byte %q is left out", schema, step, token)
				case !has(bits, int32(id)) && p != nil:
					left++
				}
			}
			if step == 2 {
				other, err := compile().Decode(s.Encode())
				if err != nil {
					t.Fatal(err)
				}
				if other.Mask(again); !slices.Equal(bits, again) {
					t.Errorf("%s: the mask depends on what was asked before", schema)
				}
			}
			if s, err = s.Accept(next(step)); err != nil {
				t.Fatal(err)
			}
		}
		g = compile()
		s = g.Start()
		for step := range 10 {
			s.Mask(bits)
			if s, err = s.Accept(next(step)); err != nil {
				t.Fatal(err)
			}
		}
		if (left > 0) != c.leaves {
			t.Errorf("%s: %d tokens are left out", schema, left)
		}
		if len(g.m.nodes) > 10*manyStates/2 {
			t.Errorf("%s: %d states are kept", schema, len(g.m.nodes))
		}
	}
}
