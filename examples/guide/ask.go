package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

//go:embed runbook.txt
var runbook string

const alert = "Pod cart-5d7f9c-x2x4k was OOMKilled, exit code 137"

var helloProgram = lang.Define("hello", func(p *lang.Program) lang.Var[string] {
	alert := lang.In[string](p, "alert")
	p.System(runbook)
	p.User("Alert: ", alert)
	p.User("Look only at memory.")
	return p.Gen("finding", lang.MaxTokens(40), lang.Stop("\n"))
})

func hello(ctx context.Context, be backend.Backend, w io.Writer) error {
	out, err := runtime.Run(ctx, be, helloProgram, lang.Args{"alert": alert})
	if err != nil {
		return err
	}
	fmt.Fprintln(w, out.Value)
	return nil
}

func stream(ctx context.Context, be backend.Backend, w io.Writer) error {
	events := runtime.SinkFunc(func(e runtime.Event) {
		switch e.Kind {
		case runtime.NodeStarted:
			fmt.Fprintf(w, "%s %s: ", e.Does, e.Task)
		case runtime.TextDelta:
			fmt.Fprint(w, e.Text)
		case runtime.NodeFinished:
			fmt.Fprintf(w, " [%s]\n", e.Finish)
		}
	})
	_, err := runtime.Run(ctx, be, helloProgram, lang.Args{"alert": alert}, runtime.WithSink(events))
	return err
}

var chooseProgram = lang.Define("choose", func(p *lang.Program) lang.Var[string] {
	p.System(runbook)
	p.User("Alert: ", lang.In[string](p, "alert"), "\nQuote the runbook.")
	var kind lang.Var[string]
	p.Role("assistant", func(p *lang.Program) {
		p.Text("Severity of ")
		kind = lang.Select(p, "kind", "OOMKilled", "ImagePullBackOff", "CrashLoopBackOff", "NodeNotReady")
	})
	return kind
})

func choose(ctx context.Context, be backend.Backend, w io.Writer) error {
	_, err := runtime.Run(ctx, be, chooseProgram, lang.Args{"alert": alert}, runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
		for _, s := range e.Scores {
			fmt.Fprintf(w, "%-17s p %.2f\n", s.Option, s.P)
		}
	})))
	return err
}

type Severity struct {
	Name string `json:"name"`
	Page bool   `json:"page"`
}

func (s Severity) String() string { return s.Name }

var answerProgram = lang.Define("answer", func(p *lang.Program) lang.Var[Severity] {
	p.System(runbook)
	p.User("Alert: ", lang.In[string](p, "alert"), "\nQuote the runbook.")
	var severity lang.Var[Severity]
	p.Role("assistant", func(p *lang.Program) {
		p.Text("Severity of ")
		kind := lang.Select(p, "kind", "OOMKilled", "ImagePullBackOff", "CrashLoopBackOff", "NodeNotReady")
		p.Text(": ")
		severity = lang.Select(p, "severity", Severity{"low", false}, Severity{"high", true}, Severity{"critical", true})
		p.Text(".\nAction for ", kind, ": ")
		p.Gen("action", lang.MaxTokens(30), lang.Stop("\n"))
	})
	return severity
})

func answer(ctx context.Context, be backend.Backend, w io.Writer) error {
	out, err := runtime.Run(ctx, be, answerProgram, lang.Args{"alert": alert})
	if err != nil {
		return err
	}
	fmt.Fprintln(w, out.Turns[len(out.Turns)-1].Text())
	fmt.Fprintf(w, "severity %v, page somebody: %v\n", out.Value, out.Value.Page)
	return nil
}
