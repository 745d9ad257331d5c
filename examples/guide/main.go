// Command guide has the programs of docs/guide.md:
//
//	go run ./examples/guide          all steps, on the embedded model
//	go run ./examples/guide branch   one of them
//
// -model takes a .gguf file or any backend URL instead.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/backend/sapling"
)

// step is one program of the guide. It prints what the guide shows.
type step struct {
	name string
	run  func(ctx context.Context, be backend.Backend, w io.Writer) error
}

var steps = []step{
	{"hello", hello}, {"stream", stream}, {"choose", choose}, {"answer", answer}, {"branch", branch}, {"typed", typed},
	{"flow", flow}, {"call", call}, {"tools", tools}, {"script", scripted}, {"layout", layout},
	{"durable", durable}, {"person", person}, {"remote", remote}, {"reliable", reliable}, {"batch", batch},
}

// embedded are the models that are part of this binary.
var embedded = map[string]func() []byte{"sapling": sapling.GGUF}

func main() {
	model := flag.String("model", "engine://sapling", "a .gguf file, or the URL of a backend")
	flag.Parse()
	ctx := context.Background()
	be, err := open.Backend(ctx, *model, open.Options{Embedded: embedded})
	if err != nil {
		log.Fatal(err)
	}
	defer be.Close()
	for _, s := range steps {
		if flag.NArg() > 0 && !slices.Contains(flag.Args(), s.name) {
			continue
		}
		fmt.Printf("== %s\n", s.name)
		if err := s.run(ctx, be, os.Stdout); err != nil {
			log.Fatalf("%s: %v", s.name, err)
		}
	}
}
