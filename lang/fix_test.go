package lang_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

func TestFixMovesWhatIsStableAhead(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("All pods must have limits. ", 30))
	for name, c := range map[string]struct {
		steps string
		want  []string // texts of the turns afterwards; nil: as before
		left  string   // a code that must be left; "": none
	}{
		"sentence of a turn": {"inputs: {now: string}\nsteps:\n  - system: \"At ${now}. " + long + "\"\n  - user: hi\n  - gen: {name: a}\n  - return: a\n",
			[]string{long + " At ${now}.", "hi"}, ""},
		"lines of a turn": {"inputs: {pod: string}\nsteps:\n  - user: \"Alert: ${pod}\\n" + long + "\\n\"\n  - gen: {name: a}\n  - return: a\n",
			[]string{long + "\nAlert: ${pod}\n"}, ""},
		"what refers back stays": {"inputs: {now: string}\nsteps:\n  - user: \"Rules. It is ${now}. This is in UTC. " + long + "\"\n  - gen: {name: a}\n  - return: a\n",
			[]string{"Rules. " + long + " It is ${now}. This is in UTC."}, ""},
		"a sentence over two lines": {"inputs: {now: string}\nsteps:\n  - user: \"It is ${now}\\nin UTC. " + long + "\"\n  - gen: {name: a}\n  - return: a\n",
			[]string{long + " It is ${now}\nin UTC."}, ""},
		"turns of one role": {"inputs: {now: string}\nsteps:\n  - let: {name: h, value: 'now + \".\"'}\n  - user: At ${h}\n  - let: {name: k, value: '1'}\n  - user: \"" + long + "\"\n  - gen: {name: a}\n  - return: '{a: a, k: k}'\n",
			[]string{long, "At ${h}"}, ""},
		"turns of two roles": {"inputs: {now: string}\nsteps:\n  - system: At ${now}.\n  - user: \"" + long + "\"\n  - gen: {name: a}\n  - return: a\n",
			nil, lang.LintVolatileFirst},
		"one sentence": {"inputs: {now: string}\nsteps:\n  - user: \"${now}, " + strings.ReplaceAll(long, ".", ",") + "\"\n  - gen: {name: a}\n  - return: a\n",
			nil, lang.LintVolatileFirst},
		"branches": {"steps:\n  - user: hi\n  - fork:\n      name: f\n      each: [a, b, c]\n      steps:\n        - user: \"${item}? " + long + "\"\n        - gen: {name: g}\n      yield: g\n  - return: f\n",
			[]string{"hi", long + " ${item}?"}, ""},
		"not behind an answer": {"inputs: {now: string}\nsteps:\n  - user: At ${now}.\n  - gen: {name: a}\n  - user: \"" + long + "\"\n  - gen: {name: b}\n  - return: b\n",
			nil, ""},
		"branches that begin alike": {"steps:\n  - fork:\n      name: f\n      each: [a, b]\n      steps: [{system: Rules.}, {user: '${item}'}, {gen: {name: g}}]\n      yield: g\n  - return: f\n",
			[]string{"Rules.", "${item}"}, ""},
		"arms that begin alike, seen later": {"steps:\n  - fork:\n      name: f\n      arms:\n        - {name: x, steps: [{user: Rules.}, {gen: {name: g}}], yield: g}\n        - {name: y, steps: [{user: Rules.}, {user: Y}, {gen: {name: h}}], yield: h}\n  - user: ${join(f)}\n  - gen: {name: a}\n  - return: a\n",
			nil, lang.LintNoSharedPrefix},
	} {
		g := decode(t, c.steps)
		before, _ := g.YAML()
		r, err := lang.Fix(g, lang.ExplainOptions{})
		if err != nil {
			t.Fatal(name, err)
		}
		if after, _ := g.YAML(); string(after) != string(before) {
			t.Errorf("%s: the program itself was changed", name)
		}
		if c.want == nil {
			if len(r.Fixes) > 0 || r.Graph.Hash() != g.Hash() {
				t.Errorf("%s: changed: %v", name, r.Fixes)
			}
		} else if got := texts(r.Graph); !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n%q, want\n%q", name, got, c.want)
		} else if len(r.Fixes) == 0 {
			t.Errorf("%s: says nothing", name)
		}
		if ok := slices.ContainsFunc(r.Left, func(l lang.Lint) bool { return l.Code == c.left }); ok != (c.left != "") || c.left == "" && len(r.Left) > 0 {
			t.Errorf("%s: left %v", name, r.Left)
		}
		if c.want != nil && name != "branches that begin alike" {
			if r.After.Stable.Min+r.After.Usage.Cached.Min < r.Before.Stable.Min+r.Before.Usage.Cached.Min+100 {
				t.Errorf("%s: shared %v and %v tokens, before %v and %v", name, r.After.Stable, r.After.Usage.Cached, r.Before.Stable, r.Before.Usage.Cached)
			}
			if !strings.Contains(r.String(), "the same in every run") {
				t.Error(name, r)
			}
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(name, err)
		}
	}
}

func texts(g *lang.Graph) (out []string) {
	g.Walk(func(n *lang.Node) bool {
		if n.Text != nil {
			out = append(out, string(n.Text.Content))
		}
		return true
	})
	return out
}

// TestFixKeepsAllTexts changes random programs, with sentences in them, and looks
// that nothing is lost, that the steps other than texts keep their order, and that
// there is nothing to change a second time.
func TestFixKeepsAllTexts(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	changed := 0
	for seed := range rounds {
		m := &maker{Rand: rand.New(rand.NewPCG(uint64(seed), 2))}
		g := m.graph()
		// Sentences behind texts that may change.
		g.Walk(func(n *lang.Node) bool {
			if n.Text != nil && m.IntN(2) == 0 {
				n.Text.Content += lang.Template(strings.Repeat(" Pods have limits, said once.", 12+m.IntN(6)))
			}
			return true
		})
		if err := g.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		r, err := lang.Fix(g, lang.ExplainOptions{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		changed += len(r.Fixes)
		if a, b := letters(g), letters(r.Graph); a != b {
			t.Fatalf("seed %d: texts were\n%s\nand are\n%s", seed, a, b)
		}
		if a, b := steps(g), steps(r.Graph); !slices.Equal(a, b) {
			t.Fatalf("seed %d: steps were\n%s\nand are\n%s", seed, a, b)
		}
		if len(r.Fixes) == 0 {
			continue
		}
		if again, err := lang.Fix(r.Graph, lang.ExplainOptions{}); err != nil || len(again.Fixes) > 0 {
			t.Fatalf("seed %d: a second time: %v %v", seed, again.Fixes, err)
		}
	}
	if changed < 3 {
		t.Errorf("only %d changes: the test looks at nothing", changed)
	}
}

func letters(g *lang.Graph) string {
	all := []rune(strings.Join(texts(g), ""))
	slices.Sort(all)
	return string(all)
}

func steps(g *lang.Graph) (out []string) {
	g.Walk(func(n *lang.Node) bool {
		if n.Text == nil {
			out = append(out, n.ID)
		}
		return true
	})
	return out
}
