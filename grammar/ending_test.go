package grammar

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
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

// seeds is how many of n random walks to take: with -short, as under the race detector, a
// quarter.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return (n + 3) / 4
	}
	return n
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
		for seed := range seeds(4) {
			s := g.Start()
			var text []byte
			for range 40 {
				ids, ok := s.Ending(1000)
				if !ok {
					t.Fatalf("%s: no end is found behind %q", name, text)
				}
				end := tok.decode(ids)
				if !g.Match(append(text[:len(text):len(text)], end...)) {
					t.Fatalf("%s: %q and %q are no text of it", name, text, end)
				}
				if len(ids) > 0 {
					if _, ok := s.Ending(len(ids) - 1); ok {
						t.Errorf("%s: behind %q there is an end within %d tokens, and %q is %d", name, text, len(ids)-1, end, len(ids))
					}
				}
				if !s.EndsWithin(len(ids)) {
					t.Errorf("%s: %q does not end within %d", name, text, len(ids))
				}
				if s.plan == nil && len(end) < 12 {
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
	for _, n := range []int{5, 25, 400, 3000} {
		open := func(tag string) string {
			var props []string
			for i := range n {
				props = append(props, fmt.Sprintf(`"%s%s_%d_value":{"type":"string","pattern":"^[a-z]{3,9}-(x|y|zz)[0-9]+$"}`, strings.Repeat(string(rune('a'+i%26)), 1+i%7), tag, i*7919))
			}
			return `{"type":"object","properties":{` + strings.Join(props, ",") + `},"minProperties":` + fmt.Sprint(min(n, 50)) + `}`
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
		for _, text := range []string{`{"n":"x","a":{"x1":"z`, `{"n":"x"`, `{"n":"x","a":{`, `{"n":"x","a":{"a`} {
			one, _ := at(text)
			if two, _ := at(text); one != two {
				t.Errorf("%d names: behind %s %q, then %q", n, text, one, two)
			}
		}
		if again, ok2 := at(`{"n":"x`); again != first || ok2 != ok {
			t.Errorf("%d names: %q, %v; when more is known %q, %v", n, first, ok, again, ok2)
		}
	}
	if found == 0 || last == 3000 {
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

// TestEndingsOfWhatIsToldApart: items and names that must be unlike, in any number, and
// sets of properties too many to be tried one by one.
func TestEndingsOfWhatIsToldApart(t *testing.T) {
	tok := learnBPE(bpeText, 200)
	many := func(n int, list func(i int) string) string {
		var out []string
		for i := range n {
			out = append(out, list(i))
		}
		return strings.Join(out, ",")
	}
	names := many(60, func(i int) string { return fmt.Sprintf(`"name_%d"`, i) })
	props := many(60, func(i int) string { return fmt.Sprintf(`"name_%d":{"type":"boolean"}`, i) })
	long := many(1000, func(i int) string { return fmt.Sprintf(`"%x-%d"`, i*7919, i) })
	for _, x := range []struct {
		schema string
		any    bool
		text   string
		want   string // "" if only that there is one matters
	}{
		{`{"type":"array","items":{"type":"string"},"uniqueItems":true,"minItems":3}`, false, `[""`, `," ","!"]`},
		{`{"type":"array","items":{"type":"string"},"uniqueItems":true,"minItems":2}`, false, `["a","b`, `"]`},
		{`{"type":"array","items":{"enum":["b","aa","c"]},"uniqueItems":true,"minItems":3}`, false, `["c"`, `,"aa","b"]`},
		{`{"type":"array","prefixItems":[{"enum":[1,2]}],"items":{"enum":[1,2,3]},"uniqueItems":true,"minItems":3}`, false, `[`, `1,2,3]`},
		{`{"type":"array","items":{"type":"integer"},"uniqueItems":true,"minItems":100}`, false, `[5`, ``},
		{`{"type":"object","minProperties":3}`, false, `{`, `"":0," ":0,"!":0}`},
		{`{"type":"object","minProperties":3}`, true, `{" ":1,"`, `":0,"!":0}`},
		{`{"type":"object","minProperties":100,"propertyNames":{"pattern":"^[a-c]+$"}}`, false, `{"a":1`, ``},
		{`{"type":"object","patternProperties":{"^x":{"type":"boolean"}},"additionalProperties":false,"minProperties":2,"properties":{"a":{"const":"long enough"}}}`, false, `{`, `"x":true,"x ":true}`},
		{`{"type":"object","patternProperties":{"^x":{"type":"boolean"}},"additionalProperties":false,"minProperties":2,"maxProperties":2,"required":["a"],"properties":{"a":{"const":"long enough"}}}`, true, `{"x":`, `true,"a":"long enough"}`},
		{`{"type":"object","properties":{` + props + `},"required":[` + names + `],"additionalProperties":false}`, true, `{"name_7":true,"name_`, ``},
		{`{"type":"object","properties":{` + props + `},"minProperties":55,"additionalProperties":false}`, true, `{"name_7":true,`, ``},
		{`{"enum":[` + long + `]}`, false, `"`, `0-0"`},
		{`{"type":"string","minLength":2000}`, false, `"ab`, strings.Repeat(" ", 1998) + `"`},
		{`{"type":"string","pattern":"^(x|yy){300}$","maxLength":500}`, false, `"yy`, strings.Repeat("x", 299) + `"`},
		{`{"type":"string","pattern":"[a-f]{40}","not":{"pattern":"^a|aa|ab"}}`, false, `"`, ``},
	} {
		g := mustCompile(t, Spec{JSONSchema: []byte(x.schema), AnyOrder: x.any}, tok.vocab())
		s, err := g.Start().AcceptBytes([]byte(x.text))
		if err != nil {
			t.Fatal(err)
		}
		ids, ok := s.Ending(5000)
		got := string(tok.decode(ids))
		if !ok || x.want != "" && got != x.want || !g.Match([]byte(x.text+got)) {
			t.Errorf("%.200s behind %q: %q, %v, want %q", x.schema, x.text, got, ok, x.want)
		}
	}
}

// TestClosedWithinAnyLimit writes texts of random schemas with limits from the shortest
// ending on, as an engine does that closes them: a token after which the text could not
// end is not taken, but one that leads there. All come to an end, and a validator finds
// nothing wrong.
func TestClosedWithinAnyLimit(t *testing.T) {
	n := 1500
	if testing.Short() {
		n = 150
	}
	r := schemaGen{rand.New(rand.NewPCG(31, 32))}
	toks := []*testBPE{learnBPE(bpeText, 0), learnBPE(bpeText, 200)}
	texts, closed := 0, 0
	for i := range n {
		src := r.schema(3)
		want := validator(t, src, false)
		if want == nil {
			continue
		}
		tok := toks[i%2]
		spec := Spec{JSONSchema: []byte(src), AnyOrder: r.IntN(2) == 0}
		if r.IntN(4) == 0 {
			spec.Whitespace.Max = 2
		}
		g, err := Compile(context.Background(), spec, tok.vocab())
		if err != nil {
			continue
		}
		way, ok := g.Start().Ending(5000)
		if !ok {
			t.Fatalf("%s: no ending from the start", src)
		}
		mustGoOn(t, g, src)
		for extra := range 6 {
			limit := len(way) + extra*r.IntN(8)
			ids, took := closeAt(t, g, tok, uint64(i), limit)
			if len(ids) > limit {
				t.Fatalf("%s: %q is %d tokens, the limit is %d", src, tok.decode(ids), len(ids), limit)
			}
			mustBeValid(t, src, want, tok.decode(ids))
			texts, closed = texts+1, closed+min(took, 1)
		}
	}
	if t.Logf("%d texts, %d closed", texts, closed); closed < texts/4 || closed == texts {
		t.Errorf("%d of %d were closed", closed, texts)
	}
}

// closeAt writes a text of at most limit tokens; closed is how many of them the puppet
// did not choose.
func closeAt(t *testing.T, g *Grammar, tok *testBPE, seed uint64, limit int) (ids []int32, closed int) {
	t.Helper()
	s := g.Start()
	for len(ids) < limit {
		id := puppet(seed, tok.decode(ids), s.maskBits(), len(tok.tokens))
		if id == eosToken {
			return ids, closed
		}
		left := limit - len(ids)
		next, err := s.Accept(id)
		if err != nil {
			t.Fatal(err)
		}
		if !next.EndsWithin(left - 1) {
			way, ok := s.Ending(left)
			if !ok {
				t.Fatalf("behind %q there is no ending within %d tokens", tok.decode(ids), left)
			}
			if closed++; len(way) == 0 {
				return ids, closed
			}
			id = way[0]
			if next, err = s.Accept(id); err != nil {
				t.Fatal(err)
			}
		}
		ids, s = append(ids, id), next
	}
	if !s.CanEnd() {
		t.Fatalf("%q is cut", tok.decode(ids))
	}
	return ids, closed
}

// mustGoOn fails if behind the bytes of an ending there is another one than their rest.
func mustGoOn(t *testing.T, g *Grammar, what string) {
	t.Helper()
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	p := g.m.begin
	way := g.m.ending(p)
	for i, b := range way {
		p = g.m.step(p, b)
		if rest := g.m.ending(p); !bytes.Equal(rest, way[i+1:]) {
			t.Fatalf("%s: the ending is %q, behind %q it is %q", what, way, way[:i+1], rest)
		}
	}
}
