package runtime

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// BatchOptions say how a batch goes. The zero value is usable.
type BatchOptions struct {
	// Concurrency is how many runs go on at once; 0 means 16.
	Concurrency int
	// Total is the number of items, for the progress; 0: not known.
	Total int
	// Each takes the results in the order of the items, one at a time. An error of
	// it ends the batch.
	Each func(BatchResult) error
	// Progress is called when an item begins or ends, from the goroutine that called
	// Batch.
	Progress func(BatchProgress)
	// MaxFailures ends the batch when more items than that have failed; 0: never.
	MaxFailures int
	// Journal is a file in which finished items are kept. A batch that finds its
	// journal goes on: finished items are taken from it, failed ones are run again.
	Journal string
	// Durable keeps a journal of each run too, beside the batch's while it goes on,
	// so that a run that was cut off goes on where it was. Programs that call unsafe
	// functions are always run so.
	Durable bool
	// Options are those of each run. WithJournal and WithSink are refused. The seed
	// is the same in all runs, the name is the batch's with the item's index.
	Options []Option
}

// BatchResult is what came of one item. Its JSON is one line of an output file.
type BatchResult struct {
	Index int
	// Kept are the fields of the item that are no inputs: id, and names that begin
	// with _.
	Kept     map[string]any
	Value    json.RawMessage // nil if it failed
	Usage    Usage
	Restored bool // it came from the journal
	Err      error

	passes spanSet // of Usage.ForwardPasses, nil if restored
}

// MarshalJSON writes index, what was kept, and value or error, and usage.
func (r BatchResult) MarshalJSON() ([]byte, error) {
	buf := fmt.Appendf(nil, `{"index":%d`, r.Index)
	for _, k := range slices.Sorted(maps.Keys(r.Kept)) {
		buf = append(buf, ',')
		buf = append(buf, lang.FormatJSON(k, lang.Type{})...)
		buf = append(buf, ':')
		buf = append(buf, lang.FormatJSON(r.Kept[k], lang.Type{})...)
	}
	if r.Err != nil {
		buf = append(buf, `,"error":`...)
		buf = append(buf, lang.FormatJSON(r.Err.Error(), lang.Type{})...)
	} else {
		buf = append(buf, `,"value":`...)
		buf = append(buf, r.Value...)
	}
	usage, err := json.Marshal(r.Usage)
	if err != nil {
		return nil, err
	}
	buf = append(append(buf, `,"usage":`...), usage...)
	return append(buf, '}'), nil
}

// BatchProgress is how far a batch is.
type BatchProgress struct {
	Total    int // 0: not known
	Finished int // succeeded or failed, restored ones included
	Failed   int
	Restored int
	Running  int
	Rate     float64       // items finished a second, restored ones left out
	ETA      time.Duration // 0: not known
	Usage    Usage
}

// BatchReport is what a batch gave.
type BatchReport struct {
	Items    int            `json:"items"` // that have a result
	Failed   int            `json:"failed"`
	Restored int            `json:"restored"`
	Usage    Usage          `json:"usage"`
	Seconds  float64        `json:"seconds"`
	Failures []BatchFailure `json:"failures"` // the first thousand
}

// BatchFailure is an item that failed.
type BatchFailure struct {
	Index int    `json:"index"`
	Error string `json:"error"`
}

const maxFailuresKept = 1000

// ErrTooManyFailures: more items of a batch failed than were allowed.
var ErrTooManyFailures = errors.New("too many items failed")

// Batch runs a program once for each item. Items are the inputs of a run, or an
// error, which is that item's failure and no other's; one that is a *SourceError
// ends the batch. See [ReadJSONL], [ReadCSV] and [FromChannel].
//
// A failed item is in the results and the report; it is no error of Batch. If the
// batch ends early (ctx, Each, MaxFailures, the source, the journal) the error
// says so, the report says what was done, and with a journal the same call goes
// on later. An iterator that blocks is left behind then.
func Batch(ctx context.Context, be backend.Backend, g *lang.Graph, funcs lang.Funcs, items iter.Seq2[lang.Args, error], o BatchOptions) (*BatchReport, error) {
	if g == nil || items == nil {
		return nil, errors.New("runtime: a batch needs a graph and items")
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 16
	}
	cfg := newConfig(o.Options)
	if cfg.journal != "" || cfg.sink != nil {
		return nil, errors.New("runtime: the runs of a batch take neither WithJournal nor WithSink: use BatchOptions")
	}
	if err := (&runner{be: be, funcs: funcs, cfg: cfg, graph: g}).check(ctx); err != nil {
		return nil, err
	}
	b := &batch{be: be, g: g, funcs: funcs, o: o, cfg: cfg, window: 4*o.Concurrency + 16,
		waiting: map[int]BatchResult{}, report: &BatchReport{Failures: []BatchFailure{}}}
	g.Walk(func(n *lang.Node) bool {
		b.o.Durable = b.o.Durable || n.Call != nil && n.Call.Unsafe && o.Journal != ""
		return true
	})
	if cfg.run == "" {
		var id [8]byte
		crand.Read(id[:])
		cfg.run = "batch-" + hex.EncodeToString(id[:])
	}
	if o.Journal != "" {
		if err := b.openJournal(); err != nil {
			return nil, err
		}
		defer b.j.close()
	}
	return b.run(ctx, items)
}

// batch is a Batch that goes on. All but the runs and the reading of items is
// done in the goroutine that called it.
type batch struct {
	be     backend.Backend
	g      *lang.Graph
	funcs  lang.Funcs
	o      BatchOptions
	cfg    *config
	j      *batchJournal // nil without
	window int           // items between the first without a result and the last begun

	queue    []batchItem         // read, waiting to be run
	waiting  map[int]BatchResult // finished, waiting for those before them
	next     int                 // index of the next to hand out
	running  int
	finished int
	used     cost
	passes   int // of restored items
	ran      int // finished and not restored
	began    time.Time
	report   *BatchReport
}

// batchItem is an item as it was read.
type batchItem struct {
	index int
	args  lang.Args
	kept  map[string]any
	key   string // names its content
	err   error
}

// batchDone is the end of a run.
type batchDone struct {
	item batchItem
	res  BatchResult
}

func (b *batch) run(ctx context.Context, items iter.Seq2[lang.Args, error]) (*BatchReport, error) {
	b.began = time.Now()
	runs, cancel := context.WithCancel(ctx)
	defer cancel()
	room := make(chan struct{}, b.window) // a place for each item in hand
	read := make(chan batchItem)
	go b.read(runs, items, room, read)
	done := make(chan batchDone, b.o.Concurrency)

	var stop, source error
	in := read
	for stop == nil && (in != nil || len(b.queue) > 0 || b.running > 0) {
		for len(b.queue) > 0 && b.running < b.o.Concurrency {
			it := b.queue[0]
			b.queue = b.queue[1:]
			b.running++
			go func() { done <- batchDone{it, b.one(runs, it)} }()
		}
		b.progress()
		select {
		case it, ok := <-in:
			switch {
			case !ok:
				in = nil
			case isSourceError(it.err):
				in, source = nil, it.err // what was read before is done
			default:
				stop = b.take(it, room)
			}
		case d := <-done:
			stop = b.end(ctx, []batchDone{d}, done, room)
		case <-ctx.Done():
			stop = fmt.Errorf("runtime: the batch was interrupted: %w", context.Cause(ctx))
		}
	}
	cancel()
	if stop != nil { // what is running ends, and what it finished meanwhile is kept
		for b.running > 0 {
			d := <-done
			b.running--
			if d.res.Err == nil {
				b.keep([]batchDone{d})
				b.waiting[d.res.Index] = d.res
			}
		}
		b.flush()
	}
	if stop == nil {
		stop = source
	}
	b.progress()
	slices.SortFunc(b.report.Failures, func(x, y BatchFailure) int { return cmp.Compare(x.Index, y.Index) })
	b.report.Usage = b.usage()
	b.report.Seconds = time.Since(b.began).Seconds()
	return b.report, stop
}

// read sends the items as there is room for them.
func (b *batch) read(ctx context.Context, items iter.Seq2[lang.Args, error], room chan<- struct{}, out chan<- batchItem) {
	defer close(out)
	send := func(it batchItem) bool {
		select {
		case out <- it:
			return true
		case <-ctx.Done():
			return false
		}
	}
	i := 0
	defer func() {
		if v := recover(); v != nil {
			send(batchItem{index: i, err: &SourceError{fmt.Errorf("reading item %d: %w", i, &PanicError{Value: v, Stack: debug.Stack()})}})
		}
	}()
	for args, err := range items {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		if !send(b.item(i, args, err)) || isSourceError(err) {
			return
		}
		i++
	}
}

// item sets apart what of an item is input.
func (b *batch) item(i int, args lang.Args, err error) batchItem {
	it := batchItem{index: i, err: err, args: make(lang.Args, len(args))}
	for k, v := range args {
		if input := slices.ContainsFunc(b.g.Inputs, func(in lang.Input) bool { return in.Name == k }); !input && (k == "id" || strings.HasPrefix(k, "_")) {
			if it.kept == nil {
				it.kept = map[string]any{}
			}
			n, nerr := lang.Normalize(v)
			if nerr != nil && it.err == nil {
				it.err = fmt.Errorf("field %s: %w", k, nerr)
			}
			it.kept[k] = n
			continue
		}
		it.args[k] = v
	}
	if it.err == nil {
		var vars map[string]any
		if vars, it.err = b.g.Bind(it.args); it.err == nil {
			var inputs json.RawMessage
			if inputs, _, it.err = storable(b.g, vars); it.err == nil {
				it.key = keyOf(inputs)
			}
		}
	}
	return it
}

// take puts an item that was read into the queue, or ends it at once.
func (b *batch) take(it batchItem, room chan struct{}) error {
	if it.err == nil && b.j != nil {
		res, err := b.j.restore(it)
		if err != nil {
			return err
		}
		if res != nil {
			b.settle(*res)
			return b.hand(room)
		}
	}
	if it.err != nil {
		b.settle(BatchResult{Index: it.index, Kept: it.kept, Err: it.err})
		if err := b.hand(room); err != nil {
			return err
		}
		return b.tooMany()
	}
	b.queue = append(b.queue, it)
	return nil
}

// one runs an item.
func (b *batch) one(ctx context.Context, it batchItem) (res BatchResult) {
	res = BatchResult{Index: it.index, Kept: it.kept}
	defer func() {
		if v := recover(); v != nil {
			res.Err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	corrected := ""
	if b.j != nil {
		corrected = b.j.corrected(&it)
	}
	opts := append(slices.Clip(b.o.Options), WithRun(fmt.Sprintf("%s/%d%s", b.cfg.run, it.index, corrected)))
	if b.j != nil && b.o.Durable {
		opts = append(opts, WithJournal(b.j.itemPath(it.index)+corrected), func(c *config) { c.fs = b.cfg.fs })
	}
	opts = append(opts, func(c *config) { c.passes = &res.passes })
	report, err := RunGraph(ctx, b.be, b.g, b.funcs, it.args, opts...)
	if report != nil {
		res.Usage = report.Usage
		res.Value = report.Value
	}
	if err != nil {
		res.Value, res.Err = nil, err
	}
	return res
}

// end takes the results of runs, d and those that are there too: they are kept in
// the journal and handed out in order.
func (b *batch) end(ctx context.Context, d []batchDone, more <-chan batchDone, room chan struct{}) error {
	for {
		select {
		case x := <-more:
			d = append(d, x)
			continue
		default:
		}
		break
	}
	b.running -= len(d)
	if ctx.Err() != nil { // a failure may be that of the end alone
		d = slices.DeleteFunc(d, func(x batchDone) bool { return x.res.Err != nil })
	}
	if err := b.keep(d); err != nil {
		return err
	}
	for _, x := range d {
		b.settle(x.res)
	}
	if err := b.hand(room); err != nil {
		return err
	}
	return b.tooMany()
}

func (b *batch) keep(d []batchDone) error {
	if b.j == nil || len(d) == 0 {
		return nil
	}
	return b.j.keep(d)
}

// usage is what all runs cost so far.
func (b *batch) usage() Usage {
	u := b.used.usage()
	u.ForwardPasses += b.passes
	return u
}

// settle counts a result.
func (b *batch) settle(res BatchResult) {
	b.finished++
	b.report.Items++
	if res.Restored {
		b.report.Restored++
	} else {
		b.ran++
	}
	u := res.Usage
	b.used.sum.PromptTokens += u.PromptTokens
	b.used.sum.CachedTokens += u.CachedTokens
	b.used.sum.ComputedTokens += u.ComputedTokens
	b.used.sum.ForcedTokens += u.ForcedTokens
	b.used.sum.SampledTokens += u.SampledTokens
	b.used.sum.Without.ComputedTokens += u.Without.ComputedTokens
	b.used.sum.Without.ForwardPasses += u.Without.ForwardPasses
	for _, s := range res.passes { // runs share passes
		b.used.spans.add(s)
	}
	if res.Restored {
		b.passes += u.ForwardPasses
	}
	res.passes = nil
	b.waiting[res.Index] = res
	if res.Err != nil {
		b.report.Failed++
		if len(b.report.Failures) < maxFailuresKept {
			b.report.Failures = append(b.report.Failures, BatchFailure{res.Index, res.Err.Error()})
		}
	}
}

// hand hands out what is finished and has nothing unfinished before it.
func (b *batch) hand(room <-chan struct{}) error {
	for {
		res, ok := b.waiting[b.next]
		if !ok {
			return nil
		}
		delete(b.waiting, b.next)
		b.next++
		select {
		case <-room:
		default:
		}
		if b.o.Each != nil {
			if err := b.o.Each(res); err != nil {
				b.o.Each = nil
				return err
			}
		}
	}
}

// flush hands out what is finished though something before it is not, for a
// batch that ends early.
func (b *batch) flush() {
	for _, i := range slices.Sorted(maps.Keys(b.waiting)) {
		res := b.waiting[i]
		delete(b.waiting, i)
		if b.o.Each != nil && b.o.Each(res) != nil {
			return
		}
	}
}

func (b *batch) tooMany() error {
	if m := b.o.MaxFailures; m > 0 && b.report.Failed > m {
		last := b.report.Failures[len(b.report.Failures)-1]
		return fmt.Errorf("runtime: %w: %d of %d; item %d: %s", ErrTooManyFailures, b.report.Failed, b.report.Items, last.Index, last.Error)
	}
	return nil
}

func (b *batch) progress() {
	if b.o.Progress == nil {
		return
	}
	p := BatchProgress{Total: b.o.Total, Finished: b.finished, Failed: b.report.Failed, Restored: b.report.Restored, Running: b.running, Usage: b.usage()}
	if s := time.Since(b.began).Seconds(); b.ran > 0 && s > 0 {
		p.Rate = float64(b.ran) / s
		if left := p.Total - p.Finished; left > 0 {
			p.ETA = time.Duration(float64(left) / p.Rate * float64(time.Second))
		}
	}
	b.o.Progress(p)
}
