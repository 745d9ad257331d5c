// Command quickstart is the smallest whole program: it opens the embedded
// model, forks two looks at an alert, and prints a typed verdict.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/backend/sapling"
	"github.com/coppice-run/coppice/examples/triage"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

var program = lang.Define("quickstart", func(p *lang.Program) lang.Var[triage.Verdict] {
	p.System(triage.Runbook()) // long and stable: first, so it is computed once
	p.User("Alert: ", lang.In[string](p, "alert"))
	looks := lang.Fork(p, "looks", lang.Each("memory", "rollout", "network"),
		func(b *lang.Branch, side lang.Var[string]) lang.Var[string] {
			b.User("Look only at ", side, ".")
			return lang.Calc[string](side, `+ ": " +`, b.Gen("finding", lang.MaxTokens(48), lang.Stop("\n")))
		})
	p.User("Findings:\n", lang.Join(looks, "\n"), "\nQuote the runbook.")
	p.Role("assistant", func(p *lang.Program) {
		p.Text("Severity of ")
		kind := lang.Select(p, "kind", "OOMKilled", "ImagePullBackOff", "CrashLoopBackOff", "NodeNotReady")
		p.Text(": ")
		lang.Select(p, "severity", "low", "high", "critical")
		p.Text(".\nAction for ", kind, ": ")
		p.Gen("action", lang.MaxTokens(64), lang.Stop("\n"), lang.FrequencyPenalty(0.5))
	})
	p.User("Give the verdict as JSON.")
	return lang.JSON[triage.Verdict](p, "verdict")
})

func main() {
	ctx := context.Background()
	be, err := open.Backend(ctx, "engine://sapling", open.Options{Embedded: map[string]func() []byte{"sapling": sapling.GGUF}})
	if err != nil {
		log.Fatal(err)
	}
	defer be.Close()
	out, err := runtime.Run(ctx, be, program, lang.Args{"alert": "ImagePullBackOff: cannot pull image for pod search-api-5c8d7f-q9x2m"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%+v\n", out.Value)
	fmt.Printf("computed %d tokens instead of %d\n", out.Usage.ComputedTokens, out.Usage.Without.ComputedTokens)
}
