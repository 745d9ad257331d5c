//go:build unix

package runtime

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
)

// The test binary is its own victim: with this variable set it runs marathon
// on the journal named there instead of tests.
const victimEnv = "COPPICE_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		if err := victim(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// pauser announces each call on stdout, waits for a line on stdin before it
// lets it happen, and counts it in a file outside of the process.
type pauser struct {
	backend.Backend
	dir   string
	lines chan struct{}
}

func newPauser(be backend.Backend, dir string) *pauser {
	p := &pauser{be, dir, make(chan struct{})}
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			p.lines <- struct{}{}
		}
	}()
	return p
}

func (p *pauser) pause(ctx context.Context, id, key string) error {
	fmt.Printf("at %s\n", id)
	select {
	case <-p.lines:
	case <-ctx.Done():
		return ctx.Err()
	}
	f, err := os.OpenFile(filepath.Join(p.dir, "calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %s\n", id, key)
	return errors.Join(err, f.Close())
}

func (p *pauser) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	if err := p.pause(ctx, req.ID, "-"); err != nil {
		return nil, err
	}
	return p.Backend.Generate(ctx, req, emit)
}

func (p *pauser) Score(ctx context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	if err := p.pause(ctx, req.ID, "-"); err != nil {
		return nil, err
	}
	return p.Backend.Score(ctx, req)
}

// marathon is the program that victims run. pause stands between each call and
// its effect.
func marathon(pause func(ctx context.Context, id, key string) error) (*lang.Graph, lang.Funcs, backend.Backend) {
	f := lang.Func{Name: "charge", Params: []lang.Type{{Kind: lang.TypeString}}, Result: lang.Type{Kind: lang.TypeString},
		Call: func(ctx context.Context, args []any) (any, error) {
			return "charged for " + args[0].(string), pause(ctx, TaskID(ctx), IdempotencyKey(ctx))
		}}
	def := lang.Define("marathon", func(p *lang.Program) lang.Var[any] {
		p.User("go")
		looks := lang.Fork(p, "looks", lang.Each("a", "b", "c", "d"), func(b *lang.Branch, it lang.Var[string]) lang.Var[string] {
			b.User(it)
			b.Gen("x")
			lang.Call(b, "charge", f, it)
			return b.Gen("y")
		})
		p.User(lang.Join(looks, "+"))
		p.Repeat("r", 2, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			p.User("again")
			s := lang.Select(p, "s", "yes", "no")
			lang.Call(p, "charge", f, s)
			return round.Is(-1)
		})
		return lang.JSONSchema(p, "v", json.RawMessage(`{"type":"object","additionalProperties":true}`))
	})
	g, err := def.Compile()
	if err != nil {
		panic(err)
	}
	free := func(_ *puppet.Prompt, r *backend.Result) { r.Usage = backend.Usage{PromptTokens: 5, SampledTokens: 2} }
	m := puppet.New()
	m.OnID("v").Reply(`{"b": 1, "a": [true]}`).Edit(free)
	m.OnRegexp(`user: (\w)\nassistant: (?:\w*\n)?`).Reply("<$1>").Edit(free)
	m.OnAny().Reply("ok").Scores(map[string]float64{"yes": -1, "no": -2}).Edit(free)
	return g, def.Funcs(), m
}

func victim(dir string) error {
	var p *pauser
	g, funcs, be := marathon(func(ctx context.Context, id, key string) error { return p.pause(ctx, id, key) })
	p = newPauser(be, dir)
	r, err := RunGraph(context.Background(), p, g, funcs, nil, WithJournal(filepath.Join(dir, "journal")), WithRun("m"), WithClock(nil))
	if err != nil {
		return err
	}
	text, err := json.Marshal(forComparison(r))
	if err != nil {
		return err
	}
	fmt.Printf("report %s\n", text)
	return nil
}

func forComparison(r *Report) *Report {
	c := *r
	c.Restored = 0
	c.Usage.ForwardPasses, c.Usage.Without = 0, backend.Cost{} // scores of a puppet have passes of their own
	c.Usage.PromptTokens, c.Usage.CachedTokens, c.Usage.ComputedTokens = 0, 0, 0
	for i := range c.Branches {
		c.Branches[i].Usage = Usage{}
	}
	return &c
}

func TestKillMinusNineAtAnyMoment(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Skip(err)
	}
	g, funcs, be := marathon(func(context.Context, string, string) error { return nil })
	r, err := RunGraph(t.Context(), be, g, funcs, nil, WithRun("m"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(forComparison(r))
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)

	rounds := 8
	if testing.Short() {
		rounds = 2
	}
	kills, torn := 0, 0
	for round := range rounds {
		dir := t.TempDir()
		rng := rand.New(rand.NewPCG(5, uint64(round)))
		frozen := map[string]int{} // calls of tasks that were recorded when a process died
		for life := 0; ; life++ {
			if life > 200 {
				t.Fatal("the run makes no progress")
			}
			report := runVictim(t, exe, dir, rng)
			calls, keys := readCalls(t, dir)
			for task, n := range frozen {
				if calls[task] != n {
					t.Fatalf("round %d: finished task %s was carried out again (%d times, then %d)", round, task, n, calls[task])
				}
			}
			for task, k := range keys {
				if len(k) > 1 {
					t.Fatalf("round %d: task %s had the keys %v", round, task, k)
				}
			}
			if report != "" {
				if report != want {
					t.Fatalf("round %d ended in\n%s\nan undisturbed run in\n%s", round, report, want)
				}
				break
			}
			kills++
			f, err := os.Open(filepath.Join(dir, "journal"))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := readRecords(f)
			if err != nil {
				t.Fatal(err)
			}
			if st, err := f.Stat(); err == nil && st.Size() > c.size {
				torn++
			}
			f.Close()
			for _, res := range c.results {
				frozen[res.Task] = calls[res.Task]
			}
		}
	}
	t.Logf("%d runs, %d kills, %d torn records", rounds, kills, torn)
}

// runVictim runs a victim, kills it somewhere, and returns its report if it
// lived to the end.
func runVictim(t *testing.T, exe, dir string, rng *rand.Rand) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), victimEnv+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	left := rng.IntN(7) // announcements until the kill
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			t.Fatal("the victim died by itself")
		}
		if err != nil {
			t.Fatal(err)
		}
		if report, ok := strings.CutPrefix(line, "report "); ok {
			return strings.TrimSpace(report)
		}
		if left--; left < 0 {
			// Before the call, or while its result is on the way to the disk.
			if rng.IntN(3) > 0 {
				io.WriteString(in, "\n")
			}
			if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return ""
		}
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
	}
}

// readCalls reads what victims did, by task: how often, and with which keys.
func readCalls(t *testing.T, dir string) (map[string]int, map[string][]string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	calls, keys := map[string]int{}, map[string][]string{}
	for line := range strings.Lines(string(data)) {
		task, key, _ := strings.Cut(strings.TrimSpace(line), " ")
		calls[task]++
		if !slices.Contains(keys[task], key) {
			keys[task] = append(keys[task], key)
		}
	}
	return calls, keys
}
