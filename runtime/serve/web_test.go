//go:build web

package serve

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// The tests of this file need node, the packages of web/package-lock.json and,
// for the browser, Chromium; .ci/web fetches them and sets the tag.

// node runs a script of web/test against servers.
func node(t *testing.T, script string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "node", "test/"+script)
	cmd.Dir = "web"
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

// many is a program of 200 branches, whose model writes 52 tokens in each.
func many() string {
	var b strings.Builder
	b.WriteString("coppice: 1\nname: many\ndoc: 200 branches.\nsteps:\n  - user: Look.\n  - fork:\n      name: looks\n      each: [")
	for i := range 200 {
		fmt.Fprintf(&b, "item%d, ", i)
	}
	b.WriteString("]\n      as: it\n      steps:\n        - user: At ${it}.\n        - gen: {name: x, max_tokens: 100}\n      yield: x\n  - return: len(looks)\n")
	return b.String()
}

// people asks for answers of all types.
const people = `
coppice: 1
name: people
steps:
  - wait: {name: ok, ask: "Page ops?", type: bool}
  - wait: {name: n, ask: "How many?", type: int, timeout: 1h, default: 0}
  - wait: {name: why, ask: "Why?", type: string}
  - wait: {name: list, ask: "Which?", type: "[]string"}
  - return: '{ok: ok, n: n, why: why, list: list}'
`

func webModel() *puppet.Model {
	m := looksModel()
	m.OnRegexp(`At item\d+\.`).Reply(strings.Repeat("seen and written ", 3) + "!")
	m.OnAny().Reply("I am a puppet, and this is all I say.")
	return m
}

// The page does what it promises in a real browser, with a mouse, with a
// keyboard, and for those who do not see it.
func TestWebPage(t *testing.T) {
	c := serveFor(t, webModel(), func(c *Config) { c.Limits.Deltas = 100_000 })
	c.ok("/v1/programs", looks)
	c.ok("/v1/programs", many())
	c.ok("/v1/programs", people)
	locked := serveFor(t, webModel(), func(c *Config) { c.Keys = []Key{{Secret: "secret-key"}} })
	work := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)

	g, err := lang.Decode([]byte(looks), "looks")
	if err != nil {
		t.Fatal(err)
	}
	journal := filepath.Join(t.TempDir(), "looks.journal")
	if _, err := runtime.RunGraph(t.Context(), looksModel(), g, nil, lang.Args{"topic": "rain"}, runtime.WithJournal(journal)); err != nil {
		t.Fatal(err)
	}
	node(t, "browser.mjs", "URL="+c.url, "LOCKED="+locked.url, "WORK="+work.url, "JOURNAL="+journal)
}

// AG-UI's client and the AI SDK's read runs as their own.
func TestWebClients(t *testing.T) {
	c := serveFor(t, looksModel(), nil)
	c.ok("/v1/programs", looks)
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	held := serveFor(t, m, nil)
	held.ok("/v1/programs", looks)
	opener := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { gate.Open() }))
	defer opener.Close()
	people := serveFor(t, asksModel(), nil)
	people.ok("/v1/programs", asks)
	node(t, "clients.mjs", "URL="+c.url, "HELD="+held.url, "GATE="+opener.URL, "ASKS="+people.url)
}
