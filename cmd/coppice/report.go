package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// printReport prints the result of a run of g and what it cost.
func (a *app) printReport(g *lang.Graph, r *runtime.Report) error {
	fmt.Fprintln(a.out, a.harmless(readable(r.Value)))
	fmt.Fprintln(a.out)
	u := r.Usage
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tthis run\twithout coppice\t")
	fmt.Fprintf(w, "tokens computed\t%s\t%s\t\n", thousands(u.ComputedTokens), thousands(u.Without.ComputedTokens))
	fmt.Fprintf(w, "reused from cache\t%s\t0\t\n", thousands(u.CachedTokens))
	fmt.Fprintf(w, "forced by grammar\t%s\t0\t\n", thousands(u.ForcedTokens))
	fmt.Fprintf(w, "sampled\t%s\t%s\t\n", thousands(u.SampledTokens), thousands(u.SampledTokens+u.ForcedTokens))
	fmt.Fprintf(w, "forward passes\t%s\t%s\t\n", thousands(u.ForwardPasses), thousands(u.Without.ForwardPasses))
	if err := w.Flush(); err != nil {
		return err
	}
	selects := ""
	g.Walk(func(n *lang.Node) bool {
		if n.Kind == lang.KindSelect {
			selects = ", a select is a call for each option"
		}
		return selects == ""
	})
	fmt.Fprintf(a.out, "\nwithout coppice: every call computes its whole prompt, every token takes its pass%s\n", selects)
	if r.Restored > 0 {
		fmt.Fprintf(a.out, "%d of %d results came from the journal and were not computed again\n", r.Restored, r.Tasks)
	}
	for _, e := range r.Emulated {
		fmt.Fprintf(a.out, "emulated: %s\n", oneLine(e))
	}
	return nil
}

// readable is a value as a person reads it: a string as its text, anything else
// as indented JSON.
func readable(v json.RawMessage) string {
	var s string
	if json.Unmarshal(v, &s) == nil {
		return s
	}
	var b bytes.Buffer
	if json.Indent(&b, v, "", "  ") != nil {
		return string(v)
	}
	return b.String()
}

// thousands writes 12345 as 12,345.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
