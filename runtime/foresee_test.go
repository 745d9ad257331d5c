package runtime_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// foreseer writes down what it is told.
type foreseer struct {
	*puppet.Model
	mu   sync.Mutex
	told []string
}

func (f *foreseer) tell(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, fmt.Sprintf(format, args...))
}

func (f *foreseer) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	f.tell("%s asks for %q", req.ID, req.Hints.Branch)
	return f.Model.Generate(ctx, req, emit)
}

func (f *foreseer) Foresee(run, branch string, a backend.Absence) {
	what := a.Doing
	if a.For > 0 {
		what += " for " + a.For.String()
	}
	if a.Gone {
		what = "gone"
	}
	f.tell("%s %q: %s", run, branch, what)
}

func (f *foreseer) EndRun(run string) { f.tell("%s ends", run) }

func TestBackendsAreToldWhatBranchesDo(t *testing.T) {
	tool := func(_ lang.Context, c lang.ToolCall) (string, error) { return "found by " + c.Name, nil }
	def := lang.Define("told", func(p *lang.Program) lang.Var[string] {
		p.User("Look.")
		p.Gen("first")
		calls := lang.Let[[]lang.ToolCall](p, "calls", lang.Calc[[]lang.ToolCall](`[{"name": "search", "arguments": 1, "error": ""}, {"name": "fetch", "arguments": 2, "error": ""}]`))
		found := lang.Fork(p, "results", lang.Over(calls), func(b *lang.Branch, c lang.Var[lang.ToolCall]) lang.Var[string] {
			return lang.Call1(b, "result", tool, c, lang.FuncName("run"))
		})
		p.User(lang.Join(found, " "))
		p.Sleep(time.Millisecond)
		p.Gen("second")
		return lang.Call1(p, "last", func(_ lang.Context, s string) (string, error) { return s, nil }, lang.Join(found, ""), lang.FuncName("store"))
	})
	be := &foreseer{Model: puppet.New()}
	be.OnAny().Reply("ok")
	if _, err := runtime.Run(t.Context(), be, def, nil, runtime.WithRun("r")); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`first asks for ""`,
		`r "results[0]": gone`, // nothing reads what it adds: it only calls
		`r "": run:fetch+run:search`,
		`r "results[1]": gone`,
		`r "results[0]": gone`, // they end
		`r "results[1]": gone`,
		`r "": sleep for 1ms`,
		`second asks for ""`,
		`r "": gone`, // what follows reads nothing
		`r ends`,
	}
	// Which of two calls ends first is left to chance.
	if got, want := slices.Sorted(slices.Values(be.told)), slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
		t.Errorf("told\n\t%s", strings.Join(be.told, "\n\t"))
	}
	if n := len(be.told); n != len(want) || be.told[0] != want[0] || be.told[n-1] != want[n-1] {
		t.Errorf("told\n\t%s", strings.Join(be.told, "\n\t"))
	}
}

// TestFailedRunsEndToo: what was kept for a run is let go of, whatever happens.
func TestFailedRunsEndToo(t *testing.T) {
	be := &foreseer{Model: puppet.New()}
	be.OnAny().Fail(backend.ErrInvalid)
	def := lang.Define("fails", func(p *lang.Program) lang.Var[string] {
		p.User("Look.")
		return p.Gen("first")
	})
	if _, err := runtime.Run(t.Context(), be, def, nil, runtime.WithRun("r")); err == nil {
		t.Fatal("no error")
	}
	if n := len(be.told); n == 0 || be.told[n-1] != "r ends" {
		t.Errorf("told %q", be.told)
	}
}
