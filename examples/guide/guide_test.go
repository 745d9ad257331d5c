package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

var update = flag.Bool("update", false, "write what the programs print into docs/guide.md")

const guide = "../../docs/guide.md"

// blocks are the marked code blocks of the guide: what the mark says, the fence's
// language, the text.
var blocks = regexp.MustCompile("(?m)^<!-- (code|output): (\\S+) -->\n```(\\w*)\n((?s:.*?))^```$")

func openSapling(t *testing.T) backend.Backend {
	t.Helper()
	be, err := open.Backend(t.Context(), "engine://sapling", open.Options{Embedded: embedded})
	require.NoError(t, err)
	t.Cleanup(func() { be.Close() })
	return be
}

// TestGuide runs every program of the guide on the embedded model and compares what
// it prints with what the guide shows. All Go in the guide stands in this folder.
func TestGuide(t *testing.T) {
	data, err := os.ReadFile(guide)
	require.NoError(t, err)
	doc := string(data)
	be := openSapling(t)
	printed := map[string]string{}
	for _, s := range steps {
		var out strings.Builder
		require.NoError(t, s.run(t.Context(), be, &out), s.name)
		printed[s.name] = out.String()
	}
	shown := map[string]bool{}
	for _, b := range blocks.FindAllStringSubmatch(doc, -1) {
		switch whole, kind, what, text := b[0], b[1], b[2], b[4]; kind {
		case "code":
			src, err := os.ReadFile(filepath.FromSlash(what))
			require.NoError(t, err)
			for _, part := range strings.Split(text, "\n// ...\n") {
				require.Contains(t, string(src), strings.TrimSpace(part), "%s has other code than the guide shows", what)
			}
		case "output":
			require.Contains(t, printed, what)
			shown[what] = true
			if *update {
				doc = strings.Replace(doc, whole, strings.Replace(whole, text, printed[what], 1), 1)
				continue
			}
			require.Equal(t, printed[what], text, "what %s prints is not what the guide shows; go test ./examples/guide -update", what)
		}
	}
	for _, s := range steps {
		require.True(t, shown[s.name], "the guide does not show what %s prints", s.name)
	}
	fences := strings.Count(doc, "```go\n") + strings.Count(doc, "```text\n")
	require.Equal(t, fences, len(blocks.FindAllString(doc, -1)), "a block of Go or output in the guide has no mark above it")
	if *update {
		require.NoError(t, os.WriteFile(guide, []byte(doc), 0o644))
	}
}

// TestBothWaysGiveTheSameTokens runs the program of the guide that is written as a
// graph and as a script, and compares every node with its tokens.
func TestBothWaysGiveTheSameTokens(t *testing.T) {
	be := openSapling(t)
	tokens := func(run func(ctx context.Context, o ...runtime.Option) error) []string {
		got := map[string]*strings.Builder{}
		sink := runtime.SinkFunc(func(e runtime.Event) {
			if e.Task == "" {
				return
			}
			b := got[e.Task]
			if b == nil {
				b = &strings.Builder{}
				got[e.Task] = b
			}
			switch e.Kind {
			case runtime.TextDelta:
				for _, id := range e.Tokens {
					fmt.Fprint(b, " ", id)
				}
			case runtime.NodeFinished:
				fmt.Fprintf(b, " = %s %s %s %s", e.Does, e.Node, e.Text, e.Value)
			}
		})
		require.NoError(t, run(t.Context(), runtime.WithSink(sink), runtime.WithSeed(7)))
		var lines []string
		for task, b := range got {
			lines = append(lines, task+b.String())
		}
		slices.Sort(lines)
		return lines
	}
	graph := tokens(func(ctx context.Context, o ...runtime.Option) error {
		_, err := runtime.Run(ctx, be, typedProgram, lang.Args{"alert": alert}, o...)
		return err
	})
	script := tokens(func(ctx context.Context, o ...runtime.Option) error {
		_, err := runtime.RunScript(ctx, be, typedScript, struct {
			Alert string `json:"alert"`
		}{alert}, o...)
		return err
	})
	require.Equal(t, graph, script)
	require.Len(t, graph, 4)
	require.Regexp(t, `^looks\[0\]/finding( \d+)+ = gen`, graph[0])
}

// TestFixRaisesSharedTokens runs the guide's program with a clock twice, as it is and
// with its better layout, and counts what the second run finds in the cache.
func TestFixRaisesSharedTokens(t *testing.T) {
	g, err := lang.Decode([]byte(layoutFile), "layout.yaml")
	require.NoError(t, err)
	fixed, err := lang.Fix(g, lang.ExplainOptions{})
	require.NoError(t, err)
	reused := func(g *lang.Graph) (cached, prompt int) {
		be := openSapling(t)
		for _, now := range []string{"noon", "one in the afternoon"} {
			r, err := runtime.RunGraph(t.Context(), be, g, nil, lang.Args{"now": now, "alert": alert})
			require.NoError(t, err)
			cached, prompt = r.Usage.CachedTokens, r.Usage.PromptTokens
		}
		return cached, prompt
	}
	before, _ := reused(g)
	after, prompt := reused(fixed.Graph)
	t.Logf("%d of %d tokens, were %d", after, prompt, before)
	require.Less(t, before, prompt/4)
	require.Greater(t, after, prompt/2)
}
