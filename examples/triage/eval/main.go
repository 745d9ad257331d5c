// Command eval measures a model on the triage program: for each alert of a file
// the whole program runs, runbook included, and its verdict is compared with
// the expected one.
//
//	go run ./examples/triage/eval            the embedded model, 200 held-out alerts
//	go run ./examples/triage/eval --json     the figures as data
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/backend/sapling"
	"github.com/coppice-run/coppice/examples/triage"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// example is an alert with the right answers.
type example struct {
	Alert    string `json:"alert"`
	Severity string `json:"severity"`
	triage.Verdict
}

// figures are shares of right answers.
type figures struct {
	Alerts    int     `json:"alerts"`
	Pod       float64 `json:"pod"`
	Reason    float64 `json:"reason"`
	OOMKilled float64 `json:"oom_killed"`
	Severity  float64 `json:"severity"`
	Action    float64 `json:"recommended_action"`
	Failed    int     `json:"failed"` // runs without a verdict
	Seconds   float64 `json:"seconds"`
}

func main() {
	file := flag.String("alerts", "backend/sapling/testdata/alerts.jsonl", "examples, one JSON object a line")
	url := flag.String("backend", "engine://sapling", "model to measure, as a URL or a .gguf file")
	wrong := flag.Bool("wrong", false, "print each wrong answer")
	asJSON := flag.Bool("json", false, "print JSON")
	flag.Parse()
	if err := measure(*file, *url, *wrong, *asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "eval:", err)
		os.Exit(1)
	}
}

func measure(file, url string, wrong, asJSON bool) error {
	list, err := read(file)
	if err != nil {
		return err
	}
	ctx := context.Background()
	be, err := open.Backend(ctx, url, open.Options{Embedded: map[string]func() []byte{"sapling": sapling.GGUF}})
	if err != nil {
		return err
	}
	defer be.Close()

	type answer struct {
		verdict  triage.Verdict
		severity string
		err      error
	}
	answers := make([]answer, len(list))
	start := time.Now()
	var g errgroup.Group
	g.SetLimit(16)
	for i, ex := range list {
		g.Go(func() error {
			out, err := runtime.Run(ctx, be, triage.Program, lang.Args{"alert": ex.Alert})
			if err != nil {
				answers[i].err = err
				return nil
			}
			var vars struct {
				Severity string `json:"severity"`
			}
			answers[i].err = json.Unmarshal(out.Variables, &vars)
			answers[i].verdict, answers[i].severity = out.Value, vars.Severity
			return nil
		})
	}
	_ = g.Wait()

	f := figures{Alerts: len(list), Seconds: time.Since(start).Seconds()}
	share := 1 / float64(len(list))
	score := func(right bool, to *float64, i int, what, got, want string) {
		if right {
			*to += share
		} else if wrong {
			fmt.Printf("%q\n  %s: got %q, want %q\n", list[i].Alert, what, got, want)
		}
	}
	for i, ex := range list {
		a := answers[i]
		if a.err != nil {
			f.Failed++
			fmt.Fprintf(os.Stderr, "%q: %v\n", ex.Alert, a.err)
			continue
		}
		score(a.verdict.Pod == ex.Pod, &f.Pod, i, "pod", a.verdict.Pod, ex.Pod)
		score(a.verdict.Reason == ex.Reason, &f.Reason, i, "reason", a.verdict.Reason, ex.Reason)
		score(a.verdict.OOMKilled == ex.OOMKilled, &f.OOMKilled, i, "oom_killed", fmt.Sprint(a.verdict.OOMKilled), fmt.Sprint(ex.OOMKilled))
		score(a.severity == ex.Severity, &f.Severity, i, "severity", a.severity, ex.Severity)
		score(a.verdict.Action == ex.Action, &f.Action, i, "recommended_action", a.verdict.Action, ex.Action)
	}
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(f)
	}
	fmt.Printf("%d alerts in %.1f s, %d without a verdict\n", f.Alerts, f.Seconds, f.Failed)
	fmt.Printf("  pod copied exactly            %5.1f%%\n", 100*f.Pod)
	fmt.Printf("  reason right                  %5.1f%%\n", 100*f.Reason)
	fmt.Printf("  oom_killed right              %5.1f%%\n", 100*f.OOMKilled)
	fmt.Printf("  severity as in the runbook    %5.1f%%\n", 100*f.Severity)
	fmt.Printf("  action as in the runbook      %5.1f%%\n", 100*f.Action)
	return nil
}

func read(file string) ([]example, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []example
	s := bufio.NewScanner(f)
	for s.Scan() {
		var ex example
		if err := json.Unmarshal(s.Bytes(), &ex); err != nil {
			return nil, fmt.Errorf("%s line %d: %w", file, len(list)+1, err)
		}
		list = append(list, ex)
	}
	if len(list) == 0 && s.Err() == nil {
		return nil, fmt.Errorf("%s holds no alerts", file)
	}
	return list, s.Err()
}
