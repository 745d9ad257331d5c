package cache

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the outputs of testdata/*.txt anew")

// TestScripts runs the files under testdata. A paragraph is a command, a line
// "----" and its output:
//
//	new N                 a cache of N pages
//	put TOKENS            compute and insert, pin nothing
//	pin NAME TOKENS       match and keep the handle
//	extend NAME TOKENS    insert after the handle's prefix
//	unpin NAME
//	claim NAME RUN[/BRANCH] NEXT, expect RUN[/BRANCH] NEXT, unclaim RUN[/BRANCH]
//	tail NAME, dead NAME FROM, forget RUN, flush
//	alloc N               pages that a sequence keeps
//
// TOKENS are numbers and ranges "0..19".
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("scripts: %v %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c *Cache
	pins := map[string]*Handle{}
	var out []string
	for _, par := range strings.Split(strings.TrimSpace(string(src)), "\n\n") {
		if strings.HasPrefix(par, "#") {
			out = append(out, par)
			continue
		}
		cmd, _, _ := strings.Cut(par, "\n----")
		var got string
		for _, line := range strings.Split(cmd, "\n") {
			got += scriptCommand(t, &c, pins, strings.Fields(line))
		}
		check(t, c, scriptHandles(pins)...)
		out = append(out, cmd+"\n----\n"+strings.TrimRight(got+c.String(), "\n"))
	}
	res := strings.Join(out, "\n\n") + "\n"
	if *update {
		if err := os.WriteFile(file, []byte(res), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if res != string(src) {
		t.Errorf("output differs; -update writes it. Got:\n%s", res)
	}
}

func scriptHandles(pins map[string]*Handle) (hs []*Handle) {
	for _, h := range pins {
		hs = append(hs, h)
	}
	return hs
}

func scriptCommand(t *testing.T, c **Cache, pins map[string]*Handle, args []string) string {
	num := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return n
	}
	var ns Namespace
	switch args[0] {
	case "new":
		*c = New(num(1))
	case "put":
		put(t, *c, ns, scriptTokens(t, args[1:]))
	case "pin":
		h := (*c).Match(ns, scriptTokens(t, args[2:]))
		pins[args[1]] = h
		return fmt.Sprintf("%s: %d tokens, pages %v\n", args[1], h.Len(), h.Pages(nil, 0))
	case "extend":
		h := pins[args[1]]
		tokens := scriptTokens(t, args[2:])
		own := h.Len() / PageTokens
		pages, ok := (*c).Alloc(h.Pages(nil, 0)[:own], pagesFor(h.Len()+len(tokens))-own)
		if !ok {
			return "no pages\n"
		}
		(*c).Extend(h, tokens, pages)
		(*c).Release(pages[own:])
		return fmt.Sprintf("%s: %d tokens, pages %v\n", args[1], h.Len(), h.Pages(nil, 0))
	case "unpin":
		(*c).Unpin(pins[args[1]])
		delete(pins, args[1])
	case "claim":
		run, branch, _ := strings.Cut(args[2], "/")
		(*c).Claim(pins[args[1]], Owner{run, branch}, int64(num(3)))
	case "expect":
		run, branch, _ := strings.Cut(args[1], "/")
		return fmt.Sprintln((*c).Expect(Owner{run, branch}, int64(num(2))))
	case "unclaim":
		run, branch, _ := strings.Cut(args[1], "/")
		(*c).Unclaim(Owner{run, branch})
	case "tail":
		return fmt.Sprintln((*c).TakeTail(pins[args[1]]))
	case "dead":
		(*c).Dead(pins[args[1]], num(2))
	case "forget":
		(*c).Forget(args[1])
	case "flush":
		(*c).Flush()
	case "alloc":
		pages, ok := (*c).Alloc(nil, num(1))
		return fmt.Sprintf("%v %v\n", pages, ok)
	default:
		t.Fatalf("unknown command %q", args[0])
	}
	return ""
}

func scriptTokens(t *testing.T, args []string) (tokens []Token) {
	for _, a := range args {
		from, to, isRange := strings.Cut(a, "..")
		lo, err := strconv.Atoi(from)
		if err != nil {
			t.Fatal(err)
		}
		hi := lo
		if isRange {
			if hi, err = strconv.Atoi(to); err != nil {
				t.Fatal(err)
			}
		}
		for i := lo; i <= hi; i++ {
			tokens = append(tokens, Token(i))
		}
	}
	return tokens
}
