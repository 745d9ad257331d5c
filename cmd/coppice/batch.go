package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

func (a *app) batchCmd() *cobra.Command {
	var (
		m         modelFlags
		terms     termsFlags
		in, out   string
		format    string
		journal   string
		noJournal bool
		seed      uint64
		asJSON    bool
		o         runtime.BatchOptions
	)
	c := &cobra.Command{
		Use:   "batch PROGRAM --in FILE",
		Short: "Run a program once for each line of a file",
		Long: `Run a program once for each line of a file of JSON objects, or for each row of a
CSV file whose first row names the inputs. The results are lines of JSON in the
order of the items; the fields id and _… of an item are kept in its result.

An item that fails is one line with an error, and loses no other. With --out
finished items are kept in OUT.journal too: after an interruption the same command
goes on where it stopped, and items that failed are run again.`,
		Example: `  coppice batch review.yaml --in changes.jsonl --out verdicts.jsonl
  coppice batch review.yaml --in changes.csv --out verdicts.jsonl --concurrency 32 --retries 5
  cat changes.jsonl | coppice batch review.yaml --in -`,
		Args: exactly("PROGRAM"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case in == "":
				return usagef("--in is missing: name a file of items, or - for the standard input")
			case asJSON && out == "":
				return usagef("--json prints a report, so the results need a file: --out")
			case o.Concurrency < 0 || o.MaxFailures < 0:
				return usagef("--concurrency and --max-failures take positive numbers")
			}
			g, funcs, err := loadProgram(args[0])
			if err != nil {
				return err
			}
			items, close, total, err := a.items(in, format, g)
			if err != nil {
				return err
			}
			defer close()
			be, err := m.open(cmd.Context())
			if err != nil {
				return err
			}
			defer be.Close()
			opts, done, err := terms.options(cmd.Context(), &m)
			defer done()
			if err != nil {
				return err
			}
			o.Total = total
			o.Options = append(opts, runtime.WithSeed(seed))
			if o.Journal = journal; journal == "" && out != "" && !noJournal {
				o.Journal = out + ".journal"
			}
			report, err := a.batch(cmd.Context(), out, &o, func() (*runtime.BatchReport, error) {
				return runtime.Batch(cmd.Context(), be, g, funcs, items, o)
			})
			if err == nil && asJSON {
				err = a.printJSON(report)
			}
			if report != nil && !asJSON {
				fmt.Fprintf(a.errOut, "%s items, %s failed, %s from the journal, %s tokens computed, %.1f s\n", thousands(report.Items), thousands(report.Failed),
					thousands(report.Restored), thousands(report.Usage.ComputedTokens), report.Seconds)
			}
			switch {
			case err != nil && o.Journal != "" && (errors.Is(err, context.Canceled) || errors.Is(err, runtime.ErrTooManyFailures)):
				return fmt.Errorf("%w; what was finished is kept in %s: the same command goes on", err, o.Journal)
			case err != nil:
				return err
			case report.Failed > 0:
				f := report.Failures[0]
				return fmt.Errorf("%d of %d items failed; item %d: %s", report.Failed, report.Items, f.Index, f.Error)
			}
			return nil
		},
	}
	m.register(c)
	m.registerAhead(c)
	terms.register(c)
	c.Flags().StringVar(&in, "in", "", "file of items: .csv, or lines of JSON; - is the standard input")
	c.Flags().StringVar(&out, "out", "", "file for the results (default: the standard output)")
	c.Flags().StringVar(&format, "format", "", "of the items: jsonl or csv (default: by the file's name)")
	c.Flags().IntVar(&o.Concurrency, "concurrency", 16, "runs at once")
	c.Flags().IntVar(&o.MaxFailures, "max-failures", 0, "stop when more items than that have failed (default: never)")
	c.Flags().StringVar(&journal, "journal", "", "keep finished items in this file (default: OUT.journal)")
	c.Flags().BoolVar(&noJournal, "no-journal", false, "keep no journal")
	c.Flags().BoolVar(&o.Durable, "durable", false, "keep a journal of each run too, so that one that is cut off goes on where it was")
	c.Flags().Uint64Var(&seed, "seed", 0, "seed of the runs, for nodes that sample")
	c.Flags().BoolVar(&asJSON, "json", false, "print a report as JSON")
	c.MarkFlagsMutuallyExclusive("journal", "no-journal")
	return c
}

// items opens a file of items and counts them where that can be done ahead.
func (a *app) items(name, format string, g *lang.Graph) (items iter.Seq2[lang.Args, error], close func() error, total int, err error) {
	if format == "" {
		format = "jsonl"
		if strings.EqualFold(filepath.Ext(name), ".csv") {
			format = "csv"
		}
	}
	read := func(r io.Reader) iter.Seq2[lang.Args, error] { return runtime.ReadJSONL(r) }
	switch format {
	case "jsonl":
	case "csv":
		read = func(r io.Reader) iter.Seq2[lang.Args, error] { return runtime.ReadCSV(r, g.Inputs) }
	default:
		return nil, nil, 0, usagef("--format %q: use jsonl or csv", format)
	}
	if name == "-" {
		return read(a.in), func() error { return nil }, 0, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, 0, usageError{err}
	}
	const most = 256 << 20 // bytes that are worth reading twice
	if st, serr := f.Stat(); serr == nil && st.Mode().IsRegular() && st.Size() <= most {
		for range read(f) {
			total++
		}
		if _, err = f.Seek(0, io.SeekStart); err != nil {
			f.Close()
			return nil, nil, 0, err
		}
	}
	return read(f), f.Close, total, nil
}

// batch carries out a batch, writes its results and shows its progress.
func (a *app) batch(ctx context.Context, out string, o *runtime.BatchOptions, do func() (*runtime.BatchReport, error)) (*runtime.BatchReport, error) {
	var f *os.File
	buf := bufio.NewWriter(a.out)
	// A file is written over when there is something to write: not if the batch
	// turns out to be another than the one whose results are there.
	create := func() (err error) {
		if out == "" || f != nil {
			return nil
		}
		if f, err = os.Create(out); err == nil {
			buf = bufio.NewWriter(f)
		}
		return err
	}
	o.Each = func(r runtime.BatchResult) error {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if err := create(); err != nil {
			return err
		}
		if _, err := buf.Write(append(line, '\n')); err != nil {
			return fmt.Errorf("writing the results: %w", err)
		}
		return nil
	}
	bar := newBar(a.errOut)
	o.Progress = bar.show
	report, err := do()
	bar.end()
	var ferr error
	if err == nil { // of no items the results are an empty file
		ferr = create()
	}
	if werr := buf.Flush(); ferr == nil {
		ferr = werr
	}
	if f != nil {
		if cerr := f.Close(); ferr == nil {
			ferr = cerr
		}
	}
	if err == nil && ferr != nil {
		err = fmt.Errorf("writing the results: %w", ferr)
	}
	return report, err
}

// bar is a progress bar: one line that is written over on a terminal, a line now
// and then elsewhere.
type bar struct {
	w    io.Writer
	live bool
	last time.Time
	any  bool
}

func newBar(w io.Writer) *bar {
	f, ok := w.(*os.File)
	return &bar{w: w, live: ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb", last: time.Now()}
}

func (b *bar) show(p runtime.BatchProgress) {
	every := 10 * time.Second
	if b.live {
		every = 100 * time.Millisecond
	}
	if now := time.Now(); now.Sub(b.last) < every {
		return
	} else {
		b.last = now
	}
	b.any = true
	if b.live {
		fmt.Fprintf(b.w, "\r\x1b[K%s", progressLine(p))
		return
	}
	fmt.Fprintln(b.w, progressLine(p))
}

func (b *bar) end() {
	if b.live && b.any {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}

// progressLine is how far a batch is, for people.
func progressLine(p runtime.BatchProgress) string {
	var s strings.Builder
	if p.Total > 0 {
		const width = 24
		full := min(width, width*p.Finished/p.Total)
		fmt.Fprintf(&s, "[%s%s] %s of %s", strings.Repeat("#", full), strings.Repeat("-", width-full), thousands(p.Finished), thousands(p.Total))
	} else {
		fmt.Fprintf(&s, "%s done", thousands(p.Finished))
	}
	fmt.Fprintf(&s, ", %d running", p.Running)
	if p.Failed > 0 {
		fmt.Fprintf(&s, ", %s failed", thousands(p.Failed))
	}
	if p.Rate > 0 {
		fmt.Fprintf(&s, ", %.3g a second", p.Rate)
	}
	if p.ETA > 0 {
		fmt.Fprintf(&s, ", %v left", p.ETA.Round(time.Second))
	}
	return s.String()
}
