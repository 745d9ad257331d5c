package grammar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// owing writes schemas of arrays and objects in which several things are owed
// at once: items or properties that fulfil conditions, at least or at most so
// many, no two alike, with few places left.
func (r schemaGen) owing() string {
	small := func(n int) string { return fmt.Sprint(r.IntN(n)) }
	item := func() string {
		return r.pick("true", `{"enum":[1,2]}`, `{"enum":[1,2,"a"]}`, `{"enum":["a","b",null,true]}`, `{"const":1}`, `{"const":"a"}`, `{"type":"string"}`,
			`{"type":"integer"}`, `{"type":"string","maxLength":1}`, `{"type":"integer","minimum":0,"maximum":3}`, `{"not":{"const":1}}`, `{"type":["boolean","null"]}`,
			`{"type":"array","maxItems":1,"items":{"const":1}}`, `{"type":"string","pattern":"^[ab]{1,2}$"}`)
	}
	array := func() string {
		parts := []string{`"type":"array"`}
		add := func(odds int, k string, v func() string) {
			if r.IntN(6) < odds {
				parts = append(parts, fmt.Sprintf("%q:%s", k, v()))
			}
		}
		add(4, "items", item)
		add(2, "prefixItems", func() string {
			var s []string
			for range 1 + r.IntN(3) {
				s = append(s, item())
			}
			return "[" + strings.Join(s, ",") + "]"
		})
		add(3, "contains", item)
		add(3, "minContains", func() string { return small(4) })
		add(3, "maxContains", func() string { return small(4) })
		add(3, "minItems", func() string { return small(5) })
		add(3, "maxItems", func() string { return small(5) })
		add(2, "uniqueItems", func() string { return "true" })
		add(2, "not", func() string { return fmt.Sprintf(`{"items":%s}`, item()) })
		add(2, "allOf", func() string {
			return fmt.Sprintf(`[{"contains":%s},{"contains":%s,"maxContains":%s}]`, item(), item(), small(3))
		})
		return "{" + strings.Join(parts, ",") + "}"
	}
	object := func() string {
		parts := []string{`"type":"object"`, fmt.Sprintf(`"properties":{"a":%s,"b":%s,"ab":%s}`, item(), item(), item())}
		add := func(odds int, s string) {
			if r.IntN(6) < odds {
				parts = append(parts, s)
			}
		}
		some := func() string {
			return r.pick(fmt.Sprintf(`{"additionalProperties":%s}`, item()), fmt.Sprintf(`{"patternProperties":{%s:%s}}`, r.pick(`"^a"`, `"b"`, `""`), item()))
		}
		add(3, fmt.Sprintf(`"required":[%s]`, r.pick(`"a"`, `"b"`, `"ab"`, `"a","ab"`, `"c"`)))
		add(3, `"additionalProperties":`+r.pick("false", item()))
		add(3, `"minProperties":`+small(4))
		add(3, `"maxProperties":`+small(4))
		add(3, `"not":`+some())
		add(3, fmt.Sprintf(`"allOf":[{"not":%s},{"not":%s}]`, some(), some()))
		return "{" + strings.Join(parts, ",") + "}"
	}
	if r.IntN(3) == 0 {
		return object()
	}
	return array()
}

// owed writes an instance for it.
func (r schemaGen) owed() string {
	var parts []string
	value := func() string { return r.pick("1", "2", "3", `"a"`, `"b"`, `"ab"`, "true", "null", "[1]", "[]") }
	if r.IntN(3) == 0 {
		for _, n := range []string{"a", "b", "ab", "c", "x"} {
			if r.IntN(2) == 0 {
				parts = append(parts, fmt.Sprintf("%q:%s", n, value()))
			}
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	for range r.IntN(6) {
		parts = append(parts, value())
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// Wherever a text that is written so far has got to, it can be ended: what is
// owed is counted before a place is promised to something else. What is
// accepted is what a validator accepts.
func TestWhatIsOwedCanBePaid(t *testing.T) {
	n := 1500
	if testing.Short() {
		n = 300
	}
	r := schemaGen{rand.New(rand.NewPCG(31, 32))}
	vocab := ByteVocab()
	mask := make([]uint64, vocab.MaskWords())
	var compiled, unsat, refused, ended int
	for i := range n {
		src := r.owing()
		want := validator(t, src, false)
		if want == nil {
			t.Fatal(src)
		}
		g, err := Compile(context.Background(), Spec{JSONSchema: []byte(src), AnyOrder: i%2 == 0}, vocab)
		switch {
		case errors.Is(err, ErrUnsatisfiable):
			unsat++
		case errors.Is(err, ErrUnsupported), errors.Is(err, ErrTooLarge):
			refused++
			continue
		case err != nil:
			t.Fatalf("%s: %v", src, err)
		default:
			compiled++
		}
		for range 25 {
			if in := r.owed(); i%2 == 0 || !strings.HasPrefix(in, "{") {
				compareVerdicts(t, src, g, want, in)
			}
		}
		for range 6 {
			if g == nil {
				break
			}
			if text, ok := walkRandomly(t, r.Rand, g, mask, 60); ok {
				mustBeValid(t, src, want, text)
				ended++
			}
		}
	}
	t.Logf("%d compiled, %d unsatisfiable, %d refused, %d texts ended", compiled, unsat, refused, ended)
}

// walkRandomly writes a text byte by byte, with an eye to its end; ok is false
// when it was still not there after so many bytes.
func walkRandomly(t *testing.T, r *rand.Rand, g *Grammar, mask []uint64, most int) (text []byte, ok bool) {
	t.Helper()
	s := g.Start()
	for range most {
		if s.CanEnd() && r.IntN(3) > 0 {
			return text, true
		}
		s.Mask(mask)
		var legal []byte
		for i := range 256 {
			if mask[i/64]>>(i%64)&1 != 0 {
				legal = append(legal, byte(i))
			}
		}
		if len(legal) == 0 {
			if s.CanEnd() {
				return text, true
			}
			t.Fatalf("%s: nothing may follow %q", g.spec.JSONSchema, text)
		}
		b := legal[r.IntN(len(legal))]
		for _, c := range []byte(`]},"`) {
			if r.IntN(2) == 0 && mask[c/64]>>(c%64)&1 != 0 {
				b = c
			}
		}
		text = append(text, b)
		var err error
		if s, err = s.Accept(int32(b)); err != nil {
			t.Fatalf("%s: mask lets %q follow %q: %v", g.spec.JSONSchema, b, text[:len(text)-1], err)
		}
	}
	return nil, false
}

func TestOwedAtOnce(t *testing.T) {
	for _, c := range []struct {
		schema  string
		yes, no []string // no: texts that must not be begun
	}{
		{`{"type":"array","maxItems":2,"contains":{"const":1},"not":{"items":{"enum":[1,true]}}}`, []string{"[1,3]", "[3,1]"}, []string{"[1,t", "[t", "[null,n", "[1]"}},
		{`{"type":"array","minItems":3,"items":{"enum":[1,2]},"contains":{"const":1},"maxContains":1}`, []string{"[2,1,2]", "[1,2,2,2]"}, []string{"[1,1", "[2,2]", "[2,2,2]"}},
		{`{"type":"array","minItems":2,"uniqueItems":true,"prefixItems":[{"enum":[1,2]},{"const":1}],"items":false}`, []string{"[2,1]"}, []string{"[1,"}},
		{`{"type":"array","minItems":2,"uniqueItems":true,"prefixItems":[{"type":"string"},{"const":"a"}],"items":{"type":"null"}}`, []string{`["b","a"]`, `["ab","a",null]`}, []string{`["a"`, `["b","a",null,n`}},
		{`{"type":"array","uniqueItems":true,"maxItems":2,"items":{"type":"string"},"contains":{"const":"x"}}`, []string{`["x"]`, `["y","x"]`}, []string{`["y","z`, `["x","x"`, "[]"}},
		{`{"type":"object","maxProperties":1,"allOf":[{"not":{"additionalProperties":{"type":"boolean"}}},{"not":{"additionalProperties":{"type":"string"}}}]}`, []string{`{"a":1}`}, []string{`{"a":t`, `{"a":"`}},
		{`{"minProperties":2}`, []string{`{"a":1,"b":2}`, `{"a":1,"b":2,"a":3}`}, []string{`{"a":1,"a"`, `{"a":1}`, `{"ab":1,"ab"`}},
		{`{"not":{"additionalProperties":{"type":"integer"}}}`, []string{`{"a":1,"b":"x"}`}, []string{`{"a":"x","a"`}},
		{`{"minProperties":2,"additionalProperties":false,"patternProperties":{"^[ab]$":true}}`, []string{`{"a":1,"b":1}`}, []string{`{"a":1}`, `{"b`}},
	} {
		g := mustCompile(t, Spec{JSONSchema: []byte(c.schema)}, ByteVocab())
		for _, text := range c.yes {
			if !g.Match([]byte(text)) {
				t.Errorf("%s: %s refused", c.schema, text)
			}
		}
		for _, text := range c.no {
			if _, err := g.Start().AcceptBytes([]byte(text)); err == nil {
				t.Errorf("%s: %s may be begun", c.schema, text)
			}
		}
	}
	for _, schema := range []string{
		`{"type":"array","maxItems":1,"contains":{"const":1},"not":{"items":{"const":1}}}`,
		`{"type":"array","minItems":3,"maxContains":2,"contains":{"type":"integer"},"items":{"type":"integer"}}`,
		`{"type":"array","minItems":3,"uniqueItems":true,"items":{"enum":[1,2]}}`,
		`{"type":"array","minItems":2,"uniqueItems":true,"prefixItems":[{"const":1},{"const":1}],"maxItems":2}`,
		`{"type":"array","minItems":1001,"uniqueItems":true,"items":{"type":"integer","minimum":1,"maximum":1000}}`,
		`{"type":"object","maxProperties":1,"allOf":[{"not":{"additionalProperties":{"type":"integer"}}},{"required":["a","b"]}]}`,
	} {
		if _, err := Compile(context.Background(), Spec{JSONSchema: []byte(schema)}, ByteVocab()); !errors.Is(err, ErrUnsatisfiable) {
			t.Errorf("%s: %v, want ErrUnsatisfiable", schema, err)
		}
	}
}

// Masks of items and names that are told apart are those that trying every
// token gives, with tokens that hold several of them.
func TestMasksOfWhatIsToldApart(t *testing.T) {
	tok := learnBPE(strings.Repeat(`["a","a","b","ab","a"] ["b","b"] [1,1,12,1] {"a":1,"a":1,"b":1} `, 8), 60)
	for _, schema := range []string{
		`{"type":"array","uniqueItems":true,"items":{"type":"string","maxLength":2}}`,
		`{"type":"array","uniqueItems":true,"items":{"type":["string","integer"]},"minItems":3}`,
		`{"type":"array","uniqueItems":true,"items":{"type":"string"},"contains":{"const":"a"},"maxItems":3}`,
		`{"type":"array","uniqueItems":true,"prefixItems":[{"type":"string"},{"enum":["a","b"]}],"items":{"type":"string"},"minItems":2}`,
		`{"type":"object","minProperties":3,"additionalProperties":{"const":1}}`,
		`{"type":"object","not":{"additionalProperties":{"const":1}}}`,
	} {
		g := mustCompile(t, Spec{JSONSchema: []byte(schema)}, tok.vocab())
		for seed := range seeds(12) {
			s := g.Start()
			var text []byte
			for range 14 {
				bits := s.maskBits()
				for i, b := range tok.tokens {
					if _, err := s.Accept(int32(i)); i != eosToken && (err == nil) != has(bits, int32(i)) {
						t.Fatalf("%s: behind %q the mask says %v to %q, and Accept %v", schema, text, has(bits, int32(i)), b, err)
					}
				}
				next := puppet(seed, text, bits, len(tok.tokens))
				if next <= eosToken {
					break
				}
				s, _ = s.Accept(next)
				text = append(text, tok.tokens[next]...)
			}
		}
	}
}
