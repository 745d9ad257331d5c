package main

import (
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
)

func readme(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	return string(data)
}

// block is the first code block behind a text.
func block(t *testing.T, doc, after, fence string) string {
	t.Helper()
	_, rest, ok := strings.Cut(doc, after)
	require.True(t, ok, after)
	_, rest, ok = strings.Cut(rest, "```"+fence+"\n")
	require.True(t, ok)
	text, _, ok := strings.Cut(rest, "\n```\n")
	require.True(t, ok)
	return text
}

// TestReadmeShowsThisProgram: README.md shows the program of this folder, and what it
// prints: the verdict to the letter, and about as many tokens, as it is left to chance
// which branch is first.
func TestReadmeShowsThisProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("a long prompt")
	}
	src, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.Contains(t, string(src), block(t, readme(t), "## A program", "go"))

	stdout := os.Stdout
	r, w, err := os.Pipe()
	require.NoError(t, err)
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	printed := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r)
		printed <- string(b)
	}()
	main()
	w.Close()
	got, want := strings.Split(strings.TrimSpace(<-printed), "\n"), strings.Split(block(t, readme(t), "and prints", ""), "\n")
	require.Len(t, got, 2)
	require.Equal(t, want[0], got[0])
	count := regexp.MustCompile(`^computed (\d+) tokens instead of (\d+)$`)
	a, b := count.FindStringSubmatch(want[1]), count.FindStringSubmatch(got[1])
	require.Len(t, a, 3)
	require.Len(t, b, 3)
	for i := 1; i < 3; i++ {
		x, _ := strconv.ParseFloat(a[i], 64)
		y, _ := strconv.ParseFloat(b[i], 64)
		require.InDelta(t, x, y, x/50)
	}
}

// TestReadmeShowsAProgramFile: the file of README.md is a program.
func TestReadmeShowsAProgramFile(t *testing.T) {
	doc := block(t, readme(t), "The same graph can be a file", "yaml")
	_, err := lang.Decode([]byte(doc), "quickstart.yaml", lang.Files(os.DirFS("../triage")))
	require.NoError(t, err)
}
