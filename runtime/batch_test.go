package runtime_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/backend/sim"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

const batchProgram = `inputs: {q: string}
steps:
  - user: ${q}
  - gen: {name: a}
  - return: a + "!"
`

// echo answers with what was asked, and fails where "bad" is asked.
func echo(t *testing.T) (*puppet.Model, *atomic.Int32) {
	t.Helper()
	m, calls := puppet.New(), new(atomic.Int32)
	m.OnAny().ReplyFunc(func(p *puppet.Prompt) (string, error) {
		calls.Add(1)
		q := p.Turns[0].Text()
		if q == "bad" {
			return "", fmt.Errorf("bad: %w", backend.ErrInvalid)
		}
		return q, nil
	})
	return m, calls
}

func argsOf(qs ...string) iter.Seq2[lang.Args, error] {
	return func(yield func(lang.Args, error) bool) {
		for _, q := range qs {
			if !yield(lang.Args{"q": q}, nil) {
				return
			}
		}
	}
}

func TestBatchKeepsTheOrderAndCollectsFailures(t *testing.T) {
	g := graphYAML(t, batchProgram)
	m, _ := echo(t)
	gate := puppet.NewGate()
	m.SetGate(gate)
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	var last runtime.BatchProgress
	held := false
	go func() {
		// All that may run do so before the first is let go.
		if gate.HeldCount(t.Context(), 3) == nil {
			held = true
			gate.Open()
		}
	}()
	r, err := runtime.Batch(t.Context(), m, g, nil, runtime.ReadJSONL(strings.NewReader(`{"q": "a", "id": 7}
{"q": "bad"}
[1]
{"q": "b"}
{"x": 1}

{"q": "c"}`)), runtime.BatchOptions{
		Concurrency: 3, Total: 6,
		Each:     func(r runtime.BatchResult) error { return enc.Encode(r) },
		Progress: func(p runtime.BatchProgress) { last = p },
	})
	if err != nil || !held {
		t.Fatal(err)
	}
	if r.Items != 6 || r.Failed != 3 || len(r.Failures) != 3 || last.Finished != 6 || last.Failed != 3 || last.Running != 0 || last.Rate <= 0 {
		t.Errorf("%+v %+v", r, last)
	}
	var got []string
	for _, l := range strings.Split(strings.TrimSpace(lines.String()), "\n") {
		var v struct {
			Index int
			ID    int
			Value string
			Error string
			Usage runtime.Usage
		}
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			t.Fatal(err)
		}
		if v.Error == "" != (v.Usage.SampledTokens > 0) {
			t.Errorf("%s", l)
		}
		got = append(got, fmt.Sprintf("%d %d %s %t", v.Index, v.ID, v.Value, v.Error != ""))
	}
	if want := "0 7 a! false|1 0  true|2 0  true|3 0 b! false|4 0  true|5 0 c! false"; strings.Join(got, "|") != want {
		t.Errorf("%s", strings.Join(got, "|"))
	}
	for i, want := range []string{"bad", "line 3: a list, not an object", `no input "x"`} {
		if !strings.Contains(r.Failures[i].Error, want) {
			t.Errorf("%q is not in %q", want, r.Failures[i].Error)
		}
	}
}

func TestBatchGoesOnFromItsJournal(t *testing.T) {
	g := graphYAML(t, batchProgram)
	journal := filepath.Join(t.TempDir(), "b.journal")
	run := func(ctx context.Context, items iter.Seq2[lang.Args, error], each func(runtime.BatchResult) error) (*runtime.BatchReport, string, int32, error) {
		m, calls := echo(t)
		var out strings.Builder
		r, err := runtime.Batch(ctx, m, g, nil, items, runtime.BatchOptions{Concurrency: 2, Journal: journal, Each: func(r runtime.BatchResult) error {
			fmt.Fprintf(&out, "%d:%s ", r.Index, r.Value)
			if each != nil {
				return each(r)
			}
			return nil
		}})
		return r, out.String(), calls.Load(), err
	}
	qs := []string{"a", "b", "bad", "c", "d", "e", "f"}
	stop := errors.New("enough")
	r, _, first, err := run(t.Context(), argsOf(qs...), func(r runtime.BatchResult) error {
		if r.Index == 3 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || r.Items < 4 {
		t.Fatal(r, err)
	}
	r, out, second, err := run(t.Context(), argsOf(qs...), nil)
	if err != nil || out != `0:"a!" 1:"b!" 2: 3:"c!" 4:"d!" 5:"e!" 6:"f!" ` || r.Restored < 3 || r.Failed != 1 {
		t.Fatal(r, out, err)
	}
	// Only the failed one is run again.
	if r, _, third, err := run(t.Context(), argsOf(qs...), nil); err != nil || third != 1 || r.Restored != 6 {
		t.Error(r, third, err)
	}
	if first+second > int32(len(qs))+2+2 { // two may be in flight when the first ends
		t.Errorf("%d and %d calls", first, second)
	}
	for name, items := range map[string]iter.Seq2[lang.Args, error]{"other item": argsOf("x")} {
		if _, _, n, err := run(t.Context(), items, nil); !errors.Is(err, runtime.ErrJournalMismatch) || n != 0 {
			t.Error(name, n, err)
		}
	}
	// A torn end is cut, damage inside is named.
	data, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(data) - 1; cut > len(data)-40; cut -= 7 {
		if err := os.WriteFile(journal, data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, again, _, err := run(t.Context(), argsOf(qs...), nil); err != nil || again != out {
			t.Error(cut, again, err)
		}
	}
	bad := bytes.Clone(data)
	bad[len(bad)/2] ^= 1
	if err := os.WriteFile(journal, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := run(t.Context(), argsOf(qs...), nil); !errors.Is(err, runtime.ErrJournalCorrupt) {
		t.Error(err)
	}
	for _, foreign := range []string{"hello\n", "x"} {
		if err := os.WriteFile(journal, []byte(foreign), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := run(t.Context(), argsOf(qs...), nil); err == nil {
			t.Error("a file that is no journal passes")
		}
		if left, _ := os.ReadFile(journal); string(left) != foreign {
			t.Errorf("the file is now %q", left)
		}
	}
}

// A run that calls a function which must not be called twice is not begun anew.
func TestBatchNeverRepeatsAnUnsafeCall(t *testing.T) {
	paid := map[string]int{}
	pay, err := lang.NewFunc("pay", func(q string) (string, error) {
		paid[q]++
		return "paid " + q, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	g := graphYAML(t, `inputs: {q: string}
steps:
  - call: {name: p, func: pay, args: [q], result: string, unsafe: true}
  - user: ${p}
  - gen: {name: a}
  - return: a
`)
	dir := t.TempDir()
	journal := filepath.Join(dir, "j")
	opts := runtime.BatchOptions{Concurrency: 1, Journal: journal}
	m := puppet.New()
	m.OnRegexp("paid two").Fail(fmt.Errorf("down: %w", backend.ErrUnavailable))
	m.OnAny().Reply("ok")
	r, err := runtime.Batch(t.Context(), m, g, lang.Funcs{"pay": pay}, argsOf("one", "two"), opts)
	if err != nil || r.Failed != 1 {
		t.Fatal(r, err)
	}
	up := puppet.New()
	up.OnAny().Reply("ok")
	r, err = runtime.Batch(t.Context(), up, g, lang.Funcs{"pay": pay}, argsOf("one", "two"), opts)
	if err != nil || r.Failed != 0 || paid["one"] != 1 || paid["two"] != 1 || len(up.Log()) != 1 {
		t.Error(r, err, paid)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("%v %v", files, err)
	}
}

// TestBatchTakesCorrectedItems: the line of an item that failed may be changed. It
// is another run then: its calls have other keys, and what the wrong one kept does
// not stand in its way.
func TestBatchTakesCorrectedItems(t *testing.T) {
	keys := map[string]string{}
	pay, err := lang.NewFunc("pay", func(ctx context.Context, q string) (string, error) {
		keys[q] = runtime.IdempotencyKey(ctx)
		return "paid " + q, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	g := graphYAML(t, `inputs: {q: string}
steps:
  - call: {name: p, func: pay, args: [q], result: string, unsafe: true}
  - user: ${p}
  - gen: {name: a}
  - return: p
`)
	dir := t.TempDir()
	opts := runtime.BatchOptions{Concurrency: 1, Journal: filepath.Join(dir, "j")}
	m := puppet.New()
	m.OnRegexp("paid (bad|worse)").Fail(fmt.Errorf("down: %w", backend.ErrInvalid))
	m.OnAny().Reply("ok")
	for i, c := range []struct {
		q      string
		failed int
	}{{"bad", 1}, {"worse", 1}, {"worse", 1}, {"good", 0}} {
		r, err := runtime.Batch(t.Context(), m, g, lang.Funcs{"pay": pay}, argsOf("one", c.q), opts)
		if err != nil || r.Failed != c.failed {
			t.Fatal(i, r, err)
		}
	}
	if keys["bad"] == keys["worse"] || keys["worse"] == keys["good"] || keys["bad"] == keys["good"] {
		t.Error(keys)
	}
	// A finished item is another matter.
	_, err = runtime.Batch(t.Context(), m, g, lang.Funcs{"pay": pay}, argsOf("two", "good"), opts)
	if !errors.Is(err, runtime.ErrJournalMismatch) {
		t.Error(err)
	}
}

func TestBatchEndsWhenItCannotGoOn(t *testing.T) {
	g := graphYAML(t, batchProgram)
	m, _ := echo(t)
	// The source fails: what was read before is done.
	r, err := runtime.Batch(t.Context(), m, g, nil, runtime.ReadJSONL(io.MultiReader(strings.NewReader("{\"q\":\"a\"}\n{\"q\":\"b\"}\n"), failing{})), runtime.BatchOptions{})
	var se *runtime.SourceError
	if !errors.As(err, &se) || !errors.Is(err, io.ErrUnexpectedEOF) || r.Items != 2 || r.Failed != 0 {
		t.Error(r, err)
	}
	// Too many failures.
	r, err = runtime.Batch(t.Context(), m, g, nil, argsOf("bad", "bad", "bad", "a", "a"), runtime.BatchOptions{Concurrency: 1, MaxFailures: 1})
	if !errors.Is(err, runtime.ErrTooManyFailures) || r.Failed != 2 || !strings.Contains(err.Error(), "item 1") {
		t.Error(r, err)
	}
	// An iterator that panics.
	_, err = runtime.Batch(t.Context(), m, g, nil, func(yield func(lang.Args, error) bool) { panic("oh") }, runtime.BatchOptions{})
	if !errors.Is(err, runtime.ErrPanic) {
		t.Error(err)
	}
	// A cancelled context, with runs that hang and a channel that gives nothing.
	ctx, cancel := context.WithCancel(t.Context())
	ch := make(chan lang.Args, 1)
	ch <- lang.Args{"q": "a"}
	hang := puppet.New()
	gate := puppet.NewGate()
	hang.SetGate(gate)
	hang.OnAny().Reply("x")
	go func() {
		gate.HeldCount(t.Context(), 1)
		cancel()
	}()
	r, err = runtime.Batch(ctx, hang, g, nil, runtime.FromChannel(ctx, ch), runtime.BatchOptions{})
	if !errors.Is(err, context.Canceled) || r.Items != 0 {
		t.Error(r, err)
	}
	// What no run could do is said before the first.
	weak := puppet.New()
	weak.SetInfo(func(i *backend.Info) { i.Capabilities.Regex = false })
	if _, err := runtime.Batch(t.Context(), weak, graphYAML(t, "steps:\n  - user: x\n  - gen: {name: a, regex: a}\n"), nil, argsOf(), runtime.BatchOptions{}); !errors.Is(err, backend.ErrUnsupported) {
		t.Error(err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestReadCSV(t *testing.T) {
	inputs := []lang.Input{{Name: "q", Type: lang.Type{Kind: lang.TypeString}}, {Name: "n", Type: lang.Type{Kind: lang.TypeInt}}}
	var got []string
	for args, err := range runtime.ReadCSV(strings.NewReader("\ufeff\"q\",n\na,1\n,\n\"two\nlines\",3\nshort\nb,\n"), inputs) {
		got = append(got, fmt.Sprint(args, err != nil))
	}
	want := "map[n:1 q:a] false|map[q:] false|map[n:3 q:two\nlines] false|map[] true|map[q:b] false"
	if strings.Join(got, "|") != want {
		t.Errorf("%q", got)
	}
	for _, bad := range []string{"a,a\n1,2\n", "a,\n1,2\n"} {
		n := 0
		for _, err := range runtime.ReadCSV(strings.NewReader(bad), inputs) {
			var se *runtime.SourceError
			if n++; !errors.As(err, &se) {
				t.Error(err)
			}
		}
		if n != 1 {
			t.Error(bad, n)
		}
	}
	for range runtime.ReadCSV(strings.NewReader(""), inputs) {
		t.Error("an empty file has an item")
	}
}

// TestPassesOfABatch: a pass that several runs share counts once; those of restored
// items are what their runs counted.
func TestPassesOfABatch(t *testing.T) {
	e, _, err := sim.New(sim.Options{Virtual: true})
	require.NoError(t, err)
	defer e.Close()
	g := graphYAML(t, "inputs: {q: string}\nsteps:\n  - user: '${q}'\n  - gen: {name: a, max_tokens: 6, ignore_eos: true}\n  - return: a\n")
	items := func(yield func(lang.Args, error) bool) {
		for _, q := range []string{"one", "two", "three"} {
			if !yield(lang.Args{"q": q}, nil) {
				return
			}
		}
	}
	o := runtime.BatchOptions{Concurrency: 3, Journal: filepath.Join(t.TempDir(), "j")}
	sum, most := 0, 0
	o.Each = func(r runtime.BatchResult) error {
		sum += r.Usage.ForwardPasses
		most = max(most, r.Usage.ForwardPasses)
		return nil
	}
	report, err := runtime.Batch(t.Context(), e, g, nil, items, o)
	require.NoError(t, err)
	if n := report.Usage.ForwardPasses; n < most || n > sum || most < 6 {
		t.Errorf("%d passes, the most of one run %d, of all %d", n, most, sum)
	}
	want := sum
	report, err = runtime.Batch(t.Context(), e, g, nil, items, o)
	require.NoError(t, err)
	require.Equal(t, 3, report.Restored)
	require.Equal(t, want, report.Usage.ForwardPasses)
}
