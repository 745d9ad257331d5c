package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
)

// A journal tells the same nodes, branches, texts and value as the run itself
// did, with times that do not go back.
func TestReplayTellsTheRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var e effects
	def := errand(&e, false)
	// Texts come in one piece, and the cost of the run so far is not in it.
	outline := func(events []Event) (out []string) {
		for _, x := range events {
			switch x.Kind {
			case TextDelta, PromptProgress, UsageSoFar:
			default:
				out = append(out, strings.Join([]string{string(x.Kind), x.Task, x.Branch, x.Label, x.Text, string(x.Value), string(x.Status), x.Error}, "|"))
			}
		}
		return out
	}
	var live, again []Event
	report, err := RunGraph(t.Context(), errandModel(), compile(t, def), def.Funcs(), nil, WithJournal(path), WithConcurrency(1),
		WithSink(SinkFunc(func(e Event) { live = append(live, e) })))
	require.NoError(t, err)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	got, err := Replay(bytes.NewReader(data), SinkFunc(func(e Event) { again = append(again, e) }), Limits{})
	require.NoError(t, err)
	assert.ElementsMatch(t, outline(live), outline(again)) // with one task at a time, nodes start later than they are ready
	assert.Equal(t, string(report.Value), string(got.Value))
	assert.Equal(t, 1, len(e.byKey), "no function is called again")
	for i, x := range again {
		require.Equal(t, uint64(i+1), x.Seq)
		require.False(t, x.Time.IsZero())
		if i > 0 {
			require.False(t, x.Time.Before(again[i-1].Time))
		}
	}
	assert.Equal(t, RunFinished, again[len(again)-1].Kind)

	// What was cut off is shown as far as it came.
	cut := bytes.SplitAfter(data, []byte("\n"))
	again = nil
	_, err = Replay(bytes.NewReader(bytes.Join(cut[:3], nil)), SinkFunc(func(e Event) { again = append(again, e) }), Limits{})
	require.NoError(t, err)
	last := again[len(again)-1]
	assert.Equal(t, RunFailed, last.Kind)
	assert.Contains(t, last.Error, "was not over")

	// Its program has no more room here than it is given.
	_, err = Replay(bytes.NewReader(data), SinkFunc(func(Event) {}), Limits{Branches: 1})
	assert.Error(t, err)
}

// Branches that a quorum cancelled are told to be.
func TestReplayTellsCancelledNodes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	def := lang.Define("race", func(p *lang.Program) lang.Var[[]string] {
		p.User("go")
		return lang.Fork(p, "looks", lang.Each("a", "b", "c"), func(b *lang.Branch, it lang.Var[string]) lang.Var[string] {
			b.User(it)
			return b.Gen("x")
		}, lang.First())
	})
	_, err := RunGraph(t.Context(), errandModel(), compile(t, def), nil, nil, WithJournal(path), WithConcurrency(1))
	require.NoError(t, err)
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	kinds := map[EventKind]int{}
	_, err = Replay(f, SinkFunc(func(e Event) { kinds[e.Kind]++ }), Limits{})
	require.NoError(t, err)
	assert.Equal(t, 2, kinds[NodeCancelled])
	assert.Equal(t, 3, kinds[BranchFinished])
}

func TestReplayRefusesWhatIsNoJournal(t *testing.T) {
	drop := SinkFunc(func(Event) {})
	for _, text := range []string{"", "x", "hello\nworld\n", "{}\n", strings.Repeat("0", 100) + "\n"} {
		_, err := Replay(strings.NewReader(text), drop, Limits{})
		var je *JournalError
		assert.True(t, errors.As(err, &je), "%q: %v", text, err)
	}
}

// A journal with waits and sleeps can be shown, with what was asked.
func TestReplayOfWaits(t *testing.T) {
	g, err := lang.Decode([]byte("coppice: 1\nname: w\nsteps:\n  - sleep: {for: 1ms}\n  - wait: {name: ok, ask: \"May I?\", type: bool, timeout: 1h}\n  - return: ok\n"), "w.yaml")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "j")
	_, err = RunGraph(t.Context(), nil, g, nil, nil, WithJournal(path),
		WithAnswers(func(context.Context, string, *Wait) (json.RawMessage, error) { return json.RawMessage("true"), nil }))
	require.NoError(t, err)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var asked *Question
	var last Event
	_, err = Replay(bytes.NewReader(data), SinkFunc(func(e Event) {
		if e.Ask != nil {
			asked = e.Ask
		}
		last = e
	}), Limits{})
	require.NoError(t, err)
	assert.Equal(t, RunFinished, last.Kind)
	assert.Equal(t, "true", string(last.Value))
	require.NotNil(t, asked)
	assert.Equal(t, "May I?", asked.Text)
	assert.False(t, asked.Due.IsZero())
	v, err := asked.Check(json.RawMessage("false"))
	require.NoError(t, err)
	assert.Equal(t, "false", string(v))
	_, err = asked.Check(json.RawMessage("3"))
	assert.ErrorContains(t, err, "must be bool")
	_, err = new(Question).Check(json.RawMessage("3"))
	assert.Error(t, err, "read from elsewhere")
}

// With a journal and a function, whoever answers first is heard.
func TestAnswersOfBothKinds(t *testing.T) {
	g, err := lang.Decode([]byte("coppice: 1\nname: w\nsteps:\n  - wait: {name: ok}\n  - return: ok\n"), "w.yaml")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "j")
	silent := WithAnswers(func(ctx context.Context, _ string, _ *Wait) (json.RawMessage, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	var left error
	var kinds []EventKind
	report, err := RunGraph(t.Context(), nil, g, nil, nil, WithJournal(path), silent, WithSink(SinkFunc(func(e Event) {
		kinds = append(kinds, e.Kind)
		if e.Kind == RunWaits {
			left = LeaveAnswer(path, "ok", json.RawMessage("true"), "")
		}
	})))
	require.NoError(t, err)
	require.NoError(t, left)
	assert.Equal(t, "true", string(report.Value))
	assert.Equal(t, []EventKind{RunStarted, NodeStarted, RunWaits, NodeFinished, UsageSoFar, RunFinished}, kinds)
}
