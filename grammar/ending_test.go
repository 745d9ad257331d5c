package grammar

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// nearestEnd is how many bytes it takes from p to an end, found by trying all
// texts; -1 if it is more than most, or cannot be found.
func (m *machine) nearestEnd(p *place, most int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	level, seen := []*place{p}, map[*place]bool{p: true}
	for n := 0; n <= most; n++ {
		var next []*place
		for _, q := range level {
			if q.canEnd {
				return n
			}
			for b := range 256 {
				if to := m.step(q, byte(b)); to != nil && !seen[to] {
					seen[to] = true
					next = append(next, to)
				}
			}
		}
		if level = next; len(seen) > 5000 {
			return -1
		}
	}
	return -1
}

// TestEndingsAreShortAndRight: from every place of some texts there is a way to
// an end, and none that is shorter.
func TestEndingsAreShortAndRight(t *testing.T) {
	tok := learnBPE(bpeText, 200)
	proven := 0
	for name, spec := range testSpecs {
		if name == "indented" {
			continue // see TestNoEnding
		}
		g := mustCompile(t, spec, tok.vocab())
		for seed := range uint64(4) {
			s := g.Start()
			var text []byte
			for range 40 {
				ids, ok := s.Ending(1000)
				if name == "unique" && !ok { // its items must differ, see TestNoEnding
					ids = nil
				} else if !ok {
					t.Fatalf("%s: no end is found behind %q", name, text)
				}
				end := tok.decode(ids)
				if ok && !g.Match(append(text[:len(text):len(text)], end...)) {
					t.Fatalf("%s: %q and %q are no text of it", name, text, end)
				}
				if ok && len(ids) > 0 {
					if _, ok := s.Ending(len(ids) - 1); ok {
						t.Errorf("%s: behind %q there is an end within %d tokens, and %q is %d", name, text, len(ids)-1, end, len(ids))
					}
				}
				if !s.EndsWithin(len(ids)) && ok {
					t.Errorf("%s: %q does not end within %d", name, text, len(ids))
				}
				if s.plan == nil && len(end) < 12 && ok {
					if n := g.m.nearestEnd(s.at, len(end)); n >= 0 {
						if proven++; n < len(end) {
							t.Errorf("%s: behind %q %q ends it, but %d bytes are enough", name, text, end, n)
						}
					}
				}
				id := puppet(seed, text, s.maskBits(), len(tok.tokens))
				if id < 0 || id == eosToken {
					break
				}
				text = append(text, tok.tokens[id]...)
				var err error
				if s, err = s.Accept(id); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if proven < 100 {
		t.Errorf("only %d were compared with the shortest", proven)
	}
}

func TestEndings(t *testing.T) {
	tok := learnBPE(bpeText, 200)
	person := `{"type":"object","properties":{"name":{"type":"string"},"note":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"],"additionalProperties":false}`
	for _, x := range []struct{ schema, text, want string }{
		{person, ``, `{"name":"","age":0}`},
		{person, `{"name":"Ada and`, `","age":0}`},
		{person, `{"name":"Ada \`, `"","age":0}`},
		{person, `{"name":"Ada","note":"`, `","age":0}`},
		{person, `{"name":"Ada","age":-`, `0}`},
		{person, `{"name":"Ada","age":4`, `}`},
		{`{"type":"string","minLength":3}`, `"ab`, ` "`},
		{`{"enum":["first","second","sent"]}`, `"se`, `nt"`},
		{`{"type":"array","items":{"type":"array","items":{"type":"boolean"},"minItems":1}}`, `[[true],[`, `true]]`},
		{`{"type":"array","items":{"type":"integer"},"minItems":3}`, `[1`, `,0,0]`},
		{`{"type":"object","minProperties":2,"properties":{"aa":{"type":"boolean"},"b":{"type":"null"},"c":{"type":"integer"}},"additionalProperties":false}`, `{`, `"b":null,"c":0}`},
		// A value of the same kind inside, and one that needs another to end.
		{`{"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"v":{"type":"integer"},"l":{"anyOf":[{"$ref":"#/$defs/t"},{"type":"null"}]}},"required":["v","l"],"additionalProperties":false}}}`,
			`{"v":1,"l":{"v":2,"l":`, `null}}`},
		{`{"anyOf":[{"$ref":"#/$defs/a"},{"type":"integer"}],"$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/b"},"minItems":1},"b":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"object","properties":{"to":{"$ref":"#/$defs/a"}}}]}}}`,
			`[[`, `{}]]`},
	} {
		g := mustCompile(t, Spec{JSONSchema: []byte(x.schema)}, tok.vocab())
		s, err := g.Start().AcceptBytes([]byte(x.text))
		if err != nil {
			t.Fatal(err)
		}
		ids, ok := s.Ending(200)
		if got := string(tok.decode(ids)); !ok || got != x.want {
			t.Errorf("%s behind %q: %q, %v, want %q", x.schema, x.text, got, ok, x.want)
		}
	}
}

// TestEndingsDoNotDependOnWhatWasAsked: neither on the order nor on what the
// machine remembers.
func TestEndingsDoNotDependOnWhatWasAsked(t *testing.T) {
	tok := learnBPE(bpeText, 200)
	for name, spec := range testSpecs {
		cold := func(text []byte) []int32 {
			s, err := mustCompile(t, spec, tok.vocab()).Start().AcceptBytes(text)
			if err != nil {
				t.Fatal(err)
			}
			ids, _ := s.Ending(1000)
			return ids
		}
		g := mustCompile(t, spec, tok.vocab())
		ids, _, _ := generate(t, g, tok, 3, false, 30)
		for n := len(ids); n >= 0; n -= 5 {
			text := tok.decode(ids[:n])
			s, err := g.Start().AcceptBytes(text)
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := s.Ending(1000); !slices.Equal(got, cold(text)) {
				t.Errorf("%s behind %q: %q, from a fresh grammar %q", name, text, tok.decode(got), tok.decode(cold(text)))
			}
		}
	}
}

// TestEndingsThatTakeTooLong: whether there is time enough to find an ending does not
// depend on what was asked before either.
func TestEndingsThatTakeTooLong(t *testing.T) {
	tok := learnBPE(bpeText, 200)
	var last, found int
	for _, n := range []int{5, 15, 20, 22, 25, 30, 35} {
		open := func(tag string) string {
			var props []string
			for i := range n {
				props = append(props, fmt.Sprintf(`"%s%s_%d_value":{"type":"string","pattern":"^[a-z]{3,9}-(x|y|zz)[0-9]+$"}`, strings.Repeat(string(rune('a'+i%26)), 1+i%7), tag, i*7919))
			}
			return `{"type":"object","properties":{` + strings.Join(props, ",") + `},"minProperties":3}`
		}
		g := mustCompile(t, Spec{JSONSchema: []byte(`{"type":"object","properties":{"n":{"type":"string"},"a":` + open("p") + `,"b":` + open("q") + `},"required":["n","a","b"],"additionalProperties":false}`)}, tok.vocab())
		at := func(text string) (string, bool) {
			s, err := g.Start().AcceptBytes([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			ids, ok := s.Ending(1000)
			return string(tok.decode(ids)), ok
		}
		first, ok := at(`{"n":"x`)
		if ok {
			found, last = found+1, n
		}
		for _, text := range []string{`{"n":"x","a":{"x1":"z","b":"u","c":"d"},"b":{`, `{"n":"x","a":{"x1":"z","b":"u","c":"d"}`, `{"n":"x"`, `{"n":"x","a":{`} {
			one, _ := at(text)
			if two, _ := at(text); one != two {
				t.Errorf("%d names: behind %s %q, then %q", n, text, one, two)
			}
		}
		if again, ok2 := at(`{"n":"x`); again != first || ok2 != ok {
			t.Errorf("%d names: %q, %v; when more is known %q, %v", n, first, ok, again, ok2)
		}
	}
	if found == 0 || last == 35 {
		t.Errorf("%d were found, the last of %d names: not on both sides of the bound", found, last)
	}
}

func TestNoEnding(t *testing.T) {
	tok := learnBPE(bpeText, 200)
	rules := `root ::= r0` + "\n"
	for i := range 30 { // each may hold each other
		var list []string
		for j := range 30 {
			list = append(list, fmt.Sprintf(`"(" r%d r%d`, j, (j+i)%30))
		}
		rules += fmt.Sprintf("r%d ::= %s | \"end%d\"\n", i, strings.Join(list, " | "), i)
	}
	for _, x := range []struct {
		what string
		spec Spec
		text string
		want bool
	}{
		{"items that must differ", Spec{JSONSchema: []byte(`{"type":"array","items":{"type":"string"},"uniqueItems":true,"minItems":2}`)}, `["a"`, false},
		{"the last of them under way", Spec{JSONSchema: []byte(`{"type":"array","items":{"type":"string"},"uniqueItems":true,"minItems":2}`)}, `["a","b`, true},
		{"a text that is too long", Spec{JSONSchema: []byte(`{"type":"string","minLength":100000}`)}, `"`, false},
		{"too many items", Spec{JSONSchema: []byte(`{"type":"array","items":{"type":"integer"},"minItems":1000000}`)}, `[`, false},
		{"white space by depth", Spec{JSONSchema: []byte(`{"type":"object"}`), Whitespace: Whitespace{Indent: 2}}, `{`, false},
		{"rules that hold each other", Spec{EBNF: rules}, `((`, true},
	} {
		s, err := mustCompile(t, x.spec, tok.vocab()).Start().AcceptBytes([]byte(x.text))
		if err != nil {
			t.Fatal(err)
		}
		if ids, ok := s.Ending(5000); ok != x.want {
			t.Errorf("%s: %q, %v", x.what, tok.decode(ids), ok)
		}
	}
}
