package grammar

import (
	"context"
	"strings"
	"testing"
)

// TestMasksOfComparedStates holds the masks of states that are compared with
// others against what happens to each token: patterns inside free text, counted
// words under a bound on the length, names that must not match.
func TestMasksOfComparedStates(t *testing.T) {
	vocab, err := NewVocab(learnBPE(bpeText, 300).vocab().tokens, VocabOptions{}) // no plans
	if err != nil {
		t.Fatal(err)
	}
	vocab.few = 0 // compare always, small as it is
	bits := make([]uint64, vocab.MaskWords())
	for _, c := range []struct{ schema, text string }{
		{`{"type":"string","maxLength":30,"pattern":"^(?:\\S+\\s+){0,4}\\S+$"}`, `"one two three four five"`},
		{`{"type":"string","maxLength":12,"pattern":"^$|(^(?:\\S+\\s+){0,9}\\S+$)"}`, `"one two thr"`},
		{`{"type":"string","maxLength":40,"pattern":"^a+(b+c)*$"}`, `"aaabcbbcbbbbbbbbbbbbbc"`},
		{`{"type":"array","items":{"type":"string","maxLength":14,"pattern":"^[a-z]+(-[a-z]+)*$"}}`, `["order-command","a"]`},
		{`{"type":"string","format":"email"}`, `"a.order@recommended.com"`},
		{`{"type":"string","format":"email"}`, `"` + strings.Repeat("and", 20) + `dada@x.org"`},
		{`{"type":"string","format":"email"}`, `"\"a @ b\"@x.org"`},
		{`{"type":"string","pattern":"[0-9a-f]{8}"}`, `"name 01234567 name"`},
		{`{"type":"string","pattern":"in|on","minLength":4}`, `"reason"`},
		{`{"type":"object","patternProperties":{"[0-9a-f]{6}":{"type":"null"}}}`, `{"012345":null,"name":{"id":1}}`},
		{`{"type":"object","propertyNames":{"not":{"pattern":"x{3}"}}}`, `{"name":1,"xx":"xxx"}`},
		{`{"type":"object","propertyNames":{"not":{"pattern":"^[a-z]*$"}}}`, `{"name 1":1,"Xx":"xxx"}`},
		{`{"type":"object","properties":{"name":{"type":"null"},"note":{"type":"null"},"reason":{"type":"null"}}}`, `{"name":null,"order":1}`},
		{`{"type":"object","patternProperties":{"^.+$":{"type":"null"}}}`, `{"the or\nder":null,"é ü 語":null}`},
		{`{"type":"string","pattern":"^.*$","maxLength":20}`, `"the order é 語 and"`},
		{`{"type":"string","pattern":"^[A-Za-z0-9]{8}-[a-z]{4,9}$"}`, `"The0rder-order"`},
		{`{"type":"string","pattern":"^[a-z]{9}[a-z]{2,20}-","minLength":3}`, `"recommended-"`},
		{`{"type":"string","minLength":5,"maxLength":25,"pattern":"^(?:\\S+\\s+){2,9}\\S+$"}`, `"one two three four five"`},
		{`{"type":"string","pattern":"\\d{4}-\\d\\d"}`, `"in 2024-12 or"`},
		{`{"type":"string","allOf":[{"pattern":"a.{9}b"},{"pattern":"c.{4}d"},{"pattern":"e.{7}f"}],"minLength":3}`, `"and the recommended order of and codes dis`},
		{`{"type":"string","allOf":[{"pattern":"[0-9]"},{"pattern":"[A-Z]"},{"pattern":"[a-z]$"}],"maxLength":40}`, `"The order 7 \"é\\ is 語 a recommended"`},
		{`{"type":"object","propertyNames":{"allOf":[{"pattern":"[0-9]"},{"pattern":"[a-z]{3}"}],"maxLength":30}}`, `{"The order 7":1,"é8and":2}`},
		{`{"type":"string","format":"uri"}`, `"https://example.org/order?name=x#1"`},
		{`{"type":"string","not":{"pattern":"^[a-z ]{4}"}}`, `"The order"`},
	} {
		g, err := Compile(context.Background(), Spec{JSONSchema: []byte(c.schema)}, vocab)
		if err != nil {
			t.Fatal(err)
		}
		s := g.Start()
		for i := range len(c.text) {
			s.Mask(bits)
			for id, text := range vocab.tokens {
				if len(text) == 0 {
					continue
				}
				p, _ := g.m.walk(s.at, text)
				if has(bits, int32(id)) != (p != nil) {
					t.Fatalf("%s after %q: token %q: the mask says %v", c.schema, c.text[:i], text, has(bits, int32(id)))
				}
			}
			if s, err = s.AcceptBytes([]byte(c.text[i : i+1])); err != nil {
				t.Fatalf("%s: %q at %d: %v", c.schema, c.text, i, err)
			}
		}
	}
	// One class is made of alternatives that are characters.
	a, _ := Compile(context.Background(), Spec{Regex: `(a|b|[c-f])+`}, vocab)
	b, _ := Compile(context.Background(), Spec{Regex: `[a-f]+`}, vocab)
	for _, text := range []string{"a", "f", "abcdef", "g", "", strings.Repeat("fa", 20)} {
		if a.Match([]byte(text)) != b.Match([]byte(text)) {
			t.Errorf("(a|b|[c-f])+ and [a-f]+ differ on %q", text)
		}
	}
}

// TestMasksOfCountedStrings has tokens that are longer than the counts that are
// kept as masks.
func TestMasksOfCountedStrings(t *testing.T) {
	tokens := [][]byte{[]byte(`"`), []byte(`",`), []byte(`]`), []byte(`["`), []byte(`é`), []byte("\xc3"), []byte("\xa9"), []byte(`\n`), []byte(`\u00`), []byte("\n")}
	for _, n := range []int{1, 2, 3, 40, 59, 60, 61, 62, 75, 90} {
		tokens = append(tokens, []byte(strings.Repeat("a", n)), []byte(strings.Repeat("b", n)+`"`), []byte(strings.Repeat("b", n)+`","b`), []byte(strings.Repeat("é", n)+`"]`))
	}
	vocab, err := NewVocab(tokens, VocabOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bits := make([]uint64, vocab.MaskWords())
	for _, bounds := range []string{`"minLength":3`, `"minLength":70`, `"minLength":61,"maxLength":61`, `"minLength":60,"maxLength":76`, `"maxLength":70`, `"minLength":100`, `"minLength":2,"maxLength":130`} {
		g, err := Compile(context.Background(), Spec{JSONSchema: []byte(`{"type":"array","items":{"type":"string",` + bounds + `}}`)}, vocab)
		if err != nil {
			t.Fatal(err)
		}
		s := g.Start()
		text := `["` + strings.Repeat("aé", 29) + "aaa"
		for i := range len(text) {
			s.Mask(bits)
			for id, token := range tokens {
				if p, _ := g.m.walk(s.at, token); has(bits, int32(id)) != (p != nil) {
					t.Fatalf("%s after %q: token %q: the mask says %v", bounds, text[:i], token, has(bits, int32(id)))
				}
			}
			if s, err = s.AcceptBytes([]byte(text[i : i+1])); err != nil {
				break // too long by now
			}
		}
	}
}
