// Command workloads has ten common shapes of programs, each in a file of its own:
//
//	go run ./examples/workloads                  what there is
//	go run ./examples/workloads judge            run one
//	go run ./examples/workloads -bench judge     and the same calls without sharing
//
// -model takes a .gguf file or any backend URL. The model that is part of the binary
// runs all of them and understands few: it shows what is shared, not what is said.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/backend/sapling"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// workload is a program with its inputs.
type workload struct {
	name, about string
	run         func(ctx context.Context, be backend.Backend, opts ...runtime.Option) (*runtime.Report, error)
}

var workloads = []workload{
	{"fewshot", "questions with four answers each, all behind the same solved examples", of(fewshot, nil)},
	{"endings", "which of some endings fits a text best, many texts behind one prompt", of(endings, nil)},
	{"react", "a model that thinks, looks things up and thinks on, in raw text", scriptOf(react, "Who is on call for the service that runs on db-3?")},
	{"tree", "plans, solutions for each plan, marks for each solution: the best wins", of(tree, nil)},
	{"skeleton", "the points of an answer first, then all points at the same time", scriptOf(skeleton, "How is a full disk cleaned up?")},
	{"judge", "one text judged from six sides at once, then a mark", of(judge, nil)},
	{"vote", "five ways of thinking about one question, and a vote", of(vote, nil)},
	{"extract", "a typed record out of a report", of(extract, nil)},
	{"chat", "a conversation of several turns", of(chat, nil)},
	{"rag", "passages that a Go function finds, and an answer that quotes one", of(rag, lang.Args{"question": "What is done when a certificate expired?"})},
}

func of[T any](d *lang.Def[T], args lang.Args) func(context.Context, backend.Backend, ...runtime.Option) (*runtime.Report, error) {
	return func(ctx context.Context, be backend.Backend, opts ...runtime.Option) (*runtime.Report, error) {
		out, err := runtime.Run(ctx, be, d, args, opts...)
		if err != nil {
			return nil, err
		}
		return out.Report, nil
	}
}

func scriptOf[In, Out any](s *lang.ScriptDef[In, Out], in In) func(context.Context, backend.Backend, ...runtime.Option) (*runtime.Report, error) {
	return func(ctx context.Context, be backend.Backend, opts ...runtime.Option) (*runtime.Report, error) {
		out, err := runtime.RunScript(ctx, be, s, in, opts...)
		if err != nil {
			return nil, err
		}
		return out.Report, nil
	}
}

func main() {
	model := flag.String("model", "engine://sapling", "a .gguf file, or the URL of a backend")
	bench := flag.Bool("bench", false, "make the same calls without sharing too, and compare")
	flag.Parse()
	ctx := context.Background()
	connect := func() (backend.Backend, error) {
		return open.Backend(ctx, *model, open.Options{Embedded: map[string]func() []byte{"sapling": sapling.GGUF}})
	}
	if flag.NArg() == 0 {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		for _, l := range workloads {
			fmt.Fprintf(w, "%s\t%s\n", l.name, l.about)
		}
		w.Flush()
		return
	}
	for _, name := range flag.Args() {
		i := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
		if i < 0 {
			log.Fatalf("no workload %q", name)
		}
		if err := show(ctx, workloads[i], connect, *bench, os.Stdout); err != nil {
			log.Fatalf("%s: %v", name, err)
		}
	}
}
