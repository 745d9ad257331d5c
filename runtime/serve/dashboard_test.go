package serve

import (
	"encoding/json"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The dashboard asks for metrics that there are, by labels that they have.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile("../../docs/deploy/grafana/coppice.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name string }
		}
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	c.ok("/v1/completions", tree{"prompt": "a", "max_tokens": 3})
	c.post("/v1/completions", tree{"prompt": "a", "guided_regex": "("})
	c.ok("/v1/programs", strings.ReplaceAll(looks, "max_tokens: 60", "max_tokens: 4"))
	c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})
	c.srv.Close() // the run is counted after its answer
	resp := c.do("GET", "/metrics", nil)
	defer resp.Body.Close()
	shown, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, line := range strings.Split(string(shown), "\n") {
		name, _, _ := strings.Cut(line, "{")
		known[name] = true
	}
	selector := regexp.MustCompile(`([a-z_]+:?[a-z_0-9]*)\{`)
	seen := map[int]bool{}
	queries := 0
	for _, p := range d.Panels {
		if seen[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		seen[p.ID] = true
		for _, x := range p.Targets {
			names := selector.FindAllStringSubmatch(x.Expr, -1)
			if len(names) == 0 || strings.Count(x.Expr, "(") != strings.Count(x.Expr, ")") {
				t.Errorf("%s: %s", p.Title, x.Expr)
			}
			for _, n := range names {
				queries++
				if !known[n[1]] {
					t.Errorf("%s: there is no metric %s", p.Title, n[1])
				}
			}
		}
	}
	if queries < 20 || len(d.Templating.List) != 3 {
		t.Errorf("%d queries, %d variables", queries, len(d.Templating.List))
	}
}
