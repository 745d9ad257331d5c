package lang_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

// byteTokens is a model whose tokens are bytes, with one for the beginning and
// one for the end of a turn.
type byteTokens struct{}

func (byteTokens) Tokenize(turns []lang.Turn, open bool) ([]int32, error) {
	var ids []int32
	role := map[string]int32{"system": 1000, "user": 1001, "assistant": 1002, "tool": 1003}
	for _, t := range turns {
		if t.Role != "" {
			ids = append(ids, role[t.Role])
		}
		for _, b := range []byte(t.Text) {
			ids = append(ids, int32(b))
		}
		if t.Role != "" && !t.Open {
			ids = append(ids, 2000)
		}
	}
	if open {
		ids = append(ids, role["assistant"])
	}
	return ids, nil
}

func (byteTokens) Constrained(c lang.Constraint) (lang.Shape, error) {
	if c.Regex == "[ab]c" {
		return lang.Shape{Tokens: lang.Range{Min: 2, Max: 2}, Forced: lang.Range{Min: 1, Max: 1}, Text: "…c"}, nil
	}
	return lang.Shape{}, errors.New("unknown")
}

func decode(t *testing.T, steps string) *lang.Graph {
	t.Helper()
	g, err := lang.Decode([]byte("coppice: 1\nname: x\n"+steps), "x.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestExplainIsExactWhereNothingIsOpen predicts a program whose answers all have
// two tokens, by hand.
func TestExplainIsExactWhereNothingIsOpen(t *testing.T) {
	g := decode(t, `inputs: {q: {type: string, default: "why"}}
steps:
  - system: rules
  - user: ${q}
  - fork:
      name: looks
      each: [ab, ac]
      as: it
      steps:
        - user: see ${it}
        - gen: {name: f, regex: "[ab]c"}
      yield: f
  - user: ${join(looks, "+")}
  - gen: {name: sum, regex: "[ab]c"}
  - return: sum
`)
	x, err := lang.Explain(g, lang.ExplainOptions{Estimator: byteTokens{}})
	if err != nil {
		t.Fatal(err)
	}
	n := func(n int) lang.Range { return lang.Range{Min: n, Max: n} }
	// <s>rules</> <u>why</> is 12 tokens. A branch adds <u>see ab</><a>, 9, and
	// two that are generated. The second finds 12 + <u>see a = 18 in the cache,
	// and the last prompt, 12 + <u>??+??</> + <a> = 20, finds 13: the next turn
	// is a user's too. Of the two tokens of an answer one is fed.
	if x.Estimated || x.Trunk.Tokens != n(12) || x.Trunk.Stable != n(8) {
		t.Errorf("trunk %+v", x.Trunk)
	}
	want := lang.Forecast{Prompt: n(21 + 21 + 20), Cached: n(0 + 18 + 13), Computed: n(21 + 3 + 7 + 3), Forced: n(3), Sampled: n(3)}
	want.Without.Computed = n(21 + 21 + 20 + 3)
	want.Without.Passes = n(6)
	if x.Usage != want {
		t.Errorf("usage %+v\nwant  %+v", x.Usage, want)
	}
	wantBranches := []lang.BranchForecast{
		{ID: "looks[0]", Fork: "looks", Label: "ab", Shared: n(0), Own: n(22)},
		{ID: "looks[1]", Fork: "looks", Label: "ac", Shared: n(18), Own: n(4)},
	}
	if !reflect.DeepEqual(x.Branches, wantBranches) {
		t.Errorf("branches %+v", x.Branches)
	}
	if len(x.Calls) != 2 || x.Calls[0].Times != n(2) || x.Calls[0].Shape != "…c" || x.Calls[0].Where != "x.yaml:13" {
		t.Errorf("calls %+v", x.Calls)
	}
	if len(x.Notes) > 0 || len(x.Lints) > 0 {
		t.Errorf("notes %v lints %v", x.Notes, x.Lints)
	}
}

func TestExplainGivesRangesWhereSomethingIsOpen(t *testing.T) {
	g := decode(t, `inputs: {items: "[]string", n: int}
steps:
  - user: ${n} items
  - select: {name: s, options: [yes, nope]}
  - when:
      if: s == "yes"
      then:
        - user: more
        - gen: {name: a, max_tokens: 10}
  - repeat:
      name: r
      max: 3
      until: done == "y"
      steps:
        - user: again
        - select: {name: done, options: ["y", "n"]}
  - fork:
      name: f
      over: items
      steps: [{user: "${item}"}, {gen: {name: g, max_tokens: 5}}]
      yield: g
  - return: f
`)
	x, err := lang.Explain(g, lang.ExplainOptions{Estimator: byteTokens{}, Inputs: lang.Args{"items": []string{"a", "b"}}})
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]lang.Range{}
	for _, c := range x.Calls {
		times[c.Node] = c.Times
	}
	want := map[string]lang.Range{"s": {Min: 1, Max: 1}, "when/then/a": {Min: 0, Max: 1}, "r/done": {Min: 1, Max: 3}, "f/g": {Min: 2, Max: 2}}
	if !reflect.DeepEqual(times, want) {
		t.Errorf("times %v", times)
	}
	if x.Usage.Sampled != (lang.Range{Min: 0, Max: 20}) {
		t.Errorf("sampled %v", x.Usage.Sampled)
	}
	// With an unknown list nothing has an upper bound, and the note says why.
	x, err = lang.Explain(g, lang.ExplainOptions{})
	if err != nil || !x.Usage.Computed.Open || !strings.Contains(strings.Join(x.Notes, "\n"), "how many items items has is not known") {
		t.Errorf("%v %v %v", x.Usage.Computed, x.Notes, err)
	}
	// As JSON a known number is a number.
	data, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	var back lang.Explanation
	if err := json.Unmarshal(data, &back); err != nil || !reflect.DeepEqual(&back, x) {
		t.Errorf("%v\n%+v\n%+v", err, &back, x)
	}
	for _, key := range []string{`"trunk":{`, `"stable_tokens":`, `"branches":[`, `"usage":{"prompt_tokens":{"min":`, `"without":{"computed_tokens":`, `"lints":[`} {
		if !strings.Contains(string(data), key) {
			t.Errorf("no %s in %s", key, data)
		}
	}
	if _, err := lang.Explain(g, lang.ExplainOptions{Inputs: lang.Args{"itms": 1}}); err == nil {
		t.Error("an unknown input passes")
	}
}

// TestExplainCountsTriesThatChecksMayAskFor predicts a node that is asked once or
// twice, by hand.
func TestExplainCountsTriesThatChecksMayAskFor(t *testing.T) {
	g := decode(t, `steps:
  - user: hi
  - gen: {name: a, regex: "[ab]c", tries: 2, check: {expr: a != "ac", say: no}}
  - user: on
  - gen: {name: b, max_tokens: 1, min_tokens: 1}
  - return: a + b
`)
	x, err := lang.Explain(g, lang.ExplainOptions{Estimator: byteTokens{}})
	if err != nil {
		t.Fatal(err)
	}
	// <u>hi</><a> and, if the answer is refused, the answer, </><u>…</><a>.
	again := 5 + 2 + 1 + 1 + len(lang.RefusalText("no")) + 1 + 1
	a, b := x.Calls[0], x.Calls[1]
	if a.Times != (lang.Range{Min: 1, Max: 2}) || a.Usage.Prompt != (lang.Range{Min: 5, Max: 5 + again}) || a.Usage.Sampled != (lang.Range{Min: 1, Max: 2}) {
		t.Errorf("%+v", a)
	}
	// The second prompt goes on with the first and its answer, but for the last token of
	// that, which was fed to nobody.
	if a.Usage.Cached != (lang.Range{Min: 0, Max: 6}) {
		t.Errorf("%+v", a.Usage.Cached)
	}
	// What was refused is not in later prompts: <u>hi</><a>ac</><u>on</><a>.
	if want := 5 + 2 + 1 + 4 + 1; b.Usage.Prompt != (lang.Range{Min: want, Max: want}) || b.Times != (lang.Range{Min: 1, Max: 1}) {
		t.Errorf("%+v", b)
	}
}

func TestShapesOfSchemas(t *testing.T) {
	for schema, want := range map[string]string{
		`{type: "{pod: string, ok: bool, n: int}"}`:    `{"pod":"…","ok":…,"n":…}`,
		`{schema: {const: {a: 1}}}`:                    `{"a":1}`,
		`{schema: {enum: [low-risk, low-cost]}}`:       `"low-…"`,
		`{schema: {enum: [xa, xb]}}`:                   `"x…"`,
		`{schema: {enum: [1, 2]}}`:                     `…`,
		`{schema: {}}`:                                 `…`,
		`{schema: {type: "null"}}`:                     `null`,
		`{type: "{a: string, b?: string, c: string}"}`: `{"a":"…"…,"c":"…"}`,
		`{type: "[]{a: int}"}`:                         `[…]`,
		`{schema: {$ref: "#/$defs/x", $defs: {x: {type: object, properties: {k: {type: boolean}}, required: [k], additionalProperties: false}}}}`: `{"k":…}`,
	} {
		g := decode(t, "steps:\n  - user: hi\n  - json: "+strings.Replace(schema, "{", "{name: v, ", 1)+"\n  - return: v\n")
		x, err := lang.Explain(g, lang.ExplainOptions{})
		if err != nil || len(x.Calls) != 1 {
			t.Fatal(err, x)
		}
		if got := x.Calls[0].Shape; got != want {
			t.Errorf("%s: %s, want %s", schema, got, want)
		}
	}
}

func TestLints(t *testing.T) {
	long := strings.Repeat("All pods must have limits. ", 30)
	for name, c := range map[string]struct {
		steps string
		want  []string // code, and text in the message
	}{
		"clock before runbook in one turn": {"inputs: {now: string}\nsteps:\n  - system: \"At ${now}. " + long + "\"\n  - user: hi\n  - gen: {name: a}\n  - return: a\n",
			[]string{"volatile-before-stable", `"now" changes from run to run`}},
		"clock before runbook in two turns": {"inputs: {now: string}\nsteps:\n  - system: At ${now}.\n  - user: \"" + long + "\"\n  - gen: {name: a}\n  - return: a\n",
			[]string{"volatile-before-stable", "put it after them"}},
		"hidden by a let": {"inputs: {now: string}\nsteps:\n  - let: {name: head, value: 'now + \".\"'}\n  - system: At ${head}\n  - user: \"" + long + "\"\n  - gen: {name: a}\n  - return: a\n",
			[]string{"volatile-before-stable", `"head"`}},
		"stable first": {"inputs: {now: string}\nsteps:\n  - system: \"" + long + "\"\n  - user: At ${now}.\n  - gen: {name: a}\n  - return: a\n", nil},
		"item before runbook in each branch": {"steps:\n  - user: hi\n  - fork:\n      name: f\n      each: [a, b, c]\n      steps:\n        - user: \"${item}: " + long + "\"\n        - gen: {name: g}\n      yield: g\n  - return: f\n",
			[]string{"volatile-before-stable", "differs between the branches"}},
		"nothing shared":                      {"steps:\n  - fork:\n      name: f\n      each: [a, b]\n      steps: [{user: '${item}'}, {gen: {name: g}}]\n      yield: g\n  - return: f\n", []string{"fork-without-prefix", "share nothing"}},
		"after the end":                       {"steps:\n  - user: hi\n  - gen: {name: a}\n  - return: a\n  - user: more\n", []string{"unreachable", "the program ends at x.yaml:6"}},
		"after two ends":                      {"steps:\n  - user: hi\n  - select: {name: s, options: [a, b]}\n  - when: {if: s == \"a\", then: [{return: s}], else: [{return: '\"x\"'}]}\n  - user: more\n", []string{"unreachable", ""}},
		"a condition that never holds":        {"steps:\n  - user: hi\n  - gen: {name: a}\n  - when: {if: 1 > 2, then: [{user: x}, {gen: {name: b}}], else: [{user: y}, {gen: {name: c}}]}\n  - user: z\n  - gen: {name: d}\n  - return: d\n", []string{"unreachable", "1 > 2 is always false"}},
		"a condition that always holds":       {"steps:\n  - user: hi\n  - gen: {name: a}\n  - when: {if: len(\"x\") == 1, then: [{return: a}], else: [{return: \"2\"}]}\n", []string{"unreachable", "is always true"}},
		"unused input":                        {"inputs: {q: string}\nsteps:\n  - user: hi\n  - gen: {name: a}\n  - return: a\n", []string{"unused-variable", `the input "q"`}},
		"unused answer":                       {"steps:\n  - user: hi\n  - gen: {name: a}\n", []string{"unused-variable", `nothing reads "a"`}},
		"answer seen by a later request":      {"steps:\n  - user: hi\n  - gen: {name: a}\n  - user: more\n  - gen: {name: b}\n  - return: b\n", nil},
		"unused list":                         {"steps:\n  - user: hi\n  - fork: {name: f, each: [a], steps: [{user: x}, {gen: {name: g}}], yield: g}\n", []string{"unused-variable", `nothing reads "f"`}},
		"unused let":                          {"steps:\n  - let: {name: x, value: '1'}\n", []string{"unused-variable", `nothing reads "x"`}},
		"one option":                          {"steps:\n  - user: hi\n  - select: {name: s, options: [only]}\n  - return: s\n", []string{"one-option", `always gives "only"`}},
		"optional keys":                       {"steps:\n  - user: hi\n  - json: {name: s, type: \"{a?: int, b?: int, c?: int, d?: int, e?: int, f?: int, g?: int, h?: int, i?: int}\"}\n  - return: s\n", []string{"optional-keys", "9 keys may be left out"}},
		"no prompt":                           {"steps:\n  - gen: {name: a}\n  - return: a\n", []string{"empty-context", ""}},
		"two answers":                         {"steps:\n  - user: hi\n  - gen: {name: a}\n  - gen: {name: b}\n  - return: b\n", []string{"two-answers", ""}},
		"one turn of two":                     {"steps:\n  - user: hi\n  - role: {role: assistant, steps: [{gen: {name: a}}, {text: ' and '}, {gen: {name: b}}]}\n  - return: b\n", nil},
		"full context":                        {"steps:\n  - user: \"" + strings.Repeat(long, 10) + "\"\n  - gen: {name: a, max_tokens: 500}\n  - return: a\n", []string{"near-context", "the model's holds 2,000"}},
		"secret":                              {"steps:\n  - user: \"use AKIA" + "ABCDEFGHIJKLMNOP\"\n  - gen: {name: a}\n  - return: a\n", []string{"secret", "an access key"}},
		"a token":                             {"steps:\n  - user: \"use github_pat_" + "11ABCDEFG0abcdefghijkl\"\n  - gen: {name: a}\n  - return: a\n", []string{"secret", "a token"}},
		"a signed token":                      {"steps:\n  - user: \"use eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0NTY3In0.dozjgNryP4J3jVmNHl0w5N\"\n  - gen: {name: a}\n  - return: a\n", []string{"secret", "a token"}},
		"a key of another house":              {"steps:\n  - user: \"use AIza" + strings.Repeat("a1B2c", 7) + "\"\n  - gen: {name: a}\n  - return: a\n", []string{"secret", "an API key"}},
		"a password in an address":            {"steps:\n  - user: \"postgres://admin:hunter2hunter2@db/prod\"\n  - gen: {name: a}\n  - return: a\n", []string{"secret", "a password"}},
		"an address without one":              {"steps:\n  - user: \"http://db:8080/prod and mail to a@b.c\"\n  - gen: {name: a}\n  - return: a\n", nil},
		"secret in an item":                   {"steps:\n  - user: hi\n  - fork: {name: f, each: [\"AKIA" + "ABCDEFGHIJKLMNOP\", b], steps: [{user: '${item}'}, {gen: {name: g}}], yield: g}\n  - return: f\n", []string{"secret", "an access key"}},
		"secret in an expression":             {"steps:\n  - let: {name: x, value: '\"AKIA" + "ABCDEFGHIJKLMNOP\"'}\n  - user: ${x}\n  - gen: {name: a}\n  - return: a\n", []string{"secret", "an access key"}},
		"secret in a default":                 {"inputs: {k: {type: string, default: \"AKIA" + "ABCDEFGHIJKLMNOP\"}}\nsteps:\n  - user: ${k}\n  - gen: {name: a}\n  - return: a\n", []string{"secret", "default of input"}},
		"branches that cannot differ":         {"steps:\n  - user: hi\n  - fork: {name: f, each: [a, b], steps: [{user: x}, {gen: {name: g}}], yield: g}\n  - return: f\n", []string{"same-branches", "read \"item\" in them"}},
		"branches that differ by chance":      {"steps:\n  - user: hi\n  - gen: {name: f, n: 3, temperature: 1}\n  - return: f\n", nil},
		"one answer as a list":                {"steps:\n  - user: hi\n  - gen: {name: f, n: 1}\n  - return: f\n", nil},
		"tries that cannot help":              {"steps:\n  - text: once\n  - gen: {name: a, check: len(a) > 1}\n  - return: a\n", []string{"useless-tries", "in raw text"}},
		"tries in a turn":                     {"steps:\n  - user: hi\n  - role: {role: assistant, steps: [{text: so}, {gen: {name: a, check: len(a) > 1}}]}\n  - return: a\n", nil},
		"an answer that only its check reads": {"steps:\n  - user: hi\n  - gen: {name: a, check: len(a) > 1}\n", []string{"unused-variable", ""}},
		"password":                            {"inputs: {p: string}\nsteps:\n  - user: \"password: ${p} or password=hunter2hunter2\"\n  - gen: {name: a}\n  - return: a\n", []string{"secret", "a password"}},
	} {
		x, err := lang.Explain(decode(t, c.steps), lang.ExplainOptions{Context: 2000, Remote: true})
		if err != nil {
			t.Fatal(name, err)
		}
		if c.want == nil {
			if len(x.Lints) > 0 {
				t.Errorf("%s: %v", name, x.Lints)
			}
			continue
		}
		if len(x.Lints) != 1 || x.Lints[0].Code != c.want[0] || !strings.Contains(x.Lints[0].Message, c.want[1]) || !strings.HasPrefix(x.Lints[0].Where, "x.yaml:") {
			t.Errorf("%s: %v, want %v", name, x.Lints, c.want)
			continue
		}
		if l := x.Lints[0]; l.Code == lang.LintVolatileFirst && l.SavesTokens < 100 {
			t.Errorf("%s: saves %d", name, l.SavesTokens)
		}
	}
}

func TestExplanationForATerminal(t *testing.T) {
	g, err := triage().Compile()
	if err != nil {
		t.Fatal(err)
	}
	x, err := lang.Explain(g, lang.ExplainOptions{Inputs: lang.Args{"alert": "Pod web-1 is down"}})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/triage.explain", x.String())
}
