package engine

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/examples/triage"
)

// TestRealRoundingOnWhatTheEmbeddedModelWrites: on texts of the kind that it was trained to
// write, what rounding keys and values costs the embedded model in perplexity is within
// the bounds that real models keep on any text.
func TestRealRoundingOnWhatTheEmbeddedModelWrites(t *testing.T) {
	if os.Getenv("COPPICE_MODELS") == "" {
		t.Skip("COPPICE_MODELS is not set: it asks for the checks that take long, as attention in float32 does")
	}
	if testing.Short() {
		t.Skip("attention in float32 takes minutes under the race detector: run without -short")
	}
	const alerts = 12
	file, err := os.Open("../sapling/testdata/alerts.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	type example struct {
		Alert    string            `json:"alert"`
		Findings map[string]string `json:"findings"`
		Severity string            `json:"severity"`
		triage.Verdict
	}
	said := func(text string) backend.Turn {
		return backend.Turn{Role: backend.Assistant, Parts: []backend.Part{{Text: text}}}
	}
	lines := bufio.NewScanner(file)
	open := func(o model.Options) *Engine {
		m, tok, tmpl := saplingModel(t, o)
		return newFake(t, func(c *Config, _ *fakeModel) {
			c.Model, c.Tokenizer, c.Template, c.Pages, c.Check = m, tok, tmpl, 700, false
		})
	}
	engines := map[string]*Engine{
		"float32": open(model.Options{Float32Attention: true}),
		"bf16":    open(model.Options{}),
		"q8":      open(model.Options{KV: model.Int8}),
	}
	sum, tokens := map[string]float64{}, 0
	read := func(turns []backend.Turn, answer string) {
		e := engines["bf16"]
		prompt, err := e.Tokenize(turns, true)
		if err != nil {
			t.Fatal(err)
		}
		ids := append(prompt, encodeText(e.tok, answer)...)
		ids = append(ids, e.end[0])
		tokens += len(ids) - len(prompt)
		for name, e := range engines {
			r, err := e.Logprobs(t.Context(), &backend.LogprobRequest{Tokens: ids, From: len(prompt)})
			if err != nil {
				t.Fatal(err)
			}
			for _, lp := range r.Logprobs {
				sum[name] -= lp
			}
		}
	}
	for i := 0; i < alerts && lines.Scan(); i++ {
		var ex example
		if err := json.Unmarshal(lines.Bytes(), &ex); err != nil {
			t.Fatal(err)
		}
		alert := []backend.Turn{{Role: backend.System, Parts: []backend.Part{{Text: triage.Runbook()}}}, user("Alert: " + ex.Alert)}
		verdict, err := json.Marshal(ex.Verdict)
		if err != nil {
			t.Fatal(err)
		}
		findings := "Findings:"
		for _, angle := range []string{"memory", "rollout", "network"} {
			findings += "\n" + angle + ": " + ex.Findings[angle]
			read(append(slices.Clip(alert), user("Look only at "+angle+".")), ex.Findings[angle])
		}
		action := "Severity of " + ex.Reason + ": " + ex.Severity + ".\nAction for " + ex.Reason + ": " + ex.Action + "."
		quote := append(slices.Clip(alert), user(findings+"\nQuote the runbook."))
		read(quote, action)
		read(append(quote, said(action), user("Give the verdict as JSON.")), string(verdict))
	}
	perplexity := func(name string) float64 { return math.Exp(sum[name] / float64(tokens)) }
	exact := perplexity("float32")
	for name, most := range map[string]float64{"bf16": 0.005, "q8": 0.01} {
		off := perplexity(name)/exact - 1
		t.Logf("%d tokens: %s %.4f, float32 %.4f: %+.3f%%", tokens, name, perplexity(name), exact, 100*off)
		if math.Abs(off) > most {
			t.Errorf("%s is %.3f%% off, want within %.1f%%", name, 100*off, 100*most)
		}
	}
}
