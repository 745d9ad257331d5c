package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// ErrNeedsScript: a journal is of a script, whose Go code is not in it.
var ErrNeedsScript = errors.New("the journal is of a script")

// RunScript runs a script on a backend in this process, as Run does with a
// program of Define: same options, journal, events and report. With a journal
// that exists the run goes on: the script is run again from its beginning and is
// given the recorded results, and nothing that is finished is done again. A
// script that then asks for something else than the recorded run did is refused
// with a [ReplayError].
func RunScript[In, Out any](ctx context.Context, be backend.Backend, script *lang.ScriptDef[In, Out], in In, opts ...Option) (*Output[Out], error) {
	args, err := script.Args(in)
	if err != nil {
		return nil, err
	}
	report, err := PlayScript(ctx, be, script, args, opts...)
	if report == nil {
		return nil, err
	}
	out := &Output[Out]{Report: report}
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(report.Value, &out.Value); err != nil {
		return out, fmt.Errorf("runtime: the result of %s is no %T: %w", script.Name(), out.Value, err)
	}
	return out, nil
}

// PlayScript is RunScript for a script whose types are not known to Go.
func PlayScript(ctx context.Context, be backend.Backend, script lang.Scripted, args lang.Args, opts ...Option) (*Report, error) {
	if script == nil {
		return nil, errors.New("runtime: no script")
	}
	cfg := newConfig(opts)
	g, err := script.Open()
	if err != nil {
		return nil, err
	}
	vars, err := g.Bind(args)
	if err != nil {
		return nil, err
	}
	r := &runner{be: be, cfg: cfg, graph: g, script: script}
	if err := r.checkReliable(ctx); err != nil {
		return nil, err
	}
	if cfg.journal != "" {
		return r.runJournaled(ctx, vars)
	}
	if cfg.run == "" {
		cfg.run = randomName()
	}
	if err := r.stageScript(vars, r.time()); err != nil {
		return nil, err
	}
	return r.run(ctx)
}

// time is the time that scripts see.
func (r *runner) time() time.Time {
	if r.cfg.clock == nil {
		return time.Now().UTC()
	}
	return r.cfg.clock().UTC()
}

// stageScript puts the script at its beginning.
func (r *runner) stageScript(vars map[string]any, now time.Time) error {
	g, err := r.script.Open() // each play writes its own graph
	if err != nil {
		return err
	}
	if r.m, err = NewScript(g, vars, r.cfg.options()); err != nil {
		return err
	}
	if r.stage != nil {
		r.stage.close(ErrLineOver)
	}
	r.stage = &stage{m: r.m, now: now, answered: r.cfg.answered()}
	if r.cfg.seed != nil {
		r.stage.seed = *r.cfg.seed
	}
	if r.be != nil {
		info := r.be.Info()
		r.stage.info = &info
	}
	for _, f := range r.cfg.fallback {
		r.stage.fallback = append(r.stage.fallback, f.name)
	}
	r.stage.start(r.script, g, vars)
	return nil
}

// stamp is what the journal of a script holds of a result besides it.
type stamp struct {
	trace string
	at    time.Time
}

func traceText(trace uint64) string { return fmt.Sprintf("%016x", trace) }

// stamp adds to a record what a replay of a script needs.
func (r *runner) stampRecord(rec *record) {
	if r.stage != nil {
		rec.Trace = traceText(r.m.Trace(rec.Task))
		rec.At = r.stage.now
	}
}

// ReplayError says where a script that was run again left the way of the run
// that the journal holds. It is ErrJournalMismatch.
type ReplayError struct {
	Script string
	Task   string   // that the journal has a result of
	Asked  []string // what the script asked for instead
	// Changed is set if it asked for Task, with other steps before it or other
	// options.
	Changed bool
}

func (e *ReplayError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "script %s does not do what it did in the run that the journal holds: ", e.Script)
	switch {
	case e.Changed:
		fmt.Fprintf(&b, "it asked for %s with other texts, options or steps before it", e.Task)
	case len(e.Asked) == 0:
		fmt.Fprintf(&b, "the journal has a result of %s, and the script asks for nothing more", e.Task)
	default:
		fmt.Fprintf(&b, "the journal has a result of %s, and the script asks for %s", e.Task, strings.Join(e.Asked, ", "))
	}
	b.WriteString(": use the script that began the run, or another journal; a script must take its time from Now, random numbers from Rand and all else that changes from Do")
	return b.String()
}

// Is makes errors.Is(err, ErrJournalMismatch) true.
func (e *ReplayError) Is(target error) bool { return target == ErrJournalMismatch }

// restoreScript runs the script with the results of a journal. As in restore,
// the failures that ended the recorded run are taken out.
func (r *runner) restoreScript(vars map[string]any, c *contents) error {
	if err := r.replay(vars, c, c.results, false); err != nil {
		return err
	}
	results, loose := c.results, false
	if r.m.Err() != nil {
		failed := failedTasks(r.m.Err())
		results = slices.DeleteFunc(slices.Clone(c.results), func(res Result) bool {
			return res.Failure != nil && slices.Contains(failed, res.Task) && !r.m.unsafe(res.Task)
		})
		loose = len(results) < len(c.results)
	}
	if loose || r.cfg.sink != nil {
		r.listen()
		if err := r.replay(vars, c, results, loose); err != nil {
			return err
		}
	}
	r.restored = len(r.m.results)
	return nil
}

// replay runs the script from its beginning and applies results in their order.
// If loose is set, some that the recorded run had are left out, and what only
// followed from them is skipped.
func (r *runner) replay(vars map[string]any, c *contents, results []Result, loose bool) error {
	start := c.header.Created
	if start.IsZero() {
		start = r.time()
	}
	if err := r.stageScript(vars, start); err != nil {
		return err
	}
	r.queue, r.idle, r.used = nil, nil, cost{}
	r.stage.play()
	r.follow()
	for i := range results {
		res := &results[i]
		t := r.m.tasks[res.Task]
		s := c.stamps[res.Task]
		switch {
		case t == nil && loose:
			continue
		case t == nil || s.trace != "" && s.trace != traceText(t.trace):
			e := &ReplayError{Script: r.script.Name(), Task: res.Task, Changed: t != nil}
			for _, t := range r.m.Ready() {
				e.Asked = append(e.Asked, t.ID)
			}
			return e
		case t.state == taskCancelled:
			continue
		}
		task := t.Task
		if !s.at.IsZero() { // settled by hand
			r.stage.now = s.at
		}
		if err := r.m.Apply(*res); err != nil {
			return fmt.Errorf("%w: %w", ErrJournalCorrupt, err)
		}
		r.announce(&task, res, true)
		r.stage.play()
		r.follow()
	}
	r.forget(func(t Task) bool { return r.m.unwanted(t.ID) })
	return nil
}
