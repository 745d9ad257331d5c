package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeShowsTheDemo runs what make demo runs and compares it with what README.md
// shows: the texts are the same to the letter, in any order of the branches, and the
// figures nearly so, as it is left to chance which requests share a pass.
func TestReadmeShowsTheDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("a long prompt")
	}
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(readme), "Piped, it prints:\n\n```\n")
	require.True(t, ok)
	shown, _, ok := strings.Cut(rest, "```\n")
	require.True(t, ok)
	alert := regexp.MustCompile(`(?m)^ALERT \?= (.*)$`).FindSubmatch(makefile)
	require.NotNil(t, alert)

	var out, errs bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"run", "triage", "--input", "alert=" + string(alert[1])}, strings.NewReader(""), &out, &errs), errs.String())
	figure := regexp.MustCompile(`\b\d[\d,]*\b`)
	split := func(s string) (texts []string, figures map[string][]float64) {
		figures = map[string][]float64{}
		for line := range strings.Lines(s) {
			if !strings.HasPrefix(line, "  ") || strings.HasPrefix(line, `  "`) {
				texts = append(texts, line)
				continue
			}
			var all []float64
			for _, f := range figure.FindAllString(line, -1) {
				x, err := strconv.ParseFloat(strings.ReplaceAll(f, ",", ""), 64)
				require.NoError(t, err)
				all = append(all, x)
			}
			figures[strings.TrimSpace(figure.ReplaceAllString(line, ""))] = all
		}
		slices.Sort(texts)
		return texts, figures
	}
	wantTexts, want := split(shown)
	gotTexts, got := split(errs.String() + out.String())
	require.Equal(t, wantTexts, gotTexts)
	require.Len(t, want, 6)
	for what, figures := range want {
		require.Len(t, got[what], len(figures), what)
		for i, x := range figures {
			require.InDelta(t, x, got[what][i], max(x/50, 8), what)
		}
	}
}
