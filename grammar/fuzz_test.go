package grammar

import (
	"context"
	"encoding/json"
	"testing"
)

// fuzzLimits keeps one fuzz input cheap.
var fuzzLimits = Limits{SourceBytes: 4096, Depth: 40, Nodes: 60_000, Work: 400_000}

// walkSome follows a grammar along data: every byte picks one of the bytes that
// may come next. No state on the way is a dead end.
func walkSome(t *testing.T, g *Grammar, data []byte) []byte {
	s := g.Start()
	var text []byte
	bits := make([]uint64, 4)
	for _, pick := range data {
		s.Mask(bits)
		var legal []byte
		for b := range 256 {
			if has(bits, int32(b)) {
				legal = append(legal, byte(b))
			}
		}
		if len(legal) == 0 {
			if !s.CanEnd() {
				t.Fatalf("dead end after %q", text)
			}
			break
		}
		b := legal[int(pick)%len(legal)]
		next, err := s.AcceptBytes([]byte{b})
		if err != nil {
			t.Fatalf("%q after %q is legal and rejected", b, text)
		}
		text = append(text, b)
		s = next
	}
	s.Forced()
	if way, ok := s.Ending(500); ok {
		whole := text[:len(text):len(text)]
		for _, id := range way {
			whole = append(whole, g.Vocab().Token(id)...)
		}
		if !g.Match(whole) {
			t.Fatalf("%q is given as the end of %q", whole[len(text):], text)
		}
	}
	if _, err := g.Decode(s.Encode()); err != nil {
		t.Fatal(err)
	}
	return text
}

func FuzzSchema(f *testing.F) {
	for _, spec := range testSpecs {
		if spec.JSONSchema != nil {
			f.Add(spec.JSONSchema, []byte("\x01\x20\x03\x7f\x05"), false)
		}
	}
	f.Add([]byte(`{"oneOf":[{"required":["a"]},{"not":{"required":["b"]}}],"unevaluatedProperties":false,"if":{"minProperties":2},"then":false}`), []byte("abc"), true)
	f.Add([]byte(`{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}}}`), []byte(nil), true)
	f.Add([]byte(`{"patternProperties":{"^(?!x)a{2,}$":{"multipleOf":0.25,"maximum":-1}},"propertyNames":{"format":"email"}}`), []byte("0123"), false)
	f.Fuzz(func(t *testing.T, schema, data []byte, anyOrder bool) {
		g, err := Compile(context.Background(), Spec{JSONSchema: schema, AnyOrder: anyOrder, Limits: fuzzLimits}, ByteVocab())
		if err != nil {
			return
		}
		text := walkSome(t, g, data[:min(len(data), 200)])
		if g.Match(text) && !json.Valid(text) {
			t.Fatalf("%q is accepted and not JSON", text)
		}
	})
}

func FuzzRegex(f *testing.F) {
	for _, s := range []string{`(a|b)*c`, `^\d{2,4}-[^x-z]+$`, `(?:\S+\s+){0,9}\S+`, `^(?!no).*$`, `\u00e9\p{Lu}[\w.-]`, `a{1000}b{0,500}`, `(|.*)$^`} {
		f.Add(s, []byte("abc123"))
	}
	f.Fuzz(func(t *testing.T, src string, data []byte) {
		if g, err := Compile(context.Background(), Spec{Regex: src, Limits: fuzzLimits}, ByteVocab()); err == nil {
			walkSome(t, g, data[:min(len(data), 200)])
		}
	})
}

func FuzzEBNF(f *testing.F) {
	for _, s := range []string{arithmetic, `root ::= "a" root | [^\]]{2,3}`, "root ::= x?\nx ::= root \"b\" # c", `root ::= root "a" | 'b'`} {
		f.Add(s, []byte("abc123"))
	}
	f.Fuzz(func(t *testing.T, src string, data []byte) {
		if g, err := Compile(context.Background(), Spec{EBNF: src, Limits: fuzzLimits}, ByteVocab()); err == nil {
			walkSome(t, g, data[:min(len(data), 200)])
		}
	})
}

// FuzzBytes feeds texts and encoded states to fixed grammars.
func FuzzBytes(f *testing.F) {
	var all []*Grammar
	for _, spec := range testSpecs {
		g, err := Compile(context.Background(), spec, ByteVocab())
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, g)
	}
	f.Add([]byte(`{"pod":"a","reason":"OOMKilled","oom_killed":true,"recommended_action":"x"}`))
	f.Add([]byte("[[[[[[\"\\ud83d\\ude00\xff"))
	f.Add([]byte("\x01\x02\x00\x05true,"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, g := range all {
			s, err := g.Start().AcceptBytes(data)
			if g.Match(data) != (err == nil && s.CanEnd()) {
				t.Fatal("Match and AcceptBytes differ")
			}
			if s, err := g.Decode(data); err == nil {
				s.Forced()
			}
		}
	})
}

func FuzzLark(f *testing.F) {
	for _, s := range []string{
		"start: expr\nexpr: expr \"+\" T | T\nT: /[0-9]+/ & ~\"0\"\n%ignore \" \"\n",
		"start: %json {\"type\":\"array\",\"items\":{\"type\":\"boolean\"}} a*\na[suffix=\"x\"]: /.*/s | \"A\".. \"Z\" ~ 2..3 -> b\n",
		"start: /(?i)k(?s-i:.)[[:^alpha:]]\\x{41} # \n/xs a | %regex {\"substring_words\":\"a b. c\"}\na: \"ſ\"i /\\W[^k]/iu\n",
		"%import common (WS, INT)\n%llguidance {\"no_forcing\":true}\n?start.1: [INT \"é\"i] | ( start \"b\"\n){0,2} // c\n",
	} {
		f.Add(s, []byte("abc123"))
	}
	f.Fuzz(func(t *testing.T, src string, data []byte) {
		if g, err := Compile(context.Background(), Spec{Lark: src, Limits: fuzzLimits}, ByteVocab()); err == nil {
			walkSome(t, g, data[:min(len(data), 200)])
		}
	})
}

func FuzzTags(f *testing.F) {
	f.Add("<tool>", "</tool>", "<think>", "</think>", "<t", []byte(`{"type":"array","items":{"type":"boolean"}}`), uint8(1), []byte("abc123"))
	f.Add("aa", "", "ab", "a", "a", []byte(`{"enum":["a"]}`), uint8(6), []byte("\x01\x02"))
	f.Fuzz(func(t *testing.T, begin, end, begin2, end2, trigger string, schema []byte, how uint8, data []byte) {
		if len(begin)+len(end)+len(begin2)+len(end2)+len(trigger) > 200 {
			return
		}
		tags := &Tags{Tags: []Tag{{begin, end, &Spec{JSONSchema: schema}}, {begin2, end2, nil}}, AtLeastOne: how&1 != 0, StopAfterFirst: how&2 != 0}
		if how&4 != 0 {
			tags.Triggers = []string{trigger}
		}
		if g, err := Compile(context.Background(), Spec{Tags: tags, Limits: fuzzLimits}, ByteVocab()); err == nil {
			walkSome(t, g, data[:min(len(data), 200)])
		}
	})
}
