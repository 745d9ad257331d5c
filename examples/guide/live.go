package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/runtime/serve"
)

var errNetwork = errors.New("the network is down")

// ticketProgram files a ticket; file may fail.
func ticketProgram(file func(ctx context.Context, text string) (int, error)) *lang.Def[int] {
	return lang.Define("ticket", func(p *lang.Program) lang.Var[int] {
		p.System(runbook)
		p.User("Alert: ", lang.In[string](p, "alert"))
		p.User("Look only at memory.")
		finding := p.Gen("finding", lang.MaxTokens(40), lang.Stop("\n"))
		return lang.Call1(p, "ticket", file, finding)
	})
}

func durable(ctx context.Context, be backend.Backend, w io.Writer) error {
	dir, err := os.MkdirTemp("", "guide")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	journal := filepath.Join(dir, "run.journal")

	down := func(context.Context, string) (int, error) { return 0, errNetwork }
	_, err = runtime.Run(ctx, be, ticketProgram(down), lang.Args{"alert": alert}, runtime.WithJournal(journal))
	fmt.Fprintln(w, "first:", errors.Is(err, errNetwork))

	up := func(ctx context.Context, text string) (int, error) { return len(text), nil }
	out, err := runtime.Run(ctx, be, ticketProgram(up), lang.Args{"alert": alert}, runtime.WithJournal(journal))
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "second: ticket %d, %d of %d tasks from the journal\n", out.Value, out.Restored, out.Tasks)
	return nil
}

var personProgram = lang.Define("person", func(p *lang.Program) lang.Var[bool] {
	p.System(runbook)
	p.User("Alert: ", lang.In[string](p, "alert"))
	p.User("Look only at memory.")
	finding := p.Gen("finding", lang.MaxTokens(40), lang.Stop("\n"))
	return lang.WaitFor[bool](p, "page", "Page somebody for \"", finding, "\"?")
})

func person(ctx context.Context, be backend.Backend, w io.Writer) error {
	dir, err := os.MkdirTemp("", "guide")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	journal := filepath.Join(dir, "run.journal")

	// The process ends while it waits.
	first, end := context.WithCancel(ctx)
	defer end()
	_, err = runtime.Run(first, be, personProgram, lang.Args{"alert": alert}, runtime.WithJournal(journal),
		runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
			if e.Kind == runtime.NodeStarted && e.Does == string(lang.KindWait) {
				fmt.Fprintln(w, e.Text)
				end()
			}
		})))
	if !errors.Is(err, context.Canceled) {
		return err
	}
	if err := runtime.LeaveAnswer(journal, "page", json.RawMessage("true"), "ada"); err != nil {
		return err
	}
	out, err := runtime.Run(ctx, be, personProgram, lang.Args{"alert": alert}, runtime.WithJournal(journal))
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "answer:", out.Value)
	return nil
}

func remote(ctx context.Context, be backend.Backend, w io.Writer) error {
	// What 'coppice serve' starts; any other server's URL does as well.
	srv, err := serve.New(serve.Config{Backend: be})
	if err != nil {
		return err
	}
	defer srv.Close()
	web := httptest.NewServer(srv)
	defer web.Close()

	url := "openai+http" + strings.TrimPrefix(web.URL, "http") + "/v1"
	far, err := open.Backend(ctx, url, open.Options{Embedded: embedded})
	if err != nil {
		return err
	}
	defer far.Close()
	out, err := runtime.Run(ctx, far, helloProgram, lang.Args{"alert": alert})
	if err != nil {
		return err
	}
	fmt.Fprintln(w, out.Value)
	return nil
}

var reliableProgram = lang.Define("reliable", func(p *lang.Program) lang.Var[string] {
	p.Budget(lang.Budget{Tokens: 20_000})
	p.System(runbook)
	p.User("Alert: ", lang.In[string](p, "alert"))
	p.User("Look only at memory.")
	return p.Gen("finding", lang.MaxTokens(40), lang.Stop("\n"),
		lang.Retries(3), lang.RetryWait(1, 1), // of a remote server more: 0.5s, 30s
		lang.Fallback("local"),
		lang.Check("len(finding) < 80", "write fewer than 80 letters"))
})

func reliable(ctx context.Context, be backend.Backend, w io.Writer) error {
	busy := puppet.New() // a server that has too much to do
	busy.OnAny().Fail(backend.ErrOverloaded)
	out, err := runtime.Run(ctx, busy, reliableProgram, lang.Args{"alert": alert}, runtime.WithFallback("local", be))
	if err != nil {
		return err
	}
	fmt.Fprintln(w, out.Value)
	fmt.Fprintf(w, "asked %d times in vain, answered by %v\n", busy.Calls("finding"), out.Fallbacks)
	return nil
}

func batch(ctx context.Context, be backend.Backend, w io.Writer) error {
	items := strings.NewReader(`{"id": "a", "alert": "Pod cart-5d7f9c-x2x4k was OOMKilled, exit code 137"}
{"id": "b", "alrt": "a typo"}
{"id": "c", "alert": "Failed to pull image shop/search:v9, ImagePullBackOff"}
`)
	g, err := chooseProgram.Compile()
	if err != nil {
		return err
	}
	report, err := runtime.Batch(ctx, be, g, nil, runtime.ReadJSONL(items), runtime.BatchOptions{
		Each: func(r runtime.BatchResult) error {
			fmt.Fprintln(w, r.Kept["id"], string(r.Value), r.Err)
			return nil
		},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d items, %d failed\n", report.Items, report.Failed)
	return nil
}
