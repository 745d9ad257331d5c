package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/backend/sapling"
	"github.com/coppice-run/coppice/runtime"
)

func connect(t *testing.T) func() (backend.Backend, error) {
	return func() (backend.Backend, error) {
		return open.Backend(t.Context(), "engine://sapling", open.Options{Embedded: map[string]func() []byte{"sapling": sapling.GGUF}})
	}
}

// leaves counts the branches of a run that have none below them.
func leaves(bs []runtime.Branch) (n int) {
	for _, b := range bs {
		if len(b.Branches) == 0 {
			n++
		}
		n += leaves(b.Branches)
	}
	return n
}

// TestWorkloads runs all of them on the embedded model: each ends with a value of its
// form, reuses what it shares, and does so with the same result a second time.
func TestWorkloads(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	want := map[string]struct {
		leaves int
		value  string // pattern of the value
	}{
		"fewshot":  {6, `^(0|1|0\.\d+)$`},
		"endings":  {3, `^(0|1|0\.\d+)$`},
		"react":    {0, `^"[A-Za-z0-9 -]+"$`},
		"tree":     {4, `^\{"plan":".*","solution":".*","mark":[1-5]\}$`},
		"skeleton": {3, `^".*\\n.*\\n.*"$`},
		"judge":    {6, `^(10|[1-9])$`},
		"vote":     {5, `^"(the database|one cluster|the queue|the release)"$`},
		"extract":  {0, `^\{"service":".{0,20}","severity":"(low|high|critical)","minutes":\d{1,4},"causes":\[.*\],"release_reverted":(true|false)\}$`},
		"chat":     {0, `^\[".*",".*",".*",".*"\]$`},
		"rag":      {0, `^\{"answer":".*","source":"An? .*\."\}$`},
	}
	require.Len(t, workloads, len(want))
	for _, w := range workloads {
		require.Contains(t, string(readme), "| `"+w.name+"` |", "README.md has no line on it")
		be, err := connect(t)()
		require.NoError(t, err)
		r, err := w.run(t.Context(), be, runtime.WithSeed(3))
		require.NoError(t, err, w.name)
		t.Logf("%s: %.300s %+v", w.name, r.Value, r.Usage)
		require.Regexp(t, want[w.name].value, string(r.Value), w.name)
		require.Equal(t, want[w.name].leaves, leaves(r.Branches), w.name)
		u := r.Usage
		if w.name == "extract" { // one call
			require.Positive(t, u.ForcedTokens)
		} else {
			require.Less(t, u.ComputedTokens*3, u.Without.ComputedTokens*2, "%s shares too little: %+v", w.name, u)
			if leaves(r.Branches) > 0 {
				require.Less(t, u.ForwardPasses, u.Without.ForwardPasses, w.name)
			}
		}
		again, err := w.run(t.Context(), be, runtime.WithSeed(3))
		require.NoError(t, err, w.name)
		require.Equal(t, string(r.Value), string(again.Value), "%s gives another result on a warm cache", w.name)
		require.NoError(t, be.Close())
	}
}

// TestAlone compares a run with the same calls without sharing, as counted and as
// made.
func TestAlone(t *testing.T) {
	var out strings.Builder
	require.NoError(t, show(t.Context(), workloads[0], connect(t), true, &out))
	require.Regexp(t, `computed tokens +\d+ +\d+\n`, out.String())
	require.Regexp(t, `reused +[1-9]\d* +0\n`, out.String())

	be, err := connect(t)()
	require.NoError(t, err)
	defer be.Close()
	rec := &recorder{Backend: be}
	r, err := workloads[0].run(t.Context(), rec)
	require.NoError(t, err)
	require.Len(t, rec.scores, len(questions))
	sum, err := rec.alone(t.Context(), be)
	require.NoError(t, err)
	require.Zero(t, sum.CachedTokens)
	// What a run says it would have cost is what it costs.
	require.Equal(t, r.Usage.Without.ComputedTokens, sum.ComputedTokens)
}

func TestFind(t *testing.T) {
	found, err := find(t.Context(), "What is done when a certificate expired?")
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, handbook[0], found[0])
}

// TestReactLooksThingsUp plays a model that knows what to do.
func TestReactLooksThingsUp(t *testing.T) {
	m := puppet.New()
	m.OnRegexp(`Observation 3: `).Reply("no more rounds")
	m.OnID("rounds[0]/act").Reply("lookup[db-3]")
	m.OnID("rounds[1]/act").Reply("lookup[nobody]")
	m.OnID("rounds[2]/act").Reply("finish[Ada]")
	m.OnAny().Reply("I look it up.")
	r, err := workloads[2].run(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, `"Ada"`, string(r.Value))
	text, err := json.Marshal(r.Turns)
	require.NoError(t, err)
	require.Contains(t, string(text), "db-3 runs the billing service")
	require.Contains(t, string(text), "nothing is known of nobody")
}
