package runtime

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-run/coppice/lang"
)

// runJournaled begins a run in a new journal, or goes on with the one that is
// there if it is of the same run.
func (r *runner) runJournaled(ctx context.Context, vars map[string]any) (*Report, error) {
	inputs, vars, err := storable(r.graph, vars)
	if err != nil {
		return nil, err
	}
	j, c, err := r.open(true)
	if err != nil {
		return nil, err
	}
	if c.header != nil {
		if err := r.matches(c.header, inputs); err != nil {
			j.close()
			return nil, &JournalError{Path: j.path, Offset: -1, Err: err}
		}
		return r.goOn(ctx, j, c, vars)
	}
	h, err := r.header(inputs)
	if err == nil {
		err = j.append(record{Kind: recordHeader, Header: h})
	}
	if err == nil {
		if serr := r.cfg.fs.syncDir(j.path); serr != nil {
			err = &JournalError{Path: j.path, Offset: -1, Err: serr}
		}
	}
	if err != nil {
		j.close()
		return nil, err
	}
	c.header = h
	return r.goOn(ctx, j, c, vars)
}

// resume goes on with the run of an existing journal.
func (r *runner) resume(ctx context.Context) (*Report, error) {
	j, c, err := r.open(false)
	if err != nil {
		return nil, err
	}
	vars, err := r.adopt(c.header)
	if err != nil {
		j.close()
		return nil, &JournalError{Path: j.path, Offset: 0, Err: err}
	}
	if err := r.check(ctx); err != nil {
		j.close()
		return nil, err
	}
	return r.goOn(ctx, j, c, vars)
}

// open opens and reads the journal, and cuts what a crash left unfinished at
// its end.
func (r *runner) open(create bool) (*journal, *contents, error) {
	path := r.cfg.journal
	f, err := r.cfg.fs.open(path, create)
	if err != nil {
		return nil, nil, &JournalError{Path: path, Offset: -1, Err: err}
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, &JournalError{Path: path, Offset: -1, Err: err}
	}
	c, err := readRecords(io.NewSectionReader(f, 0, st.Size()))
	if err != nil {
		f.Close()
		return nil, nil, journalError(path, err)
	}
	if c.header == nil && !create {
		f.Close()
		return nil, nil, &JournalError{Path: path, Offset: 0, Err: errors.New("there is no complete header: nothing was recorded, so run the program again")}
	}
	if c.header == nil && st.Size() > 0 && !tornHeader(f) {
		f.Close()
		return nil, nil, &JournalError{Path: path, Offset: 0, Err: ErrNoJournal}
	}
	if st.Size() > c.size {
		if err := f.Truncate(c.size); err != nil {
			f.Close()
			return nil, nil, &JournalError{Path: path, Offset: c.size, Err: fmt.Errorf("cutting a torn record: %w", err)}
		}
	}
	j := &journal{path: path, f: f, clock: r.cfg.clock, size: c.size, sum: c.sum}
	if c.ended {
		j.ended = &c.endErr
	}
	return j, c, nil
}

// headerStart is how the JSON of every header begins.
const headerStart = `{"kind":"header"`

// tornHeader reports whether a file without a header could be the beginning of
// one, so that it may be written over.
func tornHeader(f file) bool {
	buf := make([]byte, 9+len(headerStart))
	n, _ := f.ReadAt(buf, 0)
	for i, b := range buf[:n] {
		switch {
		case i < 8 && !strings.ContainsRune("0123456789abcdef", rune(b)):
			return false
		case i == 8 && b != ' ':
			return false
		case i > 8 && b != headerStart[i-9]:
			return false
		}
	}
	return true
}

// storable returns inputs as JSON and in the form that they have after they
// were stored.
func storable(g *lang.Graph, vars map[string]any) (json.RawMessage, map[string]any, error) {
	data := g.EncodeInputs(vars)
	vars, err := g.DecodeInputs(data)
	return data, vars, err
}

func (r *runner) header(inputs json.RawMessage) (*Header, error) {
	graph, err := r.graph.JSON()
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, graph); err != nil {
		return nil, err
	}
	if r.cfg.run == "" {
		var id [16]byte
		crand.Read(id[:])
		r.cfg.run = "run-" + hex.EncodeToString(id[:])
	}
	h := &Header{
		Format:    journalFormat,
		Coppice:   Version(),
		Run:       r.cfg.run,
		Program:   r.graph.Name,
		GraphHash: r.graph.Hash(),
		Graph:     compact.Bytes(),
		Inputs:    inputs,
		Seed:      r.cfg.options().Seed,
		Limits:    r.cfg.options().Limits.withDefaults(),
	}
	if r.cfg.clock != nil {
		h.Created = r.cfg.clock().UTC()
	}
	if r.script != nil {
		h.Script, h.Created = true, r.time()
	}
	if r.be != nil {
		info := r.be.Info()
		h.Model, h.Fingerprint, h.Backend = info.Model, info.Fingerprint, r.cfg.backend
	}
	return h, nil
}

// MismatchError says in what a journal differs from the run that was asked for.
// It is ErrJournalMismatch.
type MismatchError struct {
	Differs []Difference
}

// Difference is one thing that is not the same.
type Difference struct {
	What    string // "program", "input alert", "seed", "model" ...
	Journal string // what the journal has
	Run     string // what the run was given
}

func (e *MismatchError) Error() string {
	var b strings.Builder
	b.WriteString(ErrJournalMismatch.Error())
	for i, d := range e.Differs {
		b.WriteString(map[bool]string{true: ": ", false: "; "}[i == 0])
		fmt.Fprintf(&b, "%s is %s in the journal and %s here", d.What, d.Journal, d.Run)
	}
	b.WriteString(": use another file, or what the journal was begun with")
	return b.String()
}

// Is makes errors.Is(err, ErrJournalMismatch) true.
func (e *MismatchError) Is(target error) bool { return target == ErrJournalMismatch }

func (e *MismatchError) add(what, journal, run string) {
	const most = 120
	for _, s := range []*string{&journal, &run} {
		if len(*s) > most {
			*s = strings.ToValidUTF8((*s)[:most], "") + "…"
		}
	}
	e.Differs = append(e.Differs, Difference{what, journal, run})
}

func (e *MismatchError) err() error {
	if len(e.Differs) == 0 {
		return nil
	}
	return e
}

// matches compares the run that was asked for with a journal's, and takes over
// what was not asked for: name, seed and limits.
func (r *runner) matches(h *Header, inputs json.RawMessage) error {
	var e MismatchError
	if h.Script != (r.script != nil) {
		kind := map[bool]string{true: "a script", false: "a graph"}
		e.add("program "+h.Program, kind[h.Script], kind[!h.Script])
	} else if h.Program != r.graph.Name {
		e.add("program", strconv.Quote(h.Program), strconv.Quote(r.graph.Name))
	} else if hash := r.graph.Hash(); h.GraphHash != hash {
		e.add("the graph of program "+h.Program, h.GraphHash, hash)
	}
	if e.Differs == nil && !bytes.Equal(h.Inputs, inputs) {
		var was, is map[string]json.RawMessage
		if json.Unmarshal(h.Inputs, &was) == nil && json.Unmarshal(inputs, &is) == nil {
			for _, in := range r.graph.Inputs {
				if !bytes.Equal(was[in.Name], is[in.Name]) {
					e.add("input "+in.Name, string(was[in.Name]), string(is[in.Name]))
				}
			}
		}
	}
	r.compare(h, &e)
	return e.err()
}

// adopt makes the run that a journal holds the one to be run, and returns its
// inputs.
func (r *runner) adopt(h *Header) (map[string]any, error) {
	if h.Script {
		return nil, fmt.Errorf("%w %s: its steps are Go code, which no journal holds; run the program that has it with the same journal (runtime.RunScript and WithJournal)", ErrNeedsScript, h.Program)
	}
	var err error
	if r.graph, err = lang.Decode(h.Graph, r.cfg.journal); err != nil {
		return nil, fmt.Errorf("the program in the header cannot be read: %w", err)
	}
	if hash := r.graph.Hash(); hash != h.GraphHash {
		return nil, fmt.Errorf("the program in the header has the hash %s, not %s: it was written by coppice %s, which is not compatible", hash, h.GraphHash, h.Coppice)
	}
	var e MismatchError
	r.compare(h, &e)
	if err := e.err(); err != nil {
		return nil, err
	}
	return r.graph.DecodeInputs(h.Inputs)
}

// compare looks at the part of a header that resumed and repeated runs share.
func (r *runner) compare(h *Header, e *MismatchError) {
	if s := r.cfg.seed; s != nil && *s != h.Seed {
		e.add("seed", strconv.FormatUint(h.Seed, 10), strconv.FormatUint(*s, 10))
	}
	if r.cfg.run != "" && r.cfg.run != h.Run {
		e.add("run", strconv.Quote(h.Run), strconv.Quote(r.cfg.run))
	}
	if l := r.cfg.limits; l != nil && l.withDefaults() != h.Limits {
		e.add("limits", fmt.Sprintf("%+v", h.Limits), fmt.Sprintf("%+v", l.withDefaults()))
	}
	if r.be != nil {
		info := r.be.Info()
		switch {
		case h.Fingerprint != "" && info.Fingerprint != "":
			if h.Fingerprint != info.Fingerprint {
				e.add("model", fmt.Sprintf("%s (%s)", h.Model, h.Fingerprint), fmt.Sprintf("%s (%s)", info.Model, info.Fingerprint))
			}
		case h.Model != "" && h.Model != info.Model:
			e.add("model", strconv.Quote(h.Model), strconv.Quote(info.Model))
		}
	}
	seed, limits := h.Seed, h.Limits
	r.cfg.seed, r.cfg.limits, r.cfg.run = &seed, &limits, h.Run
}

// goOn brings the machine to where the journal ends and runs on from there.
func (r *runner) goOn(ctx context.Context, j *journal, c *contents, vars map[string]any) (*Report, error) {
	r.j = j
	r.due, r.spent = c.due, c.spent
	r.asked = make(map[string]bool, len(c.asks))
	for _, w := range c.asks {
		r.asked[w.Task] = true
	}
	r.started = make(map[string]bool, len(c.started))
	for id := range c.started {
		r.started[id] = true
	}
	restore := func() error { return r.restore(vars, c.results) }
	if r.script != nil {
		restore = func() error { return r.restoreScript(vars, c) }
	}
	err := restore()
	if err == nil {
		err = r.unknown(c.started)
	}
	if err != nil {
		j.close()
		if r.stage != nil {
			r.stage.close(err)
		}
		return nil, err
	}
	report, err := r.run(ctx)
	for _, id := range failedTasks(err) {
		if r.m.unsafe(id) {
			err = fmt.Errorf("%w (%s must not be called twice for one node, so it stays failed; if it did not happen: coppice journal settle %s %s --again; in Go runtime.Settle)",
				err, r.m.tasks[id].Call.Func, shellQuote(j.path), shellQuote(id))
		}
	}
	return report, err
}

// restore replays results. If they end in a failed run, the failures that ended
// it are taken out, so that what failed is tried again; a call that must not be
// repeated stays failed.
func (r *runner) restore(vars map[string]any, results []Result) error {
	m, err := Restore(r.graph, vars, r.cfg.options(), results)
	if err != nil {
		return &JournalError{Path: r.j.path, Offset: -1, Err: fmt.Errorf("%w: its results do not fit its program: %w", ErrJournalCorrupt, err)}
	}
	if m.Err() != nil {
		failed := failedTasks(m.Err())
		again := slices.DeleteFunc(slices.Clone(results), func(res Result) bool {
			return res.Failure != nil && slices.Contains(failed, res.Task) && !m.unsafe(res.Task)
		})
		if len(again) < len(results) {
			results = again
			if m, err = Restore(r.graph, vars, r.cfg.options(), results); err != nil {
				return &JournalError{Path: r.j.path, Offset: -1, Err: fmt.Errorf("%w: its results do not fit its program: %w", ErrJournalCorrupt, err)}
			}
		}
	}
	r.restored = len(m.results)
	if r.cfg.sink == nil {
		r.m = m
		for i := range m.results {
			r.used.add(m.results[i].usage())
		}
		return nil
	}
	// Once more, for those who listen.
	if r.m, err = New(r.graph, vars, r.cfg.options()); err != nil {
		return err
	}
	r.listen()
	r.follow()
	for i := range m.results {
		res := &m.results[i]
		t := r.m.tasks[res.Task].Task
		if err := r.m.Apply(*res); err != nil {
			return err
		}
		r.announce(&t, res, true)
		r.follow()
	}
	r.forget(func(t Task) bool { return r.m.unwanted(t.ID) })
	return nil
}

func (m *Machine) unsafe(id string) bool {
	t := m.tasks[id]
	return t != nil && t.Call != nil && t.Call.Unsafe
}

// UnknownOutcomeError says that an earlier process began a call that must not
// be repeated and did not live to record how it ended. Somebody has to find out
// and say so with [Settle]. It is ErrUnknownOutcome.
type UnknownOutcomeError struct {
	Path string // of the journal
	Task string
	Func string
	Args []any
	Key  string // idempotency key that the call was given
	Pos  lang.Pos
}

func (e *UnknownOutcomeError) Error() string {
	var b strings.Builder
	writePos(&b, e.Pos)
	fmt.Fprintf(&b, "%s: unknown outcome: a call of %s with arguments %s and key %q was started and its result was never recorded; the function must not be called twice. ",
		e.Task, e.Func, lang.FormatJSON(e.Args, lang.Type{}), e.Key)
	fmt.Fprintf(&b, "Find out whether it happened, then: coppice journal settle %s %s --result JSON (it happened and returned this), or --again (it did not happen: call it); in Go runtime.Settle",
		shellQuote(e.Path), shellQuote(e.Task))
	return b.String()
}

// Is makes errors.Is(err, ErrUnknownOutcome) true.
func (e *UnknownOutcomeError) Is(target error) bool { return target == ErrUnknownOutcome }

func shellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// unknown refuses to go on if a call of unknown outcome must not be repeated.
func (r *runner) unknown(started map[string]string) error {
	var errs []error
	for _, t := range r.m.Ready() {
		if key, ok := started[t.ID]; ok && t.Call != nil && t.Call.Unsafe {
			errs = append(errs, &UnknownOutcomeError{Path: r.j.path, Task: t.ID, Func: t.Call.Func, Args: t.Call.Args, Key: key, Pos: t.Node.Pos})
		}
	}
	return errors.Join(errs...)
}

// Settlement is what somebody found out about a call of unknown outcome.
// Exactly one field is set.
type Settlement struct {
	Result json.RawMessage // it happened and returned this; null if it returns nothing
	Again  bool            // it did not happen: call it when the run goes on
}

// Settle records in a journal how a call ended that was started and has no
// result, or that failed and must not be repeated. The run can then be resumed.
func Settle(path, task string, s Settlement) error {
	r := &runner{cfg: newConfig([]Option{WithJournal(path)})}
	j, c, err := r.open(false)
	if err != nil {
		return err
	}
	err = r.settle(j, c, task, s)
	if cerr := j.close(); err == nil {
		err = cerr
	}
	return err
}

func (r *runner) settle(j *journal, c *contents, task string, s Settlement) error {
	vars, err := r.adopt(c.header)
	if err != nil && !errors.Is(err, ErrNeedsScript) {
		return &JournalError{Path: j.path, Offset: 0, Err: err}
	}
	_, open := c.started[task]
	failed := slices.ContainsFunc(c.results, func(res Result) bool { return res.Task == task && res.Failure != nil })
	if !open && !failed {
		hint := "no call is open"
		if len(c.started) > 0 {
			hint = "open are " + strings.Join(sortedKeys(c.started), ", ")
		}
		return &JournalError{Path: j.path, Offset: -1, Err: fmt.Errorf("task %q is not a call of unknown outcome: %s", task, hint)}
	}
	switch {
	case s.Again == (s.Result != nil):
		return errors.New("runtime: a settlement has either a result or Again")
	case s.Again:
		return j.append(record{Kind: recordAgain, Task: task})
	case c.header.Script: // only its own run can tell whether the result fits
		if !json.Valid(s.Result) {
			return errors.New("runtime: the result is not JSON")
		}
		return j.results([]Result{{Task: task, Value: s.Result}}, nil)
	}
	results := slices.DeleteFunc(slices.Clone(c.results), func(res Result) bool { return res.Task == task })
	m, err := Restore(r.graph, vars, r.cfg.options(), results)
	if err != nil {
		return &JournalError{Path: j.path, Offset: -1, Err: err}
	}
	t := m.tasks[task]
	if t == nil || t.Call == nil {
		return &JournalError{Path: j.path, Offset: -1, Err: fmt.Errorf("task %q is no call: %w", task, ErrUnknownTask)}
	}
	if err := t.CheckResult(s.Result); err != nil {
		return fmt.Errorf("runtime: %w", err)
	}
	return j.results([]Result{{Task: task, Value: s.Result}}, nil)
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
