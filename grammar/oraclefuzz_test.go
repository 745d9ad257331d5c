package grammar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// wider writes schemas with what schemaGen leaves out: references, also
// recursive ones, formats, longer numbers, and anchored and open patterns.
func (r schemaGen) wider() string {
	leaf := func() string {
		num := func() string {
			return r.pick("0", "-7", "99", "100", "101", "-1000", "12.5", "0.1", "-0.05", "1e2", "2.5e-1", "1000000", "3.14159")
		}
		switch r.IntN(6) {
		case 0:
			s := `"type":` + r.pick(`"integer"`, `"number"`)
			for _, k := range []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} {
				if r.IntN(3) == 0 {
					s += fmt.Sprintf(",%q:%s", k, num())
				}
			}
			if r.IntN(3) == 0 {
				s += `,"multipleOf":` + r.pick("7", "0.1", "0.05", "25", "1.5", "100")
			}
			return "{" + s + "}"
		case 1:
			s := `"type":"string"`
			if r.IntN(2) == 0 {
				s += fmt.Sprintf(`,"minLength":%d`, r.IntN(4))
			}
			if r.IntN(2) == 0 {
				s += fmt.Sprintf(`,"maxLength":%d`, r.IntN(5))
			}
			if r.IntN(2) == 0 {
				s += `,"pattern":` + r.pick(`"^\\w+$"`, `"[^a-c]"`, `"^.{2}$"`, `"(ab)+"`, `"^\\S*$"`, `"^(?=a)"`, `"\\u00e9"`, `"^$|^a"`, `"a|^b|c$"`, `"^[\\\\\"/]"`, `"\\n"`)
			}
			return "{" + s + "}"
		case 2:
			return `{"type":"string","format":` + r.pick(`"date"`, `"ipv4"`, `"uuid"`, `"date-time"`, `"email"`, `"time"`) + "}"
		case 3:
			return `{"$ref":"#/$defs/` + r.pick("p", "q", "r") + `"}`
		default:
			return r.schema(1 + r.IntN(2))
		}
	}
	body := func() string {
		switch r.IntN(7) {
		case 0:
			return fmt.Sprintf(`{"type":"object","properties":{"a":%s,"b":%s},"required":["a"],"additionalProperties":%s}`, leaf(), leaf(), r.pick("false", leaf()))
		case 1:
			return fmt.Sprintf(`{"type":["array","null"],"items":%s,"maxItems":3}`, leaf())
		case 2:
			return fmt.Sprintf(`{"anyOf":[%s,%s,%s]}`, leaf(), leaf(), leaf())
		case 3:
			return fmt.Sprintf(`{"allOf":[%s,%s]}`, leaf(), leaf())
		case 4:
			return fmt.Sprintf(`{"oneOf":[%s,%s]}`, leaf(), leaf())
		case 5:
			return fmt.Sprintf(`{"not":%s}`, leaf())
		default:
			return leaf()
		}
	}
	s := body()
	if !strings.HasPrefix(s, "{") {
		s = "{}"
	}
	defs := fmt.Sprintf(`"$defs":{"p":%s,"q":%s,"r":%s}`, body(), body(), body())
	if s == "{}" {
		return "{" + defs + "}"
	}
	return "{" + defs + "," + s[1:]
}

// wide writes an instance for it.
func (r schemaGen) wide(d int) string {
	switch r.IntN(4) {
	case 0:
		return r.pick("7", "-7", "14", "99", "100", "101", "0.1", "0.15", "-0.05", "12.5", "1000000", "-1000", "25", "3.14159", "1.5", "50")
	case 1:
		return r.pick(`"2024-02-29"`, `"2023-02-29"`, `"1.2.3.4"`, `"256.1.1.1"`, `"2024-02-29T23:59:60Z"`, `"2024-02-29T24:00:00Z"`, `"a@b.c"`, `"éé"`, `"\\"`, `"\"a"`, `"a\nb"`,
			`"abab"`, `"b "`, `"12:30:00Z"`, `"23:59:60Z"`, `"550e8400-e29b-41d4-a716-446655440000"`, `"𝄞a"`, `"ca"`)
	case 2:
		if d > 0 {
			n := r.IntN(4)
			var parts []string
			for range n {
				parts = append(parts, r.wide(d-1))
			}
			return "[" + strings.Join(parts, ",") + "]"
		}
		fallthrough
	default:
		if d > 0 && r.IntN(2) == 0 {
			var parts []string
			for _, n := range []string{"a", "b", "x"} {
				if r.IntN(2) == 0 {
					parts = append(parts, fmt.Sprintf("%q:%s", n, r.wide(d-1)))
				}
			}
			return "{" + strings.Join(parts, ",") + "}"
		}
		return r.instance(1)
	}
}

// FuzzSchemaOracle compares the language of one random schema a seed with a
// validator's verdicts; run with -fuzz it goes on as long as it is let.
func FuzzSchemaOracle(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, seed%2 == 0)
	}
	vocab := ByteVocab()
	f.Fuzz(func(t *testing.T, seed uint64, wider bool) {
		r := schemaGen{rand.New(rand.NewPCG(seed, 77))}
		src := r.schema(3)
		if wider {
			src = r.wider()
		}
		want := validator(t, src, true)
		if want == nil {
			return
		}
		g, err := Compile(context.Background(), Spec{JSONSchema: []byte(src), AnyOrder: true}, vocab)
		if errors.Is(err, ErrUnsupported) || errors.Is(err, ErrTooLarge) || wider && errors.Is(err, ErrInvalid) { // a $ref to itself
			return
		}
		if err != nil && !errors.Is(err, ErrUnsatisfiable) {
			t.Fatalf("%s: %v", src, err)
		}
		for range 40 {
			in := r.instance(3)
			if wider {
				in = r.wide(2)
			}
			compareVerdicts(t, src, g, want, in)
		}
	})
}

// FuzzWrittenTexts writes one text of one random schema a seed with a puppet and
// asks the validator about it.
func FuzzWrittenTexts(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed, seed%2 == 0, seed%3 == 0)
	}
	// Arrays that owe two things with one place left.
	for _, seed := range []uint64{300521, 327745} {
		for flags := range 4 {
			f.Add(seed, flags&1 != 0, flags&2 != 0)
		}
	}
	tok := learnBPE(bpeText, 100)
	vocab := tok.vocab()
	vocab.few = 0 // masks by comparison, as with a vocabulary of many tokens
	f.Fuzz(func(t *testing.T, seed uint64, wider, anyOrder bool) {
		r := schemaGen{rand.New(rand.NewPCG(seed, 78))}
		src := r.schema(3)
		if wider {
			src = r.wider()
		}
		want := validator(t, src, true)
		if want == nil {
			return
		}
		g, err := Compile(context.Background(), Spec{JSONSchema: []byte(src), AnyOrder: anyOrder}, vocab)
		if err != nil {
			return // FuzzSchemaOracle asks whether that is right
		}
		ids, _, done := generate(t, g, tok, seed, false, 120)
		if !done {
			return
		}
		mustBeValid(t, src, want, tok.decode(ids))
	})
}
