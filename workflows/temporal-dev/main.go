// Command coppice-temporal is a Temporal server for one machine: all services in
// one process over an SQLite file, or over memory where no file is named.
//
//	coppice-temporal server start-dev --port 7233 --db-filename runs.db
//
// It takes the flags that the Go SDK's testsuite.StartDevServer passes. It has no
// web page, no authentication and no replication, and listens on the loopback
// address unless told otherwise: it is for development, tests and single
// machines.
//
// It is a module of its own, since the server and the newest SDK need different
// versions of Temporal's API.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"go.temporal.io/server/common/log"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "coppice-temporal:", err)
		os.Exit(1)
	}
}

// run reads the command line and serves until ctx ends.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) < 2 || args[0] != "server" || args[1] != "start-dev" {
		return errors.New("usage: coppice-temporal server start-dev [flags]; see coppice-temporal server start-dev --help")
	}
	c, err := parse(args[2:])
	if err != nil {
		return err
	}
	s, err := newServer(c)
	if err != nil {
		return err
	}
	if err := s.Start(); err != nil {
		return fmt.Errorf("the server does not start: %w", err)
	}
	fmt.Fprintf(out, "temporal serves at %s, namespaces %v\n", net.JoinHostPort(c.ip, strconv.Itoa(c.port)), c.namespaces)
	<-ctx.Done()
	return s.Stop()
}

// settings are what the command line says.
type settings struct {
	ip         string
	port       int
	namespaces []string
	file       string
	dynamic    map[string]any
	attributes map[string]string
	logLevel   string
	logFormat  string
}

func (c *settings) logger() log.Logger {
	if c.logLevel == "never" {
		return log.NewNoopLogger()
	}
	return log.NewZapLogger(log.BuildZapLogger(log.Config{Level: c.logLevel, Format: c.logFormat}))
}
