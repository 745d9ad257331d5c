package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
)

func withFS(f fileSystem) Option { return func(c *config) { c.fs = f } }

// effects counts calls of the outside world by idempotency key.
type effects struct {
	mu    sync.Mutex
	byKey map[string]int
}

func (e *effects) call(ctx context.Context, args []any) (any, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byKey == nil {
		e.byKey = map[string]int{}
	}
	e.byKey[IdempotencyKey(ctx)]++
	return fmt.Sprint("done ", args[0]), nil
}

// errand is a program with every kind of task, and the function that it calls.
func errand(e *effects, unsafe bool) *lang.Def[any] {
	f := lang.Func{Name: "act", Params: []lang.Type{{Kind: lang.TypeString}}, Result: lang.Type{Kind: lang.TypeString}, Call: e.call}
	var opts []any
	if unsafe {
		opts = append(opts, lang.Unsafe())
	}
	return lang.Define("errand", func(p *lang.Program) lang.Var[any] {
		who := lang.In[string](p, "who", lang.Default("me"))
		p.System("Be <kind> & brief.")
		p.User("for ", who)
		looks := lang.Fork(p, "looks", lang.Each("a", "b", "c"), func(b *lang.Branch, it lang.Var[string]) lang.Var[string] {
			b.User(it)
			return b.Gen("x")
		})
		lang.Select(p, "sev", "low", "high")
		lang.Call(p, "act", f, append([]any{lang.Join(looks, "+")}, opts...)...)
		return lang.JSONSchema(p, "v", json.RawMessage(`{"type":"object","additionalProperties":true}`))
	})
}

func errandModel() *puppet.Model {
	m := puppet.New()
	for _, x := range []string{"a", "b", "c"} {
		m.OnRegexp("user: " + x + "\nassistant: $").Reply("<" + x + ">")
	}
	m.OnID("sev").Scores(map[string]float64{"low": -1, "high": -2})
	m.OnID("v").Reply(`{"z": "<&>", "a": 1.50, "m": {"y": 1, "b": [2, {"q": 0, "c": 1}]}}`)
	return m
}

// normal is a report without what a resume is allowed to change.
func normal(t *testing.T, r *Report) string {
	t.Helper()
	c := *r
	c.Restored = 0
	c.Usage, c.Branches = Usage{}, nil // a puppet's cache depends on what it saw before
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const errandTasks = 6

// recorded runs the errand with a journal and returns its bytes and report.
func recorded(t *testing.T, e *effects, unsafe bool) ([]byte, *Report) {
	t.Helper()
	mem := newMemFS()
	def := errand(e, unsafe)
	r, err := RunGraph(t.Context(), errandModel(), compile(t, def), def.Funcs(), nil, WithJournal("j"), WithRun("run-1"), withFS(mem))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem.files["j"].data, mem.files["j"].synced) {
		t.Error("the end of the journal was not synced")
	}
	return mem.files["j"].data, r
}

func TestRunResumesFromEveryByteOfItsJournal(t *testing.T) {
	whole, want := recorded(t, &effects{}, false)
	header := bytes.IndexByte(whole, '\n') + 1
	step := 37
	if testing.Short() {
		step = 211
	}
	for cut := 0; cut <= len(whole); cut++ {
		if cut%step != 0 && (cut == 0 || whole[cut-1] != '\n') && cut != len(whole) {
			continue // each end of a record, and some places inside
		}
		mem := newMemFS()
		mem.files["j"] = &memData{data: bytes.Clone(whole[:cut])}
		e := &effects{}
		def := errand(e, false)
		model := errandModel()
		if cut < header {
			if _, err := Resume(t.Context(), model, "j", def.Funcs(), withFS(mem)); err == nil || !strings.Contains(err.Error(), "header") {
				t.Fatalf("cut at %d: Resume without a header: %v", cut, err)
			}
			got, err := RunGraph(t.Context(), model, compile(t, def), def.Funcs(), nil, WithJournal("j"), WithRun("run-1"), withFS(mem))
			if err != nil || normal(t, got) != normal(t, want) {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			continue
		}
		finished := bytes.Count(whole[:cut], []byte(`{"kind":"result"`))
		if whole[cut-1] != '\n' {
			last := whole[bytes.LastIndexByte(whole[:cut], '\n')+1 : cut]
			finished -= bytes.Count(last, []byte(`{"kind":"result"`))
		}
		got, err := Resume(t.Context(), model, "j", def.Funcs(), withFS(mem))
		if err != nil {
			t.Fatalf("cut at %d of %d: %v", cut, len(whole), err)
		}
		if normal(t, got) != normal(t, want) {
			t.Fatalf("cut at %d:\n%s\nnot\n%s", cut, normal(t, got), normal(t, want))
		}
		if got.Restored != finished {
			t.Fatalf("cut at %d: %d restored, the journal has %d", cut, got.Restored, finished)
		}
		calls := len(model.Log())
		for _, n := range e.byKey {
			calls += n
		}
		if calls != errandTasks-finished {
			t.Fatalf("cut at %d: %d calls, want %d", cut, calls, errandTasks-finished)
		}
	}
}

func TestFinishedJournalGivesItsReportWithoutACall(t *testing.T) {
	whole, want := recorded(t, &effects{}, false)
	mem := newMemFS()
	mem.files["j"] = &memData{data: whole}
	e := &effects{}
	got, err := Resume(t.Context(), nil, "j", errand(e, false).Funcs(), withFS(mem))
	if err != nil {
		t.Fatal(err)
	}
	if got.Restored != errandTasks {
		t.Errorf("%d restored", got.Restored)
	}
	got.Restored = 0
	a, _ := json.Marshal(want)
	b, _ := json.Marshal(got)
	if !bytes.Equal(a, b) {
		t.Errorf("got\n%s\nwant\n%s", b, a)
	}
	if len(e.byKey) != 0 {
		t.Error("the function was called again")
	}
	if !bytes.Equal(mem.files["j"].data, whole) {
		t.Error("reading a finished journal changed it")
	}
	// The same command again finds the run finished too.
	def := errand(e, false)
	model := errandModel()
	if _, err := RunGraph(t.Context(), model, compile(t, def), def.Funcs(), nil, WithJournal("j"), withFS(mem)); err != nil {
		t.Error(err)
	}
	if len(model.Log()) != 0 || len(e.byKey) != 0 {
		t.Error("running a finished journal again made calls")
	}
}

func TestDamageInTheMiddleOfAJournalIsNamedWithItsPlace(t *testing.T) {
	whole, _ := recorded(t, &effects{}, false)
	var starts []int
	for at := 0; at < len(whole); at += bytes.IndexByte(whole[at:], '\n') + 1 {
		starts = append(starts, at)
	}
	for i, at := range starts {
		for _, in := range []int{0, 4, 9, 20} {
			mem := newMemFS()
			data := bytes.Clone(whole)
			data[at+in] ^= 0x04
			mem.files["j"] = &memData{data: data}
			_, err := Resume(t.Context(), errandModel(), "j", errand(&effects{}, false).Funcs(), withFS(mem))
			var je *JournalError
			if !errors.Is(err, ErrJournalCorrupt) || !errors.As(err, &je) || je.Offset != int64(at) || je.Path != "j" {
				t.Fatalf("record %d, byte %d: %v", i, at+in, err)
			}
			if !bytes.Equal(mem.files["j"].data, data) {
				t.Fatal("a damaged journal was changed")
			}
		}
	}
}

func TestBlocksThatNeverReachedTheDiskAreATornRecord(t *testing.T) {
	whole, want := recorded(t, &effects{}, false)
	lines := bytes.SplitAfter(whole, []byte{'\n'})
	data := bytes.Join(lines[:4], nil)
	torn := bytes.Clone(lines[4])
	clear(torn[10 : len(torn)-3]) // a power cut: the size is there, the bytes are not
	mem := newMemFS()
	mem.files["j"] = &memData{data: append(data, torn...)}
	got, err := Resume(t.Context(), errandModel(), "j", errand(&effects{}, false).Funcs(), withFS(mem))
	if err != nil || normal(t, got) != normal(t, want) {
		t.Error(err)
	}
}

func TestFilesThatAreNoJournalAreLeftAsTheyAre(t *testing.T) {
	for _, text := range []string{"dear diary\n", "PK\x03\x04", "0123456", "{}\n", "00000000 {\"kind\":\"result\"}\n"} {
		mem := newMemFS()
		mem.files["j"] = &memData{data: []byte(text)}
		def := errand(&effects{}, false)
		_, err := RunGraph(t.Context(), errandModel(), compile(t, def), def.Funcs(), nil, WithJournal("j"), withFS(mem))
		if text == "0123456" {
			// Could be the start of a record; nothing in it can be lost.
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil || string(mem.files["j"].data) != text {
			t.Errorf("%q: %v, file now %q", text, err, mem.files["j"].data)
		}
	}
}

func TestJournalOfAnotherRunIsRefusedAndSaysWhatDiffers(t *testing.T) {
	whole, _ := recorded(t, &effects{}, false)
	def := errand(&effects{}, false)
	other := lang.Define("errand", func(p *lang.Program) lang.Var[string] {
		lang.In[string](p, "who", lang.Default("me"))
		p.User("x")
		return p.Gen("x")
	})
	third := lang.Define("third", func(p *lang.Program) lang.Var[string] { p.User("x"); return p.Gen("x") })
	twin := errandModel()
	twin.SetInfo(func(i *backend.Info) { i.Fingerprint = "other-weights" })
	for name, x := range map[string]struct {
		g    *lang.Graph
		be   backend.Backend
		args lang.Args
		opts []Option
		says []string
	}{
		"inputs":  {compile(t, def), errandModel(), lang.Args{"who": "you"}, nil, []string{"input who", `"me"`, `"you"`}},
		"graph":   {compile(t, other), errandModel(), nil, nil, []string{"graph of program errand"}},
		"program": {compile(t, third), errandModel(), nil, nil, []string{`"errand"`, `"third"`}},
		"model":   {compile(t, def), twin, nil, nil, []string{"model", "puppet-1", "other-weights"}},
		"seed":    {compile(t, def), errandModel(), nil, []Option{WithSeed(9)}, []string{"seed", "9"}},
		"name":    {compile(t, def), errandModel(), nil, []Option{WithRun("run-2")}, []string{"run-1", "run-2"}},
		"limits":  {compile(t, def), errandModel(), nil, []Option{WithLimits(Limits{Nodes: 5})}, []string{"limits"}},
	} {
		mem := newMemFS()
		mem.files["j"] = &memData{data: bytes.Clone(whole)}
		_, err := RunGraph(t.Context(), x.be, x.g, def.Funcs(), x.args, append(x.opts, WithJournal("j"), withFS(mem))...)
		var diff *MismatchError
		if !errors.Is(err, ErrJournalMismatch) || !errors.As(err, &diff) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, s := range x.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v does not say %s", name, err, s)
			}
		}
		if !bytes.Equal(mem.files["j"].data, whole) || mem.files["j"].locked {
			t.Errorf("%s: the journal was changed or kept", name)
		}
	}
	mem := newMemFS()
	mem.files["j"] = &memData{data: whole}
	if _, err := Resume(t.Context(), twin, "j", def.Funcs(), withFS(mem)); !errors.Is(err, ErrJournalMismatch) {
		t.Error(err)
	}
}

func TestTwoRunsCannotShareAJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	def := errand(&effects{}, false)
	model := errandModel()
	gate := puppet.NewGate()
	model.SetGate(gate)
	done := make(chan error, 1)
	go func() {
		_, err := RunGraph(t.Context(), model, compile(t, def), def.Funcs(), nil, WithJournal(path))
		done <- err
	}()
	if err := gate.HeldCount(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, err := Resume(t.Context(), errandModel(), path, def.Funcs())
		var je *JournalError
		if !errors.Is(err, ErrJournalLocked) || !errors.As(err, &je) {
			t.Error(err)
		}
	}
	if info, err := ReadJournal(path); err != nil || info.Ended || info.Header.Program != "errand" {
		t.Errorf("a journal in use cannot be read: %+v %v", info, err)
	}
	gate.Open()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	info, err := ReadJournal(path)
	if err != nil || !info.Ended || info.Error != "" || info.Results != errandTasks || len(info.Started) != 0 || info.Torn != 0 {
		t.Errorf("%+v %v", info, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", st.Mode(), err)
	}
}

func TestRunStopsAtAFullDiskAndResumesLater(t *testing.T) {
	_, want := recorded(t, &effects{}, false)
	for _, op := range []string{"write", "sync", "truncate+write", "open", "syncdir"} {
		for nth := 1; nth <= 12; nth++ {
			mem := newMemFS()
			count := 0
			mem.fault = func(o string) (int, error) {
				if o == "truncate" && strings.HasPrefix(op, "truncate") {
					return 0, errDiskFull
				}
				if strings.HasSuffix(op, o) {
					if count++; count >= nth {
						return 5, errDiskFull
					}
				}
				return 0, nil
			}
			e := &effects{}
			def := errand(e, false)
			model := errandModel()
			_, err := RunGraph(t.Context(), model, compile(t, def), def.Funcs(), nil, WithJournal("j"), WithRun("run-1"), withFS(mem))
			if count < nth {
				if err != nil {
					t.Fatal(op, nth, err)
				}
				break
			}
			var je *JournalError
			if !errors.Is(err, errDiskFull) || !errors.As(err, &je) || je.Path != "j" {
				t.Fatalf("%s %d: %v", op, nth, err)
			}
			// Space is back, and what was not synced is lost as well.
			mem.fault = nil
			for _, lost := range []bool{false, true} {
				again := newMemFS()
				if d := mem.files["j"]; d != nil {
					if d.locked {
						t.Fatal("the journal was not closed")
					}
					again.files["j"] = &memData{data: bytes.Clone(d.data)}
					if lost {
						again.files["j"] = &memData{data: bytes.Clone(d.synced)}
					}
				}
				got, err := RunGraph(t.Context(), errandModel(), compile(t, def), def.Funcs(), nil, WithJournal("j"), WithRun("run-1"), withFS(again))
				if err != nil || normal(t, got) != normal(t, want) {
					t.Fatalf("%s %d: going on: %v", op, nth, err)
				}
			}
		}
	}
}

func TestCallOfUnknownOutcome(t *testing.T) {
	whole, want := recorded(t, &effects{}, true)
	lines := bytes.SplitAfter(whole, []byte{'\n'})
	// The journal as it is if the process dies between effect and record.
	var crashed []byte
	for _, l := range lines {
		crashed = append(crashed, l...)
		if bytes.Contains(l, []byte(`{"kind":"started"`)) {
			break
		}
	}
	if !bytes.Contains(crashed, []byte("started")) {
		t.Fatal("no started record")
	}

	t.Run("safe", func(t *testing.T) {
		data, want := recorded(t, &effects{}, false)
		i := bytes.Index(data, []byte(`{"kind":"started"`))
		data = data[:i+bytes.IndexByte(data[i:], '\n')+1]
		mem := newMemFS()
		mem.files["j"] = &memData{data: data}
		e := &effects{}
		got, err := Resume(t.Context(), errandModel(), "j", errand(e, false).Funcs(), withFS(mem))
		if err != nil || normal(t, got) != normal(t, want) {
			t.Fatal(err)
		}
		if e.byKey["5:run-1:act"] != 1 || len(e.byKey) != 1 {
			t.Errorf("calls %v", e.byKey)
		}
	})
	t.Run("unsafe", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "j 1")
		if err := os.WriteFile(path, crashed, 0o600); err != nil {
			t.Fatal(err)
		}
		e := &effects{}
		_, err := Resume(t.Context(), errandModel(), path, errand(e, true).Funcs())
		var unknown *UnknownOutcomeError
		if !errors.Is(err, ErrUnknownOutcome) || !errors.As(err, &unknown) || unknown.Task != "act" || unknown.Key != "5:run-1:act" {
			t.Fatal(err)
		}
		for _, s := range []string{"coppice journal settle '" + path + "' act", "journal_test.go:", "<a>+<b>+<c>"} {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%v does not say %s", err, s)
			}
		}
		if len(e.byKey) != 0 {
			t.Error("it was called again")
		}
		if err := Settle(path, "nobody", Settlement{Again: true}); err == nil {
			t.Error("a task that is not open was settled")
		}
		if err := Settle(path, "act", Settlement{}); err == nil {
			t.Error("an empty settlement was taken")
		}
		if err := Settle(path, "act", Settlement{Result: json.RawMessage(`{"no": "string"}`)}); err == nil {
			t.Error("a result of the wrong type was taken")
		}
		copied, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := Settle(path, "act", Settlement{Result: json.RawMessage(`"done <a>+<b>+<c>"`)}); err != nil {
			t.Fatal(err)
		}
		got, err := Resume(t.Context(), errandModel(), path, errand(e, true).Funcs())
		if err != nil || normal(t, got) != normal(t, want) || len(e.byKey) != 0 {
			t.Errorf("after a result: %v, calls %v", err, e.byKey)
		}
		if err := os.WriteFile(path, copied, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Settle(path, "act", Settlement{Again: true}); err != nil {
			t.Fatal(err)
		}
		got, err = Resume(t.Context(), errandModel(), path, errand(e, true).Funcs())
		if err != nil || normal(t, got) != normal(t, want) || e.byKey["5:run-1:act"] != 1 {
			t.Errorf("after again: %v, calls %v", err, e.byKey)
		}
	})
}

func TestWhatFailedIsTriedAgainOnResume(t *testing.T) {
	mem := newMemFS()
	e := &effects{}
	def := errand(e, false)
	model := puppet.New()
	model.OnID("looks[1]/x").Fail(fmt.Errorf("down: %w", backend.ErrUnavailable))
	model.OnAny().Reply("ok")
	gate := puppet.NewGate()
	model.SetGate(gate)
	go func() {
		gate.HeldCount(t.Context(), 3)
		gate.Release("looks[0]/x")
		gate.Release("looks[1]/x") // looks[2]/x is cancelled
	}()
	var log []EventKind
	_, err := RunGraph(t.Context(), model, compile(t, def), def.Funcs(), nil, WithJournal("j"), WithRun("run-1"), withFS(mem))
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Fatal(err)
	}
	for i := range 2 {
		model = errandModel()
		log = nil
		got, err := Resume(t.Context(), model, "j", def.Funcs(), withFS(mem), WithSink(SinkFunc(func(e Event) { log = append(log, e.Kind) })))
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case i == 0 && (model.Calls("looks[1]/x") != 1 || model.Calls("v") != 1 || got.Restored > 1):
			t.Errorf("the first resume restored %d and called %v", got.Restored, model.Log())
		case i == 1 && (len(model.Log()) != 0 || got.Restored != errandTasks):
			t.Errorf("the second resume restored %d and called %v", got.Restored, model.Log())
		}
		if got.Tasks != errandTasks || string(got.Value) == "null" {
			t.Errorf("%+v", got)
		}
	}
	if len(log) == 0 || log[0] != RunStarted || log[len(log)-1] != RunFinished {
		t.Error(log)
	}
}

func TestFailuresUnderCollectAreKeptOnResume(t *testing.T) {
	def := lang.Define("c", func(p *lang.Program) lang.Var[string] {
		p.User("go")
		xs := lang.Fork(p, "f", lang.Each("a", "b"), func(b *lang.Branch, it lang.Var[string]) lang.Var[string] {
			b.User(it)
			return b.Gen("x")
		}, lang.Collect())
		p.User(lang.Len(xs))
		return p.Gen("last")
	})
	mem := newMemFS()
	model := puppet.New()
	model.OnID("f[0]/x").Fail(fmt.Errorf("no: %w", backend.ErrOverloaded))
	model.OnID("last").Fail(backend.ErrUnavailable)
	model.OnAny().Reply("ok")
	if _, err := RunGraph(t.Context(), model, compile(t, def), nil, nil, WithJournal("j"), withFS(mem)); !errors.Is(err, backend.ErrUnavailable) {
		t.Fatal(err)
	}
	model = puppet.New()
	model.OnAny().Reply("ok")
	got, err := Resume(t.Context(), model, "j", nil, withFS(mem))
	if err != nil {
		t.Fatal(err)
	}
	if len(model.Log()) != 1 || model.Calls("last") != 1 {
		t.Errorf("calls %v", model.Log())
	}
	if b := got.Branches[0]; b.Status != Failed || !errors.Is(b.Err, backend.ErrOverloaded) || b.Err.Error() == "" {
		t.Errorf("%+v", b)
	}
}

func TestInterruptedRunKeepsWhatFinishedMeanwhile(t *testing.T) {
	mem := newMemFS()
	entered, release := make(chan struct{}), make(chan struct{})
	f := lang.Func{Name: "slow", Result: lang.Type{Kind: lang.TypeInt}, Call: func(ctx context.Context, args []any) (any, error) {
		close(entered)
		<-ctx.Done()
		<-release
		return 7, nil // the effect happened though the run was told to stop
	}}
	def := lang.Define("p", func(p *lang.Program) lang.Var[any] { return lang.Call(p, "slow", f, lang.Unsafe()) })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel(); close(release) }()
	if _, err := RunGraph(ctx, puppet.New(), compile(t, def), def.Funcs(), nil, WithJournal("j"), withFS(mem)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	got, err := Resume(t.Context(), nil, "j", def.Funcs(), withFS(mem))
	if err != nil || string(got.Value) != "7" || got.Restored != 1 {
		t.Errorf("%v %+v", err, got)
	}
}

func TestRestoredRunEmitsOneDenseStream(t *testing.T) {
	whole, _ := recorded(t, &effects{}, false)
	lines := bytes.SplitAfter(whole, []byte{'\n'})
	mem := newMemFS()
	mem.files["j"] = &memData{data: bytes.Join(lines[:4], nil)} // header and some results
	var log []Event
	def := errand(&effects{}, false)
	if _, err := Resume(t.Context(), errandModel(), "j", def.Funcs(), withFS(mem), WithSink(SinkFunc(func(e Event) { log = append(log, e) }))); err != nil {
		t.Fatal(err)
	}
	restored, finished := 0, 0
	for i, e := range log {
		if e.Seq != uint64(i+1) {
			t.Fatalf("event %d has number %d", i, e.Seq)
		}
		if e.Kind == NodeFinished {
			finished++
			restored += e.Restored
		}
	}
	if restored == 0 || finished != errandTasks || log[0].Restored != restored {
		t.Errorf("%d of %d restored, the start says %d", restored, finished, log[0].Restored)
	}
}

func FuzzReadRecords(f *testing.F) {
	def := errand(&effects{}, false)
	g, err := def.Compile()
	if err != nil {
		f.Fatal(err)
	}
	mem := newMemFS()
	if _, err := RunGraph(context.Background(), errandModel(), g, def.Funcs(), nil, WithJournal("j"), withFS(mem)); err != nil {
		f.Fatal(err)
	}
	whole := mem.files["j"].data
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("00000000 {}\n"))
	for _, rec := range []string{`{"kind":"header","header":{"format":1}}`, `{"kind":"result"}`, `{"kind":"again","task":"x"}`} {
		var r record
		if err := json.Unmarshal([]byte(rec), &r); err != nil {
			f.Fatal(err)
		}
		line, err := appendRecord(nil, &r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
		f.Add(append(bytes.Clone(whole[:bytes.IndexByte(whole, '\n')+1]), line...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := readRecords(bytes.NewReader(data))
		if err != nil {
			if !errors.Is(err, ErrJournalCorrupt) {
				t.Errorf("error of no class: %v", err)
			}
			return
		}
		if c.size > int64(len(data)) {
			t.Fatal("more read than there is")
		}
		// What was read whole reads the same without its torn end.
		again, err := readRecords(bytes.NewReader(data[:c.size]))
		if err != nil || len(again.results) != len(c.results) || len(again.started) != len(c.started) || again.size != c.size {
			t.Fatalf("cut at %d: %v", c.size, err)
		}
		// Going on with any of it ends in an error or a report, never a panic.
		mem := newMemFS()
		mem.files["j"] = &memData{data: bytes.Clone(data)}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		Resume(ctx, errandModel(), "j", def.Funcs(), withFS(mem), WithGrace(1))
	})
}

func TestFailedCallThatMustNotBeRepeatedStaysFailed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	calls := 0
	f := lang.Func{Name: "pay", Result: lang.Type{Kind: lang.TypeAny}, Call: func(context.Context, []any) (any, error) {
		if calls++; calls == 1 {
			return nil, errors.New("connection lost")
		}
		return nil, nil
	}}
	def := lang.Define("p", func(p *lang.Program) lang.Var[any] { return lang.Call(p, "pay", f, lang.Unsafe()) })
	for range 2 {
		_, err := RunGraph(t.Context(), puppet.New(), compile(t, def), def.Funcs(), nil, WithJournal(path))
		if err == nil || !strings.Contains(err.Error(), "connection lost") || !strings.Contains(err.Error(), "settle "+path+" pay --again") {
			t.Fatal(err)
		}
	}
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
	if err := Settle(path, "pay", Settlement{Again: true}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := Resume(t.Context(), nil, path, def.Funcs())
		if err != nil || string(got.Value) != "null" || calls != 2 {
			t.Errorf("%v, %d calls", err, calls)
		}
	}
}

func TestSiblingsAfterAResumeAreThoseThatStillRun(t *testing.T) {
	mem := newMemFS()
	def := errand(&effects{}, false)
	model := errandModel()
	gate := puppet.NewGate()
	model.SetGate(gate)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		gate.HeldCount(ctx, 3)
		gate.Release("looks[1]/x")
	}()
	sink := SinkFunc(func(e Event) {
		if e.Kind == BranchFinished && e.Status == Finished {
			cancel()
		}
	})
	if _, err := RunGraph(ctx, model, compile(t, def), def.Funcs(), nil, WithJournal("j"), withFS(mem), WithSink(sink)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	model = errandModel()
	if _, err := Resume(t.Context(), model, "j", def.Funcs(), withFS(mem)); err != nil {
		t.Fatal(err)
	}
	for _, c := range model.Log() {
		if strings.HasPrefix(c.ID, "looks") && c.Request.Hints.Siblings != 2 {
			t.Errorf("%s: %d siblings", c.ID, c.Request.Hints.Siblings)
		}
	}
}
