package workflows

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// foreseer writes down what it is told of runs, and the hints of what it is asked.
type foreseer struct {
	*puppet.Model
	mu    sync.Mutex
	told  []string
	overs int
}

func newForeseer() *foreseer {
	f := &foreseer{Model: puppet.New()}
	f.OnAny().Reply("ok")
	return f
}

func (f *foreseer) tell(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, fmt.Sprintf(format, args...))
}

// take returns what it was told, each thing once and in the order of the alphabet:
// which of two calls ends first, or whether they end together, is left to chance.
func (f *foreseer) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	told := slices.Compact(slices.Sorted(slices.Values(f.told)))
	f.told = nil
	return told
}

func (f *foreseer) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	f.tell("%s: %s of %d, reused %v, last %v", req.ID, req.Hints.Branch, req.Hints.Siblings, req.Hints.Reused, req.Hints.LastUse)
	return f.Model.Generate(ctx, req, emit)
}

func (f *foreseer) Foresee(_, branch string, a backend.Absence) {
	f.tell("%q: %s for %v, gone %v", branch, a.Doing, a.For, a.Gone)
}

func (f *foreseer) EndRun(string) {
	f.tell("over")
	f.mu.Lock()
	f.overs++
	f.mu.Unlock()
}

const foreseen = `
name: foreseen
steps:
- user: Look.
- gen: {name: first, max_tokens: 20}
- fork:
    name: looks
    over: split("a b c", " ")
    steps:
    - user: Look at ${item}.
    - gen: {name: seen, max_tokens: 20}
    - call: {name: found, func: page, args: [item], result: string}
    yield: found
- user: ${looks}
- sleep: {for: 1ms}
- gen: {name: second, max_tokens: 20}
- call: {name: last, func: page, args: [second], result: string}
- return: last
`

// TestBackendsOfDurableRunsKnowTheFuture: a backend is told the same of a durable
// run as of one in this process.
func TestBackendsOfDurableRunsKnowTheFuture(t *testing.T) {
	var calls []string
	be := newForeseer()
	_, err := runtime.RunGraph(t.Context(), be, program(t, foreseen), pager(&calls), nil)
	require.NoError(t, err)
	want := be.take()
	require.Contains(t, want, `"": page for 0s, gone false`)
	require.Contains(t, want, `"": sleep for 1ms, gone false`)
	require.Contains(t, want, `looks[1]/seen: looks[1] of 3, reused false, last true`)

	r := newRig(t, be, pager(&calls), foreseen, nil, StartOptions{})
	_, err = r.run()
	require.NoError(t, err)
	require.Equal(t, want, be.take())

	// Fewer siblings than there are, where not all begin together.
	r = newRig(t, be, pager(&calls), foreseen, nil, StartOptions{Window: 2})
	_, err = r.run()
	require.NoError(t, err)
	told := be.take()
	require.Contains(t, told, `looks[1]/seen: looks[1] of 2, reused false, last true`)
	require.Contains(t, told, `looks[2]/seen: looks[2] of 1, reused false, last true`)
}

// TestHomeKnowsTheFuture: where another worker has the prompts in its cache, that
// one is told, by what is sent to it.
func TestHomeKnowsTheFuture(t *testing.T) {
	var calls []string
	here, there := newForeseer(), newForeseer()
	r := newRig(t, here, pager(&calls), foreseen, nil, StartOptions{})
	home := newWorker(Config{Backend: there, Funcs: pager(&calls), Store: r.store})
	home.queue = "engine-2"
	r.env.OnActivity(activityGenerate, mock.Anything, mock.Anything, mock.Anything, mock.Anything, mock.Anything).Return(home.generate)
	r.env.OnActivity(activityCall, mock.Anything, mock.Anything).Return(home.call)
	_, err := r.run()
	require.NoError(t, err)
	told := strings.Join(there.take(), "\n")
	for _, want := range []string{
		`"": page for 0s, gone false`,               // with the calls
		`"looks[1]":  for 0s, gone true`,            // with the request that follows
		`"": page for 0s, gone true`,                // with the last call
		`second:  of 1, reused false, last true`,    // in the request itself
		`looks[2]/seen: looks[2] of 3, reused fals`, // as ever
	} {
		require.Contains(t, told, want)
	}
	require.NotContains(t, told, "sleep", "it was over when the next request went there")
	require.Equal(t, []string{"over"}, here.take(), "the process that has only the run in memory")
}

// TestProgramsTellOfThemselves: the run knows that a step is away, and the program
// that the step runs what its own branches do.
func TestProgramsTellOfThemselves(t *testing.T) {
	be := newForeseer()
	var calls []string
	r := newRig(t, be, pager(&calls), `
name: outer
programs:
  inner:
    steps:
    - user: Part.
    - gen: {name: a, max_tokens: 20}
    - call: {name: b, func: page, args: [a], result: string}
    - user: ${b}
    - gen: {name: c, max_tokens: 20}
    - return: c
steps:
- user: Look.
- gen: {name: first, max_tokens: 20}
- run: {name: part, program: inner}
- user: ${part}
- gen: {name: second, max_tokens: 20}
- return: second
`, lang.Args{}, StartOptions{})
	_, err := r.run()
	require.NoError(t, err)
	told := be.take()
	for _, want := range []string{
		`"": run:inner for 0s, gone false`,
		`"part": page for 0s, gone false`,
		`"part":  for 0s, gone true`,
		`part/a: part of 1, reused true, last false`,
		`part/c: part of 1, reused false, last true`,
		"over",
	} {
		require.Contains(t, told, want)
	}
	require.Equal(t, 1, be.overs)
}
