package triage

import (
	_ "embed"

	"github.com/coppice-run/coppice/lang"
)

//go:embed runbook.md
var runbook string

// DefaultAlert is the alert that the demo runs on if none is given.
const DefaultAlert = "Pod payment-worker-7d9f8b-x2k9p is in CrashLoopBackOff with exit code 137 (OOMKilled)"

// Verdict is what the agent decides.
type Verdict struct {
	Pod       string `json:"pod" jsonschema:"maxLength=80"`
	Reason    string `json:"reason" jsonschema:"enum=OOMKilled,enum=ImagePullBackOff,enum=CrashLoopBackOff,enum=NodeNotReady"`
	OOMKilled bool   `json:"oom_killed"`
	Action    string `json:"recommended_action" jsonschema:"maxLength=240"`
}

// Program triages one alert. Its input "alert" is the alert's text.
var Program = lang.Define("triage", func(p *lang.Program) lang.Var[Verdict] {
	alert := lang.In[string](p, "alert", lang.Default(DefaultAlert))

	p.System(runbook)
	p.User("Alert: ", alert)
	looks := lang.Fork(p, "looks", lang.Each("memory", "rollout", "network"),
		func(b *lang.Branch, angle lang.Var[string]) lang.Var[string] {
			b.User("Look only at ", angle, ".")
			finding := b.Gen("finding", lang.MaxTokens(48), lang.Stop("\n"))
			return lang.Calc[string](angle, ` + ": " + `, finding)
		})
	p.User("Findings:\n", lang.Join(looks, "\n"), "\nQuote the runbook.")
	// The answer is begun for the model, so that it reads the runbook where it
	// names the kind: what it then concludes has the quotation before it.
	p.Role("assistant", func(p *lang.Program) {
		p.Text("Severity of ")
		kind := lang.Select(p, "kind", "OOMKilled", "ImagePullBackOff", "CrashLoopBackOff", "NodeNotReady")
		p.Text(": ")
		lang.Select(p, "severity", "low", "high", "critical")
		p.Text(".\nAction for ", kind, ": ")
		p.Gen("action", lang.MaxTokens(64), lang.Stop("\n"), lang.FrequencyPenalty(0.5)) // a small model may go round in circles
	})
	p.User("Give the verdict as JSON.")
	return lang.JSON[Verdict](p, "verdict", lang.MaxTokens(320))
})

// Runbook is the shared prompt.
func Runbook() string { return runbook }
