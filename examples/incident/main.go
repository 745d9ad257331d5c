// Command incident looks at an alert, asks a person whether to page somebody, and
// pages. It may be killed at any moment: the same command goes on, asks nothing
// twice and pages once.
//
//	go run ./examples/incident -journal incident.journal "search-api does not start"
//
// and in another terminal, now or tomorrow:
//
//	coppice approve incident.journal                      what it asks, and by which name
//	coppice approve incident.journal when/then/approved   yes
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/backend/sapling"
	"github.com/coppice-run/coppice/examples/triage"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// pager stands for a paging service: a file with a line for each page.
type pager struct{ file string }

// page pages once for each key, however often it is called: a run that died
// behind the effect and before its record calls again with the same key.
func (p pager) page(ctx context.Context, what string) (string, error) {
	key := runtime.IdempotencyKey(ctx)
	sent, err := os.ReadFile(p.file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	for line := range strings.Lines(string(sent)) {
		if strings.HasPrefix(line, key+"\t") {
			return "paged before", nil
		}
	}
	f, err := os.OpenFile(p.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintf(f, "%s\t%s\n", key, strings.Join(strings.Fields(what), " "))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return "paged", err
}

// program makes the program for a pager. Who does not answer within an hour is
// taken to agree.
func program(p pager) *lang.Def[string] {
	return lang.Define("incident", func(b *lang.Program) lang.Var[string] {
		alert := lang.In[string](b, "alert")
		b.System(triage.Runbook())
		b.User("Alert: ", alert, "\nHow severe is this: low, high or critical?")
		severity := lang.Select(b, "severity", "low", "high", "critical")
		b.When(severity.IsNot("low"), func(b *lang.Program) {
			ok := lang.WaitFor[bool](b, "approved", "Severity ", severity, ". Page somebody for: ", alert, "?",
				lang.AnswerWithin(time.Hour), lang.AnswerDefault(true))
			b.When(ok, func(b *lang.Program) {
				lang.Call1(b, "paged", p.page, alert, lang.FuncName("page"))
			})
		})
		return severity
	})
}

func main() {
	journal := flag.String("journal", "incident.journal", "file that keeps the run")
	pages := flag.String("pages", "pages.log", "file that stands for the paging service")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	be, err := open.Backend(ctx, "engine://sapling", open.Options{Embedded: map[string]func() []byte{"sapling": sapling.GGUF}})
	if err != nil {
		log.Fatal(err)
	}
	defer be.Close()
	alert := strings.Join(flag.Args(), " ")
	if alert == "" {
		alert = "Pod payment-worker-7d9f8b-x2k9p is in CrashLoopBackOff with exit code 137 (OOMKilled)"
	}
	asks := runtime.SinkFunc(func(e runtime.Event) {
		if e.Kind == runtime.NodeStarted && e.Does == string(lang.KindWait) {
			fmt.Printf("%s\nanswer with: coppice approve %s %s, or with --no\n", e.Text, *journal, e.Task)
		}
	})
	out, err := runtime.Run(ctx, be, program(pager{*pages}), lang.Args{"alert": alert}, runtime.WithJournal(*journal), runtime.WithSink(asks))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("severity %s; variables %s\n", out.Value, out.Variables)
}
