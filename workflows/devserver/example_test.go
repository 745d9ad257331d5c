package devserver_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/coppice-run/coppice/workflows"
	"github.com/coppice-run/coppice/workflows/devserver"
)

// A server for this machine, started if no other process has started it.
func Example() {
	s, err := devserver.Use(context.Background(), "/var/lib/coppice/temporal", devserver.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	fmt.Println("Temporal is at", s.Address)
}

// Without the program there is an error that says how to get it.
func ExampleFind() {
	defer os.Setenv("COPPICE_TEMPORAL", os.Getenv("COPPICE_TEMPORAL"))
	os.Setenv("COPPICE_TEMPORAL", "/nowhere/coppice-temporal")
	_, err := devserver.Find()
	fmt.Println(errors.Is(err, workflows.ErrNoServer))
	// Output: true
}
