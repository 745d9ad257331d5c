package lang_test

import (
	"context"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

type verdict struct {
	Pod    string `json:"pod"`
	Reason string `json:"reason" jsonschema:"enum=OOMKilled,enum=ImagePullBackOff,enum=CrashLoopBackOff,enum=NodeNotReady"`
	OOM    bool   `json:"oom_killed"`
	Action string `json:"recommended_action"`
}

func page(ctx context.Context, alert string) (string, error) { return "paged: " + alert, nil }

func triage() *lang.Def[verdict] {
	return lang.Define("triage", func(p *lang.Program) lang.Var[verdict] {
		alert := lang.In[string](p, "alert", lang.About("what the monitor said"))
		p.System("You are on call. Costs are in $.")
		p.User("Alert: ", alert)
		looks := lang.Fork(p, "looks", lang.Each("memory", "rollout", "network"),
			func(b *lang.Branch, angle lang.Var[string]) lang.Var[string] {
				b.User("Look only at ", angle, ".")
				return b.Gen("finding", lang.MaxTokens(80), lang.Stop("\n"))
			}, lang.ItemName("angle"))
		p.User("Findings:\n", lang.Join(looks, "\n"))
		sev := lang.Select(p, "severity", "low", "high", "critical")
		p.When(sev.Is("critical"), func(p *lang.Program) {
			lang.Call1(p, "page", page, alert, lang.Unsafe())
		})
		return lang.JSON[verdict](p, "verdict", lang.MaxTokens(200))
	})
}

func TestBuilderMakesTheGraph(t *testing.T) {
	d := triage()
	g, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	g.Walk(func(n *lang.Node) bool { ids = append(ids, n.ID); return true })
	want := "system user looks looks/user looks/finding user#2 severity when when/then/page verdict return"
	if got := strings.Join(ids, " "); got != want {
		t.Errorf("ids %s\nwant %s", got, want)
	}
	if got := g.Output.String(); got != "{pod: string, reason: string, oom_killed: bool, recommended_action: string}" {
		t.Errorf("output %s", got)
	}
	if _, ok := d.Funcs()["page"]; !ok {
		t.Error("page is not registered")
	}
	if err := g.Link(d.Funcs()); err != nil {
		t.Error(err)
	}
	n := g.Node("user#2")
	text, err := g.Expand(n.Text.Content, map[string]any{"looks": []any{"a", "b"}})
	if err != nil || text != "Findings:\na\nb" {
		t.Errorf("%q %v", text, err)
	}
	t.Log(string(g.Node("verdict").JSON.Schema))
	t.Log(n.Reads, g.Node("when").Reads, g.Node("looks").Reads, g.Node("looks").Writes)
}
