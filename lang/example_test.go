package lang_test

import (
	"context"
	"fmt"
	"log"

	"github.com/coppice-run/coppice/lang"
)

func Example_triage() {
	type Verdict struct {
		Pod    string `json:"pod"`
		Reason string `json:"reason" jsonschema:"enum=OOMKilled,enum=ImagePullBackOff"`
		OOM    bool   `json:"oom_killed"`
	}
	page := func(ctx context.Context, alert string) (string, error) { return "paged", nil }

	triage := lang.Define("triage", func(p *lang.Program) lang.Var[Verdict] {
		alert := lang.In[string](p, "alert")
		p.System("You are on call for a Kubernetes cluster.") // stable text first
		p.User("Alert: ", alert)
		looks := lang.Fork(p, "looks", lang.Each("memory", "rollout"),
			func(b *lang.Branch, angle lang.Var[string]) lang.Var[string] {
				b.User("Look only at ", angle, ".")
				return b.Gen("finding", lang.MaxTokens(80), lang.Stop("\n"))
			}, lang.ItemName("angle"))
		p.User("Findings:\n", lang.Join(looks, "\n"))
		severity := lang.Select(p, "severity", "low", "high", "critical")
		p.When(severity.Is("critical"), func(p *lang.Program) {
			lang.Call1(p, "page", page, alert, lang.Unsafe())
		})
		p.User("Give the verdict.")
		return lang.JSON[Verdict](p, "verdict")
	})

	g, err := triage.Compile()
	if err != nil {
		log.Fatal(err)
	}
	y, err := g.YAML()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(y))
	// Output:
	// coppice: 1
	// name: triage
	// inputs:
	//   alert: string
	// steps:
	//   - system: You are on call for a Kubernetes cluster.
	//   - user: 'Alert: ${alert}'
	//   - fork:
	//       name: looks
	//       each: [memory, rollout]
	//       as: angle
	//       steps:
	//         - user: Look only at ${angle}.
	//         - gen: {name: finding, max_tokens: 80, stop: ["\n"]}
	//       yield: finding
	//   - user: |-
	//       Findings:
	//       ${join(looks, "\n")}
	//   - select: {name: severity, options: [low, high, critical]}
	//   - when:
	//       if: severity == "critical"
	//       then:
	//         - call:
	//             name: page
	//             func: page
	//             args: [alert]
	//             result: string
	//             unsafe: true
	//   - user: Give the verdict.
	//   - json:
	//       name: verdict
	//       schema:
	//         type: object
	//         properties:
	//           pod: {type: string}
	//           reason: {type: string, enum: [OOMKilled, ImagePullBackOff]}
	//           oom_killed: {type: boolean}
	//         additionalProperties: false
	//         required: [pod, reason, oom_killed]
	//       go_type: lang_test.Verdict
	//   - return: verdict
}

func ExampleDecode() {
	_, err := lang.Decode([]byte(`coppice: 1
name: draft
inputs: {topic: string, limit: int}
steps:
  - user: Write about ${topc}.
  - gen: {name: text, max_tokens: -5}
  - when:
      if: limit + topic
      then:
        - user: Shorter!
`), "draft.yaml")
	fmt.Println(err)
	// Output:
	// draft.yaml:5: user: text reads "topc", which nothing sets: did you mean "topic"?
	//  | topc
	//  | ^
	// draft.yaml:6: text: max_tokens is -5: use a positive number, or 0 for what is left of the context
	// draft.yaml:7: when: if: invalid operation: + (mismatched types int and string)
	//  | limit + topic
	//  | ......^
}

func ExampleGraph_Bind() {
	g, err := lang.Decode([]byte(`coppice: 1
name: greet
inputs:
  names: "[]string"
  loud: {type: bool, default: false}
steps:
  - user: "Greet ${join(names, \" and \")}${loud ? \"!\" : \".\"}"
  - gen: {name: greeting}
  - return: greeting
`), "greet.yaml")
	if err != nil {
		log.Fatal(err)
	}
	vars, err := g.Bind(lang.Args{"names": `["Ada", "Alan"]`, "loud": "yes"})
	if err != nil {
		log.Fatal(err)
	}
	text, err := g.Expand(g.Node("user").Text.Content, vars)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(text)
	_, err = g.Bind(lang.Args{"name": "Ada"})
	fmt.Println(err)
	// Output:
	// Greet Ada and Alan!
	// greet.yaml:4: input "names" ([]string) is missing: give it, the program takes names ([]string), loud (bool, optional)
	// no input "name": did you mean "names"? the program takes names ([]string), loud (bool, optional)
}

func ExampleExplain() {
	g, err := lang.Load("testdata/layout.yaml")
	if err != nil {
		log.Fatal(err)
	}
	x, err := lang.Explain(g, lang.ExplainOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(x)
	// Output:
	// layout 71a94a651810e0d5 (tokens reckoned from the lengths of texts)
	//
	// trunk     129 or more tokens, the first 6 the same in every run
	//           [system] The time is ${now}. You answer questions about the cluster. …
	//
	// asked of the model
	//           times       prompt     computed     cached  forced  sampled
	//   answer      1  129 or more  129 or more  0 or more       0    0-100
	//   all            129 or more  129 or more  0 or more       0    0-100
	//   without sharing and jump-forward: 129 or more tokens computed, 1-100 passes
	//
	// note: input now is not given: its length is not known
	// note: input question is not given: its length is not known
	//
	// testdata/layout.yaml:7: system: "now" changes from run to run, so the 116 tokens of constant text at testdata/layout.yaml:7 are computed anew in each: put it after them (saves 116 tokens) [volatile-before-stable]
}
