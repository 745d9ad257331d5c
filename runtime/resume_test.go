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
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
)

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
