package lang_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

// Each document is read or refused soon, and does not take the process down.
func TestHostileDocuments(t *testing.T) {
	head := "coppice: 1\nname: x\nsteps:\n"
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 10 {
		a := fmt.Sprintf("*a%d", i)
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.Join([]string{a, a, a, a, a, a, a, a, a, a}, ", "))
	}
	merges := "m0: &m0 {a: 1}\n"
	for i := range 40 {
		merges += fmt.Sprintf("m%d: &m%d {<<: [*m%d, *m%d], k%d: 1}\n", i+1, i+1, i, i, i)
	}
	nested := func(n int) string {
		s := `{"coppice":1,"name":"x","steps":[` + strings.Repeat(`{"when":{"if":"true","then":[`, n)
		return s + strings.Repeat("]}}", n) + "]}"
	}
	schema := func(s string) string {
		return `{"coppice":1,"name":"x","steps":[{"user":"hi"},{"json":{"name":"v","schema":` + s + `}}]}`
	}
	refs := `{"$ref":"#/$defs/d0","$defs":{`
	for i := range 3000 {
		refs += fmt.Sprintf(`"d%d":{"type":"object","properties":{"a":{"$ref":"#/$defs/d%d"}},"required":["a"]},`, i, i+1)
	}
	refs += `"d3000":{"type":"string"}}}`
	wide := `{"type":"object","properties":{`
	for i := range 200 {
		wide += fmt.Sprintf(`"p%d":{"$ref":"#"},`, i)
	}
	wide += `"z":{}}}`
	many := strings.Builder{}
	many.WriteString(head)
	for i := range 3000 {
		fmt.Fprintf(&many, "  - user: a ${x%d}\n  - let: {name: x%d, value: '%d'}\n", i-1, i, i)
	}
	loops := head + "  - user: hi\n"
	pad := "  "
	for i := range 12 {
		loops += fmt.Sprintf("%s- repeat:\n%s    name: r%d\n%s    max: 1000\n%s    steps:\n", pad, pad, i, pad, pad)
		pad += "      "
	}
	loops += pad + "- gen: {name: g, max_tokens: 3}\n"
	forks := strings.ReplaceAll(loops, "repeat:", "foreach:")
	for i := range 12 {
		forks = strings.Replace(forks, "max: 1000", fmt.Sprintf("over: 1..300\n%s  as: i%d", strings.Repeat(" ", 4+6*i), i), 1)
	}
	for name, doc := range map[string]string{
		"yaml brackets": head + "  - " + strings.Repeat("[", 200_000),
		"yaml braces":   strings.Repeat("{a: ", 100_000),
		"yaml indents": func() string {
			s := ""
			for i := range 3000 {
				s += strings.Repeat(" ", i) + "a:\n"
			}
			return s
		}(),
		"yaml dashes":         strings.Repeat("- ", 100_000),
		"json brackets":       strings.Repeat("[", 500_000),
		"json objects":        strings.Repeat(`{"a":`, 500_000),
		"json deep schema":    schema(strings.Repeat(`{"items":`, 9000) + "1" + strings.Repeat("}", 9000)),
		"alias bomb":          bomb + head + "  - user: hi\n",
		"merge bomb":          merges + head + "  - user: hi\n",
		"nested whens":        nested(60),
		"too nested whens":    nested(500),
		"long chain of refs":  schema(refs),
		"wide recursion":      schema(wide),
		"huge numbers":        schema(`{"type":"integer","minimum":1e400000000,"maximum":-1e400000000,"multipleOf":1e-400000000}`),
		"huge pattern":        schema(`{"type":"string","pattern":"` + strings.Repeat("(", 200_000) + `"}`),
		"counted pattern":     schema(`{"type":"string","pattern":"((a{1000}){1000}){1000}"}`),
		"long name":           head + "  - gen: {name: " + strings.Repeat("x", 1_000_000) + "}\n",
		"long expression":     head + "  - let: {name: x, value: \"" + strings.Repeat("1+", 1_000_000) + "1\"}\n",
		"many variables":      many.String(),
		"nested repeats":      loops,
		"nested foreach":      forks,
		"many dollar signs":   head + "  - user: \"" + strings.Repeat("$${", 300_000) + "\"\n",
		"many open templates": head + "  - user: \"" + strings.Repeat("${'", 300_000) + "\"\n",
	} {
		if testing.Short() && (name == "nested repeats" || name == "nested foreach") {
			continue
		}
		// What takes a second here would take hours without its limit: whether it
		// ends is the test, and no clock.
		g, err := lang.Decode([]byte(doc), "h.yaml")
		if err == nil {
			if _, err := lang.Explain(g, lang.ExplainOptions{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			lang.Mermaid(g)
			if _, err := g.YAML(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		t.Logf("%-20s %.110q", name, fmt.Sprint(err))
	}
}

func TestGraphsAreCheckedWhenPutTogetherByHand(t *testing.T) {
	text := func(s lang.Template) *lang.Node {
		return &lang.Node{Kind: lang.KindText, Text: &lang.TextNode{Role: "user", Content: s}}
	}
	loop := &lang.Node{Kind: lang.KindRepeat, Repeat: &lang.RepeatNode{Max: 1}}
	loop.Repeat.Body = []*lang.Node{loop}
	twice := text("x")
	for name, c := range map[string]struct {
		body []*lang.Node
		want string
	}{
		"inside itself": {[]*lang.Node{loop}, "inside of itself"},
		"twice":         {[]*lang.Node{twice, twice}, "two places"},
		"nil":           {[]*lang.Node{nil}, "nil"},
		"no payload":    {[]*lang.Node{{Kind: lang.KindGen, Name: "x"}}, "does not hold exactly"},
		"two payloads":  {[]*lang.Node{{Kind: lang.KindGen, Name: "x", Gen: &lang.GenNode{}, Let: &lang.LetNode{}}}, "does not hold exactly"},
		"unknown kind":  {[]*lang.Node{{Kind: "x"}}, "does not hold exactly"},
	} {
		g := &lang.Graph{Name: "x", Body: c.body}
		if err := g.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	g := &lang.Graph{Name: "x", Body: []*lang.Node{text("hi")}}
	if err := g.Check(); err != nil || g.Body[0].ID != "user" {
		t.Error(err, g.Body[0].ID)
	}
}

func TestGraphInsideOtherJSON(t *testing.T) {
	g := load(t, "testdata/everything.yaml")
	data, err := json.Marshal(map[string]any{"graph": g})
	if err != nil {
		t.Fatal(err)
	}
	var back struct{ Graph *lang.Graph }
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if back.Graph.Hash() != g.Hash() || back.Graph.Node("looks/finding") == nil {
		t.Error("the graph changed")
	}
}
