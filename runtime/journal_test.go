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
