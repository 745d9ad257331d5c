package grammar

import (
	"slices"
	"testing"
)

// What is looked up in the middle of a fixed text is what is computed for a
// place otherwise.
func TestMasksOfFixedTexts(t *testing.T) {
	v := learnBPE(bpeText, 300).vocab()
	looked, other := 0, 0
	for _, c := range []struct {
		spec Spec
		text string
	}{
		{Spec{JSONSchema: []byte(`{"type":"object","properties":{"the name of it":{"enum":["in the end","in the middle"]},"theory":{"const":{"then":["there",1]}}},"required":["the name of it","theory"],"additionalProperties":false}`)},
			`{"the name of it":"in the middle","theory":{"then":["there",1]}}`},
		{Spec{JSONSchema: []byte(`{"type":"array","items":{"enum":["a rather long text"]},"uniqueItems":true}`)}, `["a rather long text"]`},
		{Spec{Choices: []string{"the theory", "the theory of it", "and then"}}, "the theory of it"},
		{Spec{Regex: `the (same|text)+ there`}, "the sametextsame there"},
		{Spec{EBNF: "root ::= \"then the \" root | \"there\""}, "then the then the there"},
	} {
		g := mustCompile(t, c.spec, v)
		s := g.Start()
		got, want := make([]uint64, v.MaskWords()), make([]uint64, v.MaskWords())
		for i := range len(c.text) {
			if g.m.fixedMask(s.at, got) {
				looked++
				g.m.computeMask(g.m.repPlace(s.at)).writeTo(want)
				if !slices.Equal(got, want) {
					t.Errorf("%q: masks differ behind %q", c.text, c.text[:i])
				}
			} else {
				other++
			}
			var err error
			if s, err = s.AcceptBytes([]byte(c.text[i : i+1])); err != nil {
				t.Fatal(err)
			}
		}
	}
	if looked < 20 || other < 20 {
		t.Errorf("%d masks were looked up, %d were not", looked, other)
	}
}
