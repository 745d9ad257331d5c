package future

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/sim"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// Load says what runs.
type Load struct {
	Agents int
	Rounds int // thoughts with a tool after each
	Seed   uint64
	// Pause is how long a tool takes that usually takes so long; nil: just that.
	Pause func(r *rand.Rand, usual time.Duration) time.Duration
	// Pages is the size of the cache in pages of 16 tokens.
	Pages int
	// Tier is the room, in pages, of a second tier that takes what is evicted.
	Tier int
	// Blind hides from the engine what the programs know of their future.
	Blind bool
}

// tools and how long they usually take.
var tools = []struct {
	name  string
	takes time.Duration
}{{"search", 1500 * time.Millisecond}, {"fetch", 4 * time.Second}, {"build", 11 * time.Second}}

// agent is the program: it thinks, uses the tool that its plan names, reads what
// that returned, and so on; then it answers.
func (w *world) agent() *lang.Def[string] {
	return lang.Define("agent", func(p *lang.Program) lang.Var[string] {
		who := lang.In[int](p, "who")
		task := lang.In[string](p, "task")
		plan := lang.In[[]string](p, "plan")
		p.System(strings.Repeat("You look after a small fleet of servers. Find out what is wrong, step by step. ", 8))
		p.User("Task: ", task)
		lang.ForEach(p, "steps", plan, func(p *lang.Program, tool lang.Var[string]) lang.Var[any] {
			p.Gen("thought", lang.MaxTokens(24))
			for _, t := range tools {
				p.When(tool.Is(t.name), func(p *lang.Program) {
					p.User(t.name, ": ", lang.Call1(p, t.name+"_result", func(ctx lang.Context, who int) (string, error) {
						return w.use(ctx, who, t.takes)
					}, who, lang.FuncName(t.name)))
				})
			}
			return lang.Var[any]{}
		})
		return p.Gen("answer", lang.MaxTokens(40))
	})
}

// LogNormal is how long tools take that usually take about as long, and now and then
// much longer: their mean is the usual, half of them take less than 88% of it, one in
// twenty more than twice as long, one in a hundred nearly three times.
func LogNormal(r *rand.Rand, usual time.Duration) time.Duration {
	const sigma = 0.5
	return time.Duration(float64(usual) * math.Exp(sigma*r.NormFloat64()-sigma*sigma/2))
}

// Run carries out a load and returns what the engine did. The same load gives the
// same trace: time stands still while agents get ready for their next requests.
func Run(ctx context.Context, l Load) (*Trace, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &world{load: l, ready: make(chan struct{}), trace: &Trace{Tokens: (l.Pages + l.Tier) * 16}, latest: make([]*request, l.Agents)}
	w.changed.L = &w.mu
	defer context.AfterFunc(ctx, w.stop)()
	e, d, err := sim.New(sim.Options{
		Step: 10 * time.Millisecond, Token: 20 * time.Microsecond, Copy: 80 * time.Microsecond, Sequential: true, Virtual: true,
		Context: 1 << 14, Engine: engine.Config{Pages: l.Pages, TierBytes: int64(l.Tier) * sim.PageBytes, Before: w.before},
	})
	if err != nil {
		return nil, err
	}
	w.engine, w.device = e, d
	close(w.ready)
	defer e.Close()
	g, err := w.agent().Compile()
	if err != nil {
		return nil, err
	}
	var all sync.WaitGroup
	for i := range l.Agents {
		r := rand.New(rand.NewPCG(l.Seed, uint64(i)))
		w.random = append(w.random, r)
		plan := make([]any, l.Rounds)
		for k := range plan {
			plan[k] = tools[r.IntN(len(tools))].name
		}
		in := lang.Args{"who": i, "task": words(r, 400+r.IntN(1200)), "plan": plan}
		start := time.Duration(r.Int64N(int64(5 * time.Second)))
		all.Go(func() {
			defer w.done()
			if err := w.rest(ctx, i, start); err != nil {
				return
			}
			var be backend.Backend = &client{e, w, i}
			if l.Blind {
				be = blind{be}
			}
			if _, err := runtime.RunGraph(ctx, be, g, w.agent().Funcs(), in, runtime.WithRun(fmt.Sprint("agent-", i))); err != nil {
				cancel(fmt.Errorf("agent %d: %w", i, err))
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	st := e.Stats()
	if st.Preempted > 0 {
		return nil, errors.New("future: the cache is too small for what runs at once")
	}
	w.trace.Loaded, w.trace.Fetched = int(st.TierLoaded), int(st.TierFetched)
	return w.trace, nil
}

// words are n bytes of text of an agent's own.
func words(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		for range 2 + r.IntN(8) {
			b.WriteByte(byte('a' + r.IntN(26)))
		}
		b.WriteByte(' ')
	}
	return b.String()[:n]
}
