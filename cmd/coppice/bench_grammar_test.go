package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLinesOfTheGrammarRunner(t *testing.T) {
	f, err := readPeer(strings.NewReader(`{"id":"a","compile_cpu_us":100,"ttfm_cpu_us":150,"mask_us":[1,2,3],"commit_us":[1],"tests":[{"valid":true,"acc":true,"eos":true},{"valid":false,"acc":false}]}
{"id":"b","compile_cpu_us":300,"ttfm_cpu_us":350,"mask_us":[9],"commit_us":[2],"tests":[{"valid":false,"acc":true,"eos":true}]}
{"id":"c","compile_cpu_us":10,"error":"no","tests":[]}
{"id":"d","compile_cpu_us":10,"ttfm_cpu_us":20,"mask_us":[],"commit_us":[],"tests":[{"valid":true,"acc":true,"eos":false}]}
`))
	require.NoError(t, err)
	require.Equal(t, []int{4, 1, 1, 1}, []int{f.schemas, f.right, f.wrong, f.refused})
	require.Equal(t, 300.0, f.compile.Max)
	require.Equal(t, 9.0, f.mask.Max)
	require.Equal(t, 4, f.mask.N)
	_, err = readPeer(strings.NewReader("{"))
	require.Error(t, err)

	// The small cases are counted apart.
	f, err = readPeer(strings.NewReader(`{"id":"one","set":"micro","compile_cpu_us":7,"mask_us":[3,5],"tests":[{"valid":true,"acc":true,"eos":true}]}
{"id":"two","set":"micro","compile_cpu_us":7,"error":"no"}
`))
	require.NoError(t, err)
	require.Equal(t, 0, f.schemas)
	require.Len(t, f.micro, 1)
	peers := map[string]*grammarFigures{"llguidance": {micro: map[string]microFigures{"one": {compile: 9}}}, "xgrammar": f}
	r := besideBest(benchRow{What: "one: compile", Value: 3.5}, peers, "one", func(m microFigures) float64 { return m.compile })
	require.Equal(t, benchRow{What: "one: compile (peer: xgrammar)", Value: 3.5, Peer: ptr(7), Ratio: ptr(2)}, r)
	require.Equal(t, benchRow{What: "two"}, besideBest(benchRow{What: "two"}, peers, "two", func(m microFigures) float64 { return m.compile }))

	ms, mb := vocabSaid("a warning\n{\"import_s\":1,\"tok_s\":0.5,\"tok_rss_mb\":12}\n")
	require.Equal(t, []float64{500, 12}, []float64{ms, mb})
	ms, _ = vocabSaid("nothing")
	require.Zero(t, ms)
}

// The small cases that are no schemas go to a script of our own.
func TestPatternsOfPeers(t *testing.T) {
	dir := t.TempDir()
	python := filepath.Join(dir, "python")
	require.NoError(t, os.WriteFile(python, []byte(`#!/bin/sh
# SCRIPT ENGINE TOKENIZER_DIR OUT IN SECONDS
grep -q xgrammar "$1" && grep -q '"ebnf"' "$5" && [ "$2" = llg ] && [ "$6" -gt 0 ] || { echo "bad arguments" >&2; exit 1; }
echo '{"id":"arithmetic","set":"micro","compile_cpu_us":3,"mask_us":[1,2,4],"commit_us":[]}' >"$4"
`), 0o700))
	g := &grammarBenchOptions{python: python}
	f := &grammarFigures{micro: map[string]microFigures{"other": {compile: 1}}}
	require.NoError(t, g.patterns(t.Context(), dir, "llg", f))
	require.Equal(t, 4.0, f.micro["arithmetic"].mask.Max)
	require.Len(t, f.micro, 2)
	err := g.patterns(t.Context(), dir, "other", f)
	require.ErrorContains(t, err, "bad arguments")
}
