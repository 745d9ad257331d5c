package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

var branchProgram = lang.Define("branch", func(p *lang.Program) lang.Var[string] {
	p.System(runbook)
	p.User("Alert: ", lang.In[string](p, "alert"))
	looks := lang.Fork(p, "looks", lang.Each("memory", "rollout", "network"),
		func(b *lang.Branch, side lang.Var[string]) lang.Var[string] {
			b.User("Look only at ", side, ".")
			return lang.Calc[string](side, `+ ": " +`, b.Gen("finding", lang.MaxTokens(40), lang.Stop("\n")))
		})
	return lang.Join(looks, "\n")
})

func branch(ctx context.Context, be backend.Backend, w io.Writer) error {
	out, err := runtime.Run(ctx, be, branchProgram, lang.Args{"alert": alert})
	if err != nil {
		return err
	}
	fmt.Fprintln(w, out.Value)
	return nil
}

type Verdict struct {
	Pod    string `json:"pod" jsonschema:"maxLength=60"`
	Reason string `json:"reason" jsonschema:"enum=OOMKilled,enum=ImagePullBackOff,enum=CrashLoopBackOff,enum=NodeNotReady"`
	OOM    bool   `json:"oom_killed"`
}

var typedProgram = lang.Define("typed", func(p *lang.Program) lang.Var[Verdict] {
	p.System(runbook)
	p.User("Alert: ", lang.In[string](p, "alert"))
	looks := lang.Fork(p, "looks", lang.Each("memory", "rollout", "network"),
		func(b *lang.Branch, side lang.Var[string]) lang.Var[string] {
			b.User("Look only at ", side, ".")
			return lang.Calc[string](side, `+ ": " +`, b.Gen("finding", lang.MaxTokens(40), lang.Stop("\n")))
		})
	p.User("Findings:\n", lang.Join(looks, "\n"))
	p.User("Give the verdict as JSON.")
	return lang.JSON[Verdict](p, "verdict", lang.MaxTokens(200))
})

func typed(ctx context.Context, be backend.Backend, w io.Writer) error {
	out, err := runtime.Run(ctx, be, typedProgram, lang.Args{"alert": alert})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%+v\n", out.Value)
	return nil
}

// The same program as a script: Go that looks at each answer.
var typedScript = lang.Script("typed", func(s *lang.S, in struct {
	Alert string `json:"alert"`
}) (Verdict, error) {
	s.System(runbook)
	s.User("Alert: ", in.Alert)
	looks, err := lang.Map(s, "looks", []string{"memory", "rollout", "network"},
		func(b *lang.S, side string) (string, error) {
			b.User("Look only at ", side, ".")
			finding, err := b.Gen("finding", lang.MaxTokens(40), lang.Stop("\n")).Get()
			return side + ": " + finding, err
		})
	if err != nil {
		return Verdict{}, err
	}
	s.User("Findings:\n", strings.Join(looks, "\n"))
	s.User("Give the verdict as JSON.")
	verdict, err := lang.JSON[Verdict](s, "verdict", lang.MaxTokens(200)).Get()
	if err != nil {
		return Verdict{}, err
	}
	if verdict.OOM && verdict.Reason != "OOMKilled" { // what no schema can say
		return Verdict{}, errors.New("the verdict contradicts itself")
	}
	return verdict, nil
})

func scripted(ctx context.Context, be backend.Backend, w io.Writer) error {
	out, err := runtime.RunScript(ctx, be, typedScript, struct {
		Alert string `json:"alert"`
	}{alert})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%+v\n", out.Value)
	return nil
}
