package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// flowProgram quotes the runbook on alerts until one is critical, then looks at that
// from two sides.
var flowProgram = lang.Define("flow", func(p *lang.Program) lang.Var[string] {
	alerts := lang.In[[]string](p, "alerts")
	sides := lang.In[[]string](p, "sides", lang.Default([]string{"memory", "network"}))
	p.System(runbook)
	var kind, severity lang.Var[string]
	p.Repeat("rounds", 10, func(p *lang.Program, round lang.Var[int]) lang.Cond {
		p.User("Alert: ", lang.Calc[string](alerts, "[", round, "]"), "\nQuote the runbook.")
		p.Role("assistant", func(p *lang.Program) {
			p.Text("Severity of ")
			kind = lang.Select(p, "kind", "OOMKilled", "ImagePullBackOff", "CrashLoopBackOff", "NodeNotReady")
			p.Text(": ")
			severity = lang.Select(p, "severity", "low", "high", "critical")
		})
		return lang.Calc[bool](severity, ` == "critical" or `, round, " + 1 == len(", alerts, ")")
	})
	p.When(severity.Is("critical"), func(p *lang.Program) {
		lang.Let[string](p, "head", `"page for " +`, kind)
	}, func(p *lang.Program) {
		lang.Let[string](p, "head", `"nothing urgent, last was " +`, kind)
	})
	notes := lang.ForEach(p, "notes", sides, func(p *lang.Program, side lang.Var[string]) lang.Var[string] {
		p.User("Look only at ", side, ".")
		return lang.Calc[string](side, `+ ": " +`, p.Gen("note", lang.MaxTokens(40), lang.Stop("\n")))
	})
	return lang.Calc[string](`head + "\n" + `, lang.Join(notes, "\n"))
})

func flow(ctx context.Context, be backend.Backend, w io.Writer) error {
	out, err := runtime.Run(ctx, be, flowProgram, lang.Args{"alerts": []string{
		"Failed to pull image shop/search:v9, ImagePullBackOff",
		alert,
		"Node pool-a-7 is NotReady",
	}})
	if err != nil {
		return err
	}
	fmt.Fprintln(w, out.Value)
	return nil
}

// limits stands for a lookup in the cluster.
func limits(ctx context.Context, pod string) (string, error) {
	if !strings.HasPrefix(pod, "cart-") {
		return "", fmt.Errorf("no pod %q", pod)
	}
	return "memory limit 256Mi, used 255Mi", nil
}

var callProgram = lang.Define("call", func(p *lang.Program) lang.Var[string] {
	alert := lang.In[string](p, "alert")
	pod := lang.Let[string](p, "pod", `split(`, alert, `, " ")[1]`)
	facts := lang.Call1(p, "facts", limits, pod)
	p.System(runbook)
	p.User("Alert: ", alert, ", ", facts)
	p.User("Look only at memory.")
	return lang.Calc[string](facts, `+ " -> " +`, p.Gen("finding", lang.MaxTokens(40), lang.Stop("\n")))
})

func call(ctx context.Context, be backend.Backend, w io.Writer) error {
	out, err := runtime.Run(ctx, be, callProgram, lang.Args{"alert": alert})
	if err != nil {
		return err
	}
	fmt.Fprintln(w, out.Value)
	_, err = runtime.Run(ctx, be, callProgram, lang.Args{"alert": "Pod web-1 is slow"})
	fmt.Fprintln(w, "error:", err)
	return nil
}

type PodArgs struct {
	Pod string `json:"pod" jsonschema:"description=name of the pod"`
}

func toolsProgram(format lang.ToolFormat) *lang.Def[string] {
	box := lang.Tools(format,
		lang.NewTool("limits", "Memory limit and use of a pod.", func(ctx context.Context, a PodArgs) (string, error) {
			return limits(ctx, a.Pod)
		}))
	return lang.Define("tools", func(p *lang.Program) lang.Var[string] {
		p.System("You are on call.\n", box.Text())
		p.User("Why was ", lang.In[string](p, "pod"), " killed?")
		return lang.Agent(p, "agent", box, lang.Steps(4), lang.MaxTokens(100))
	})
}

// The embedded model was not taught to call tools: a scripted one takes its place.
func tools(ctx context.Context, _ backend.Backend, w io.Writer) error {
	model := puppet.New()
	model.OnID("agent[0]/agent_reply").Reply("<tool_call>\n" + `{"name": "limits", "arguments": {"pod": "cart-5d7f9c-x2x4k"}}` + "\n</tool_call>")
	model.OnID("agent[1]/agent_reply").Reply("It used 255 of 256 MiB.")
	out, err := runtime.Run(ctx, model, toolsProgram(runtime.ToolFormat(model)), lang.Args{"pod": "cart-5d7f9c-x2x4k"})
	if err != nil {
		return err
	}
	for _, t := range out.Turns[2:] {
		fmt.Fprintf(w, "%s: %s\n", t.Role, strings.ReplaceAll(t.Text(), "\n", " "))
	}
	fmt.Fprintln(w, "answer:", out.Value)
	return nil
}

const layoutFile = `coppice: 1
name: layout
inputs: {now: string, alert: string}
steps:
  - user: |
      The clock says ${now}.
      All pods of the shop have a memory limit of 256Mi. A pod that reaches it is
      killed at once and started again. Three such ends within ten minutes page the
      team that owns the pod. Nodes are in three zones. A node that does not answer
      for five minutes loses its pods. Releases are stopped by hand only.
      Alert: ${alert}
  - gen: {name: finding, max_tokens: 40}
  - return: finding
`

func layout(ctx context.Context, be backend.Backend, w io.Writer) error {
	g, err := lang.Decode([]byte(layoutFile), "layout.yaml")
	if err != nil {
		return err
	}
	fixed, err := lang.Fix(g, lang.ExplainOptions{})
	if err != nil {
		return err
	}
	fmt.Fprint(w, fixed)
	fmt.Fprintln(w, fixed.Graph.Node("user").Text.Content)
	return nil
}
