package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
)

// foreseen are programs of which little or much is known before they run.
var foreseen = map[string]string{
	"nothing to choose": `
  - system: You look after servers, and are brief.
  - user: "Which?"
  - gen: {name: a, regex: "all of them"}
  - user: "And?"
  - gen: {name: b, regex: "none"}
  - return: a + b`,
	"patterns and options in a fork": `
  - system: You look after servers, and are brief.
  - user: "Which?"
  - fork:
      name: f
      each: [alpha, alphabet, beta]
      steps:
        - user: "Look at ${item}."
        - gen: {name: g, regex: "abc(de|fg)h", max_tokens: 9}
        - select: {name: s, options: ["left", "left side", "right"]}
      yield: g + s
  - gen: {name: z, regex: "xyz", max_tokens: 8}
  - return: '{f: f, z: z}'`,
	"arms without a request of their own": `
  - user: "root"
  - fork:
      name: a
      arms:
        - name: one
          steps:
            - fork:
                name: b
                arms:
                  - {name: x, steps: [{user: p}, {gen: {name: g, max_tokens: 3, regex: "[a-z]{3}"}}], yield: g}
                  - {name: y, steps: [{user: q}, {fork: {name: c, over: '[1,2,3]', steps: [{user: "${item}"}, {json: {name: j, type: "{n: int}", max_tokens: 30}}], yield: j}}], yield: 'string(c)'}
          yield: b
        - name: two
          steps:
            - fork: {name: e, over: '[]', steps: [{gen: {name: z, max_tokens: 2}}], yield: z}
            - gen: {name: t, max_tokens: 2}
          yield: '[t]'
  - return: a`,
	"a fork in an open turn": `
  - user: "Plan?"
  - role:
      role: assistant
      steps:
        - text: "So far "
        - fork:
            name: f
            each: [left, right]
            steps:
              - text: "${item} "
              - gen: {name: g, max_tokens: 4}
              - fork: {name: h, each: [p, q], as: z, steps: [{text: "${z}:"}, {gen: {name: k, max_tokens: 2}}], yield: k}
            yield: g + string(h)
        - gen: {name: m, max_tokens: 3}
        - select: {name: n, options: ["one more", "one less", "two"]}
  - user: "${f}"
  - gen: {name: x, max_tokens: 3}
  - return: x`,
	"quorums in quorums": `
  - user: "Which fruit?"
  - fork:
      name: outer
      each: [red, green, blue, white]
      as: c
      join: {quorum: 2}
      errors: why
      steps:
        - user: "A ${c} one."
        - fork:
            name: inner
            each: ["1", "2", "3"]
            as: k
            join: first
            steps:
              - user: "Number ${k}."
              - gen: {name: w, max_tokens: 4, check: {expr: 'k == "2"', say: longer}, tries: 2}
            yield: w
        - gen: {name: fin, max_tokens: 3}
      yield: fin
  - user: 'Got ${outer}'
  - gen: {name: last, max_tokens: 5}
  - return: last`,
	"branches that fail": `
  - user: "x"
  - fork:
      name: f
      each: [a, b]
      join: collect
      errors: errs
      steps:
        - user: "${item}"
        - gen: {name: g, max_tokens: 3, check: {expr: "false", say: no}, tries: 2}
        - user: "never"
        - gen: {name: h, regex: "never"}
      yield: h
  - user: "${join(map(f, {string(#)}), \", \")}"
  - gen: {name: z, max_tokens: 3}
  - return: z`,
	"a budget in a branch": `
  - fork:
      name: f
      over: '[1, 2, 3]'
      join: collect
      errors: e
      steps:
        - run: {name: s, program: sub, with: {k: item}}
      yield: s
  - user: after
  - gen: {name: z, max_tokens: 2}
  - return: '{f: f, z: z}'
programs:
  sub:
    inputs: {k: int}
    budget: {generated: 12}
    steps:
      - user: "count ${k}"
      - repeat:
          name: r
          max: 20
          steps:
            - fork: {name: w, each: [a, b, c], steps: [{user: "${item}"}, {gen: {name: g, max_tokens: 2, ignore_eos: true}}], yield: g}
      - return: '"never"'`,
	"programs that begin alike": `
  - run: {name: a, program: outer, with: {q: '"x"'}}
  - run: {name: b, program: outer, with: {q: 'a', m: '3'}}
  - user: "${a} ${b}"
  - gen: {name: g, max_tokens: 3}
  - return: '[a, b, g]'
programs:
  inner:
    inputs: {q: string}
    steps: [{user: "${q}"}, {select: {name: s, options: [a, b]}}, {return: s}]
  outer:
    inputs: {q: string, m: {type: int, default: 2}}
    steps:
      - fork: {name: f, over: '1..m', steps: [{run: {name: r, program: inner, with: {q: 'q + string(item)'}}}], yield: r}
      - return: 'join(f, "")'`,
	"several answers": `
  - user: "Name a colour."
  - gen: {name: c, n: 3, temperature: 1, max_tokens: 4, join: {quorum: 2}, errors: why}
  - fork: {name: v, over: c, steps: [{user: '${item ?? "none"}?'}, {select: {name: s, options: [good, bad], values: [1, 0]}}], yield: s}
  - return: sum(v)`,
	"answers that are cut": `
  - user: "Data."
  - json: {name: d, n: 2, temperature: 0.5, type: "{a: int, b?: bool, c: []string}", max_tokens: 60, check: {expr: "d.a >= 0", say: "a must not be negative"}, tries: 3, join: collect, errors: why}
  - return: len(d)`,
	"a choice in a loop in a loop": `
  - system: "Short."
  - foreach:
      name: rounds
      over: '["pods", "nodes"]'
      as: it
      steps:
        - user: "About ${it}"
        - repeat:
            name: r
            max: 3
            index: i
            steps:
              - user: "Try ${i}"
              - select: {name: s, options: ["yes", "no", "no way", "on the other hand there is very much to be said for that too", "on the other hand there is very much to be said for that one"]}
            until: s == "no way"
      yield: s
  - return: rounds`,
}

// TestRunsMeasureWhatExplainForesees: what a run counts is what was said before it, or
// between its bounds.
func TestRunsMeasureWhatExplainForesees(t *testing.T) {
	for name, steps := range foreseen {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "p.yaml")
			require.NoError(t, os.WriteFile(file, []byte("coppice: 1\nname: p\nsteps:"+steps+"\n"), 0o600))
			do := func(v any, args ...string) {
				t.Helper()
				var out, errs bytes.Buffer
				require.Zero(t, run(t.Context(), append(args, "--json"), strings.NewReader(""), &out, &errs), errs.String())
				require.NoError(t, json.Unmarshal(out.Bytes(), v))
			}
			var said struct {
				Usage map[string]json.RawMessage `json:"usage"`
			}
			var done struct {
				Usage map[string]json.RawMessage `json:"usage"`
			}
			do(&said, "explain", file)
			do(&done, "run", file, "--drafts", "0")
			exact := 0
			for _, what := range []string{"prompt_tokens", "computed_tokens", "cached_tokens", "forced_tokens", "sampled_tokens"} {
				var r lang.Range
				var n int
				require.NoError(t, json.Unmarshal(said.Usage[what], &r))
				require.NoError(t, json.Unmarshal(done.Usage[what], &n))
				if n < r.Min || n > r.Max && !r.Open {
					t.Errorf("%s: %d, and %s were foreseen", what, n, r)
				}
				if r.Min == r.Max && !r.Open {
					exact++
				}
			}
			if name == "nothing to choose" && exact != 5 {
				t.Errorf("%s, though all is known", said.Usage)
			}
		})
	}
}
