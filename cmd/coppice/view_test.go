package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// viewOf shows events on a terminal of that style, without drawing them.
func viewOf(s style, events ...runtime.Event) *view {
	v := newView(&bytes.Buffer{}, &lang.Graph{Name: "triage"}, "sapling", true)
	v.quiet, v.live, v.style, v.begun = false, true, s, time.Now()
	for _, e := range events {
		v.Emit(e)
	}
	return v
}

// someEvents are those of a run with a node in every state.
func someEvents() []runtime.Event {
	events := []runtime.Event{
		{Kind: runtime.BranchStarted, Branch: "looks[0]", Label: "memory"},
		{Kind: runtime.NodeStarted, Task: "looks[0]/finding", Branch: "looks[0]"},
		{Kind: runtime.TextDelta, Task: "looks[0]/finding", Text: strings.Repeat("the container restarts ", 20)},
		{Kind: runtime.NodeStarted, Task: "looks[1]/finding", Branch: "looks[1]"},
		{Kind: runtime.PromptProgress, Task: "looks[1]/finding", Done: 300, Total: 6000},
		{Kind: runtime.NodeStarted, Task: "gone"},
		{Kind: runtime.NodeCancelled, Task: "gone"},
		{Kind: runtime.NodeStarted, Task: "failed"},
		{Kind: runtime.NodeFinished, Task: "failed", Error: "failed: the prompt is too long"},
		{Kind: runtime.NodeStarted, Task: "done"},
		{Kind: runtime.NodeFinished, Task: "done", Text: "日本語のとても長い文章です。\x1b[2J\x07\r 日本語のとても長い文章です。"},
	}
	for i := range 8 {
		events = append(events, runtime.Event{Kind: runtime.NodeStarted, Task: fmt.Sprintf("more[%d]/with/a/long/path", i)})
	}
	return events
}

func TestViewFitsEveryTerminal(t *testing.T) {
	for _, s := range []style{{colour: true}, {ascii: true}} {
		v := viewOf(s, someEvents()...)
		for width := 1; width <= 130; width++ {
			for height := 1; height <= 30; height++ {
				lines, columns := v.lines(width, height, 3)
				require.LessOrEqual(t, len(lines), max(height-1, 1), "%d x %d", width, height)
				for i, l := range lines {
					require.LessOrEqual(t, columns[i], width, "%d x %d: %q", width, height, l)
					if !s.colour {
						require.NotContains(t, l, "\x1b", "NO_COLOR")
						require.Equal(t, runewidth.StringWidth(l), columns[i])
					}
				}
			}
		}
		lines, _ := v.lines(80, 5, -1)
		require.Equal(t, 1+5+8, len(lines), "the last picture is whole")
		lines, _ = v.lines(120, 40, 3)
		all := strings.Join(lines, "\n")
		require.NotContains(t, all, "\a")
		require.NotContains(t, all, "\x1b[2J")
		require.NotContains(t, all, "failed: the prompt", "a node's name once is enough")
		require.Contains(t, all, "300 of 6,000 tokens")
		if s.ascii {
			require.Empty(t, strings.Trim(strings.Map(func(c rune) rune {
				if c < 0x80 {
					return -1
				}
				return c
			}, all), "日本語のとても長い文章です。"), "only what the model wrote is beyond ASCII")
		}
	}
}

func TestViewKeepsItsPlaceWhenTheWindowIsNarrower(t *testing.T) {
	v := viewOf(style{}, someEvents()[:3]...)
	var out bytes.Buffer
	v.w = &out
	v.draw(100, 24, 0)
	require.Equal(t, 2, len(v.drawn))
	require.Greater(t, v.drawn[1], 80)
	out.Reset()
	v.draw(40, 24, 1)
	// The line that took one row of 100 columns takes three of 40 now.
	require.True(t, strings.HasPrefix(out.String(), "\x1b[4A\r\x1b[J"), "%q", out.String())
}

func TestStyleOfTerminal(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want style
	}{
		{nil, style{colour: true}},
		{map[string]string{"LANG": "en_US.UTF-8"}, style{colour: true}},
		{map[string]string{"NO_COLOR": "1", "LANG": "C.utf8"}, style{}},
		{map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": "C"}, style{colour: true, ascii: true}},
		{map[string]string{"LC_CTYPE": "de_DE.ISO-8859-1"}, style{colour: true, ascii: true}},
	} {
		require.Equal(t, c.want, styleOf(func(k string) string { return c.env[k] }), "%v", c.env)
	}
	require.True(t, dumb("dumb"))
	require.False(t, dumb("xterm"))
}

func TestNodesThatFailedAreNotCounted(t *testing.T) {
	v := viewOf(style{}, someEvents()...)
	require.Equal(t, 1, v.count())
}
