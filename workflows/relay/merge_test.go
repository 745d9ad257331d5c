package relay

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/runtime"
)

// reader is what a client makes of a stream, and what it may not see.
type reader struct {
	t      *testing.T
	events []runtime.Event
	texts  map[string]string
	tokens map[string][]backend.Token
	over   map[string]int
}

func newReader(t *testing.T) *reader {
	return &reader{t: t, texts: map[string]string{}, tokens: map[string][]backend.Token{}, over: map[string]int{}}
}

func (r *reader) Emit(e runtime.Event) {
	require.Equal(r.t, uint64(len(r.events)+1), e.Seq, "a gap or a double")
	r.events = append(r.events, e)
	switch e.Kind {
	case runtime.TextDelta:
		require.Zero(r.t, r.over[e.Task], "text of %s behind its end", e.Task)
		require.Equal(r.t, len(r.texts[e.Task]), e.Offset, "%v", e)
		r.texts[e.Task] += e.Text
		r.tokens[e.Task] = append(r.tokens[e.Task], e.Tokens...)
	case runtime.NodeRetried:
		r.texts[e.Task], r.tokens[e.Task] = "", nil
	case runtime.NodeFinished:
		r.over[e.Task]++
		require.Equal(r.t, 1, r.over[e.Task])
		require.Equal(r.t, e.Text, r.texts[e.Task])
		require.Empty(r.t, e.Tokens)
		require.Zero(r.t, e.Done)
	}
}

func (r *reader) lines() []string {
	var out []string
	for _, e := range r.events {
		s := string(e.Kind) + " " + e.Task + e.Branch
		if e.Kind == runtime.TextDelta {
			s += fmt.Sprint(" ", e.Offset, " ", e.Text, " ", e.Tokens)
		}
		out = append(out, s)
	}
	return out
}

// delta is a piece of a text whose tokens are 1, 2, 3 and so on, but for those that
// stand for another text, from 50.
func delta(offset int, text string, tokens ...backend.Token) runtime.Event {
	e := runtime.Event{Kind: runtime.TextDelta, Task: "x", Offset: offset, Text: text, Tokens: tokens}
	if len(tokens) > 0 {
		e.Done = int(tokens[0]-1) % 50
	}
	return e
}

func finished(text string, tokens ...backend.Token) runtime.Event {
	return runtime.Event{Kind: runtime.NodeFinished, Task: "x", Text: text, Finish: backend.FinishStop, Tokens: tokens}
}

func TestMerge(t *testing.T) {
	type told struct {
		by string
		e  runtime.Event
	}
	started := runtime.Event{Kind: runtime.NodeStarted, Task: "x"}
	for name, c := range map[string]struct {
		tell []told
		want []string
	}{
		"another tells the same from its beginning": {
			[]told{
				{"a", started}, {"a", delta(0, "ab", 1)}, {"a", delta(2, "cd", 2)},
				{"b", started}, {"b", delta(0, "abc", 1, 2)}, {"b", delta(3, "de", 3)}, {"b", finished("abcde", 1, 2, 3)},
			},
			[]string{"node_started x", "delta x 0 ab [1]", "delta x 2 cd [2]", "delta x 4 e [3]", "node_finished x"},
		},
		"another tells another text": {
			[]told{{"a", delta(0, "ab", 1)}, {"a", delta(2, "cd", 2)}, {"b", delta(0, "ab", 1)}, {"b", delta(2, "xy", 52)}, {"b", delta(4, "z", 53)}, {"b", finished("abxyz", 1, 52, 53)}},
			[]string{"delta x 0 ab [1]", "delta x 2 cd [2]", "node_retried x", "delta x 0 abxy []", "delta x 4 z [53]", "node_finished x"},
		},
		"the last tokens were not told": {
			[]told{{"a", delta(0, "ab", 1)}, {"b", finished("abcd", 1, 2, 3)}, {"a", delta(2, "c", 2)}},
			[]string{"delta x 0 ab [1]", "delta x 2 cd [2 3]", "node_finished x"},
		},
		"some tokens in the middle were not told": {
			[]told{{"a", delta(0, "ab", 1)}, {"a", delta(4, "ef", 3)}, {"a", finished("abcdef", 1, 2, 3)}},
			[]string{"delta x 0 ab [1]", "delta x 2 cdef [2 3]", "node_finished x"},
		},
		"tokens without a text yet": {
			[]told{{"a", delta(0, "a", 1)}, {"a", delta(1, "", 2)}, {"b", delta(0, "a", 1)}, {"b", delta(1, "", 2)}, {"b", delta(1, "é", 3)}, {"b", finished("aé", 1, 2, 3)}},
			[]string{"delta x 0 a [1]", "delta x 1  [2]", "delta x 1 é [3]", "node_finished x"},
		},
		"nothing was told, and it ended otherwise": {
			[]told{{"a", delta(0, "zz", 51)}, {"b", finished("ab", 1, 2)}},
			[]string{"delta x 0 zz [51]", "node_retried x", "delta x 0 ab [1 2]", "node_finished x"},
		},
		"it ended sooner than what was told": {
			[]told{{"a", delta(0, "ab", 1)}, {"a", delta(2, "cd", 2)}, {"b", finished("abc", 1, 52)}},
			[]string{"delta x 0 ab [1]", "delta x 2 cd [2]", "node_retried x", "delta x 0 abc [1 52]", "node_finished x"},
		},
		"a place that cannot be": {
			[]told{{"a", delta(0, "ab", 1)}, {"a", delta(-1, "xzz", 1)}, {"a", delta(9, "z", 9)}, {"a", finished("ab", 1)}},
			[]string{"delta x 0 ab [1]", "node_finished x"},
		},
		"a retry is told once": {
			[]told{
				{"a", delta(0, "ab", 1)}, {"a", runtime.Event{Kind: runtime.NodeRetried, Task: "x", Attempt: 1}}, {"a", delta(0, "c", 51)},
				{"b", runtime.Event{Kind: runtime.NodeRetried, Task: "x", Attempt: 1}}, {"b", delta(0, "cd", 51, 52)}, {"b", finished("cd", 51, 52)},
			},
			[]string{"delta x 0 ab [1]", "node_retried x", "delta x 0 c [51]", "delta x 1 d [52]", "node_finished x"},
		},
		"a branch that is told of late": {
			[]told{
				{"a", runtime.Event{Kind: runtime.NodeStarted, Task: "y", Branch: "b[0]"}}, {"b", runtime.Event{Kind: runtime.BranchStarted, Branch: "b[0]"}},
				{"c", runtime.Event{Kind: runtime.BranchStarted, Branch: "b[0]"}}, {"c", runtime.Event{Kind: runtime.NodeStarted, Task: "z", Branch: "b[1]"}}, {"b", runtime.Event{Kind: runtime.RunFinished}},
				{"c", runtime.Event{Kind: runtime.RunFinished}},
			},
			[]string{"branch_started b[0]", "node_started yb[0]", "node_started zb[1]", "run_finished "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReader(t)
			m := NewMerge(r, true, nil)
			for _, x := range c.tell {
				m.Tell(x.e)
			}
			require.Equal(t, c.want, r.lines())
		})
	}
}

// TestMergeOfLosses: sources that begin anew at any moment, from the beginning or with
// what the one before had, tell a stream of which each part is there once; so do two
// processes, of which the second has what the first wrote down.
func TestMergeOfLosses(t *testing.T) {
	const n = 50
	pieces := make([]string, n)
	for i := range pieces {
		pieces[i] = strings.Repeat(string(rune('a'+i%26)), i%3) // some tokens have no text yet
	}
	whole := strings.Join(pieces, "")
	var all []backend.Token
	for i := range n {
		all = append(all, backend.Token(i+1))
	}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := newReader(t)
		m := NewMerge(r, true, nil)
		reached := 0 // tokens that the last source had
		for {
			m.Tell(runtime.Event{Kind: runtime.RunStarted})
			m.Tell(runtime.Event{Kind: runtime.NodeStarted, Task: "x"})
			dies, at, i := rng.IntN(n+20), 0, 0
			if rng.IntN(2) == 0 { // what is gone on from comes in one piece
				s := strings.Join(pieces[:reached], "")
				if reached > 0 {
					m.Tell(delta(0, s, all[:reached]...))
				}
				at, i = len(s), reached
			}
			for ; i < n && i < dies; i++ {
				if rng.IntN(40) > 0 { // else it gets lost
					m.Tell(delta(at, pieces[i], all[i]))
				}
				at += len(pieces[i])
			}
			reached = max(reached, i)
			if rng.IntN(4) == 0 { // the process that shows it is another now
				var told []runtime.Event
				data, err := json.Marshal(r.events)
				require.NoError(t, err)
				require.NoError(t, json.Unmarshal(data, &told))
				m = NewMerge(r, true, told)
			}
			if i == n {
				m.Tell(finished(whole, all...))
				m.Tell(runtime.Event{Kind: runtime.RunFinished})
				break
			}
		}
		require.True(t, m.Over())
		require.Equal(t, whole, r.texts["x"])
		require.Equal(t, all, r.tokens["x"], "seed %d", seed)
		require.Equal(t, runtime.RunFinished, r.events[len(r.events)-1].Kind)
		require.False(t, slices.ContainsFunc(r.events, func(e runtime.Event) bool { return e.Kind == runtime.NodeRetried }))
	}
}

// What a log no longer has is known from its snapshot.
func TestMergeBehindDropped(t *testing.T) {
	r := newReader(t)
	log := runtime.NewLog(2)
	m := NewMerge(log, true, nil)
	for i := range 30 {
		m.Tell(delta(i, "a", backend.Token(i+1)))
	}
	told, _ := log.Since(0)
	require.Equal(t, runtime.Dropped, told[0].Kind)
	r.events = make([]runtime.Event, 30)
	r.texts["x"] = strings.Repeat("a", 30)
	m = NewMerge(r, true, told)
	for i := range 31 {
		m.Tell(delta(i, "a", backend.Token(i+1)))
	}
	m.Tell(finished(strings.Repeat("a", 32)))
	require.Equal(t, strings.Repeat("a", 32), r.texts["x"])
}
