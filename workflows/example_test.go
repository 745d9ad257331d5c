package workflows_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/workflows"
)

// A worker and a run on a Temporal server. They may be in one process, as here,
// or on different machines.
func Example() {
	ctx := context.Background()
	store, err := workflows.OpenDir("/var/lib/coppice/store")
	if err != nil {
		log.Fatal(err)
	}
	c, err := workflows.Dial(ctx, workflows.DialOptions{Address: "127.0.0.1:7233", Store: store})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	be := puppet.New()
	be.OnAny().Reply("all is well")
	w, err := workflows.NewWorker(c, workflows.Config{Backend: be, Store: store})
	if err != nil {
		log.Fatal(err)
	}
	if err := w.Start(); err != nil {
		log.Fatal(err)
	}
	defer w.Stop()

	def := lang.Define("look", func(p *lang.Program) lang.Var[string] {
		p.User("How is it?")
		return p.Gen("says")
	})
	g, err := def.Compile()
	if err != nil {
		log.Fatal(err)
	}
	run, err := workflows.Start(ctx, c, g, nil, workflows.StartOptions{Name: "look-1"})
	if err != nil {
		log.Fatal(err)
	}
	report, err := run.Report(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", report.Value)
}

// What is large goes to the store, and its hash into the history.
func ExampleConverter() {
	dir, err := os.MkdirTemp("", "store")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := workflows.OpenDir(dir)
	if err != nil {
		log.Fatal(err)
	}
	conv := workflows.Converter(store, nil)
	p, err := conv.ToPayload(strings.Repeat("a transcript ", 100_000))
	if err != nil {
		log.Fatal(err)
	}
	var back string
	if err := conv.FromPayload(p, &back); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(p.Data), "bytes for", len(back))
	// Output: 64 bytes for 1300000
}
