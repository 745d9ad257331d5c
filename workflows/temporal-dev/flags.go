package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// levels are the values of --log-level; "never" writes no log.
var levels = []string{"debug", "info", "warn", "error", "never"}

// parse reads the flags behind "server start-dev".
func parse(args []string) (*settings, error) {
	c := &settings{dynamic: defaults(), attributes: map[string]string{}}
	fs := flag.NewFlagSet("coppice-temporal server start-dev", flag.ContinueOnError)
	fs.SetOutput(os.Stderr)
	fs.StringVar(&c.ip, "ip", "127.0.0.1", "address to listen on")
	fs.IntVar(&c.port, "port", 7233, "port to listen on")
	fs.StringVar(&c.file, "db-filename", "", "SQLite file that keeps everything; made if it is not there (default: memory)")
	fs.StringVar(&c.logLevel, "log-level", "error", "one of "+strings.Join(levels, ", "))
	fs.StringVar(&c.logFormat, "log-format", "json", "json, text or pretty")
	fs.Func("namespace", "namespace to make; repeatable (default: default)", func(s string) error {
		if s == "" {
			return fmt.Errorf("the name is empty")
		}
		c.namespaces = append(c.namespaces, s)
		return nil
	})
	fs.Func("dynamic-config-value", "KEY=JSON, a setting of the server; repeatable", func(s string) error {
		k, text, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return fmt.Errorf("write it as KEY=JSON")
		}
		v, err := value(text)
		if err != nil {
			return fmt.Errorf("%s: %q is not JSON: %w", k, text, err)
		}
		c.dynamic[strings.ToLower(k)] = v
		return nil
	})
	fs.Func("search-attribute", "NAME=TYPE, e.g. program=Keyword; repeatable", func(s string) error {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" || v == "" {
			return fmt.Errorf("write it as NAME=TYPE")
		}
		c.attributes[k] = v
		return nil
	})
	// Of no effect here; others pass them.
	fs.Bool("headless", true, "there is no web page in any case")
	fs.Int("ui-port", 0, "of no effect: there is no web page")
	fs.String("ui-ip", "", "of no effect: there is no web page")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case fs.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.port < 1 || c.port > 65535:
		return nil, fmt.Errorf("--port %d: use a number from 1 to 65535", c.port)
	case !slices.Contains(levels, c.logLevel):
		return nil, fmt.Errorf("--log-level %q: use one of %s", c.logLevel, strings.Join(levels, ", "))
	}
	switch c.logFormat {
	case "json":
	case "text", "pretty", "console":
		c.logFormat = "console"
	default:
		return nil, fmt.Errorf("--log-format %q: use json, text or pretty", c.logFormat)
	}
	if len(c.namespaces) == 0 {
		c.namespaces = []string{"default"}
	}
	return c, nil
}

// value reads the value of a setting. Whole numbers become ints: the server
// ignores a float where it wants an int, and says nothing.
func value(text string) (any, error) {
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("more after the value")
	}
	return plain(v), nil
}

func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return int(n)
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	}
	return v
}

// defaults are the settings of a server with one history shard and one user.
func defaults() map[string]any {
	return map[string]any{
		// Each shard asks its queues at most so many times a second; at the
		// server's own 20, every step of a workflow waits 50 to 100 ms.
		"history.transferprocessormaxpollrps":   1000,
		"history.timerprocessormaxpollrps":      1000,
		"history.visibilityprocessormaxpollrps": 1000,
		// A run with many programs is what all of them write to at once. In turn, not
		// each again after a while, the longer the more often it was in vain.
		"history.taskschedulerenableexecutionqueuescheduler": true,
		"history.cachenonusercontextlocktimeout":             3 * time.Second,
		// What asked for a program is read when it begins and when it ends: from memory,
		// not from the file together with all that was asked for at the same time.
		"history.eventscachemaxsizebytes": 64 << 20,
		// One partition: no task waits in a partition that nobody polls.
		"matching.numtaskqueuereadpartitions":  1,
		"matching.numtaskqueuewritepartitions": 1,
		// New search attributes can be used at once.
		"system.forcesearchattributescacherefreshonread": true,
		// No question to the outside about newer versions.
		"frontend.enableserverversioncheck": false,
		// One user may use all of the machine.
		"frontend.namespacerps":   100_000,
		"frontend.rps":            100_000,
		"history.rps":             100_000,
		"matching.rps":            100_000,
		"frontend.namespacecount": 100_000,
	}
}
