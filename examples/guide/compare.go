package main

import "github.com/coppice-run/coppice/lang"

// compareProgram is the program that docs/compare.md writes in several libraries.
var compareProgram = lang.Define("compare", func(p *lang.Program) lang.Var[string] {
	p.System(runbook)
	p.User("Alert: ", lang.In[string](p, "alert"))
	looks := lang.Fork(p, "looks", lang.Each("memory", "rollout", "network"),
		func(b *lang.Branch, side lang.Var[string]) lang.Var[string] {
			b.User("Look only at ", side, ".")
			return b.Gen("finding", lang.MaxTokens(40), lang.Stop("\n"))
		})
	p.User("Findings:\n", lang.Join(looks, "\n"), "\nHow severe is it?")
	return lang.Select(p, "severity", "low", "high", "critical")
})
