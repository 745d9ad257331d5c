package serve

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// looks is a program with two branches.
const looks = `
coppice: 1
name: looks
doc: Two looks at a topic.
inputs: {topic: string}
steps:
  - user: "About ${topic}."
  - fork:
      name: sides
      each: [good, bad]
      as: side
      steps:
        - user: The ${side} side?
        - gen: {name: view, max_tokens: 60}
      yield: view
  - user: "${join(sides, \"; \")}. So?"
  - gen: {name: verdict, max_tokens: 60}
  - return: verdict
`

// looksModel answers the questions of looks.
func looksModel() *puppet.Model {
	m := puppet.New()
	m.OnRegexp(`So\?`).Reply("take it")
	m.OnRegexp(`The (\w+) side\?`).Reply("$1 enough")
	return m
}

func TestProgram(t *testing.T) {
	c := serveFor(t, looksModel(), nil)
	if status, info := c.post("/v1/programs", looks); status != http.StatusCreated || info["name"] != "looks" || info["output"] != "string" || at(info, "inputs", 0, "name") != "topic" {
		t.Fatal(status, info)
	}
	if status, _ := c.post("/v1/programs", looks); status != http.StatusOK {
		t.Error("a second time:", status)
	}
	_, shown := c.call("GET", "/v1/programs/looks", nil)
	if status, _ := c.post("/v1/programs", shown["graph"]); status != http.StatusOK {
		t.Error("the graph that is shown is not one that is taken:", status)
	}
	_, list := c.call("GET", "/v1/programs", nil)
	if len(list["data"].([]any)) != 1 {
		t.Error(list)
	}

	done := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "rain"}, "seed": 5, "wait": true})
	if done["status"] != "finished" || at(done, "report", "value") != "take it" || len(at(done, "report", "branches").([]any)) != 2 {
		t.Error(done)
	}
	status, begun := c.post("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "rain"}})
	if status != http.StatusAccepted || begun["status"] == "failed" {
		t.Error(status, begun)
	}
	resp := c.do("GET", "/v1/runs/"+begun["id"].(string)+"/events", nil)
	events, _ := readSSE(t, resp.Body)
	resp.Body.Close()
	if last := events[len(events)-1]; last["kind"] != "run_finished" || last["value"] != "take it" {
		t.Error(last)
	}
	_, runs := c.call("GET", "/v1/runs", nil)
	if at(runs, "data", 0, "id") != begun["id"] || at(runs, "data", 1, "id") != done["id"] {
		t.Error(runs)
	}
	if status, _ := c.call("DELETE", "/v1/programs/looks", nil); status != http.StatusNoContent {
		t.Error(status)
	}
	if status, _ := c.call("GET", "/v1/programs/looks", nil); status != http.StatusNotFound {
		t.Error(status)
	}
}

func TestBadPrograms(t *testing.T) {
	c := serveFor(t, looksModel(), nil)
	for _, body := range []string{
		"", "{}", "name: x\nsteps: [{gen: {}}]", "steps: [", strings.Repeat("[", 50000),
		strings.Replace(looks, "- return: verdict", "- return: nothing", 1),
		strings.Replace(looks, "name: looks", `name: "a/b"`, 1),
		"coppice: 1\nname: calls\nsteps:\n  - call: {name: x, func: missing}\n",
		"coppice: 1\nname: files\nsteps:\n  - user: {file: /etc/hostname}\n",
	} {
		if status, out := c.post("/v1/programs", body); status != 400 {
			t.Errorf("%.40q: %d %v", body, status, out)
		}
	}
	c.ok("/v1/programs", looks)
	c.refused("/v1/programs/none/runs", tree{}, 404, "")
	c.refused("/v1/programs/looks/runs", tree{}, 400, "inputs")
	c.refused("/v1/programs/looks/runs", tree{"inputs": tree{"topic": 1, "more": 2}}, 400, "inputs")
	c.refused("/v1/programs/looks/runs", tree{"inputs": []any{}}, 400, "inputs")
	c.refused("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "seed": "x"}, 400, "seed")
	c.refused("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true, "stream": true}, 400, "wait")
	if status, _ := c.call("GET", "/v1/runs/none", nil); status != 404 {
		t.Error(status)
	}
}

// Events have dense numbers; whoever comes with a number gets those after it,
// each once.
func TestEventsResume(t *testing.T) {
	c := serveFor(t, looksModel(), nil)
	c.ok("/v1/programs", looks)
	resp := c.do("POST", "/v1/programs/looks/runs", tree{"inputs": tree{"topic": "snow"}, "stream": true})
	all, _ := readSSE(t, resp.Body)
	resp.Body.Close()
	for i, e := range all {
		if e["seq"] != float64(i+1) {
			t.Fatalf("event %d has number %v", i, e["seq"])
		}
	}
	events := resp.Header.Get("Location") + "/events"
	for after := range all {
		resp := c.do("GET", events, nil, "Last-Event-ID", fmt.Sprint(after))
		rest, _ := readSSE(t, resp.Body)
		resp.Body.Close()
		if len(rest) != len(all)-after || rest[0]["seq"] != float64(after+1) {
			t.Fatalf("after %d: %d events", after, len(rest))
		}
	}
	for _, far := range []int{len(all), len(all) + 5} {
		resp = c.do("GET", fmt.Sprintf("%s?after=%d", events, far), nil)
		resp.Body.Close()
		if resp.StatusCode != http.StatusNoContent {
			t.Error(resp.Status)
		}
	}
	if status, _ := c.call("GET", events+"?after=x", nil); status != 400 {
		t.Error(status)
	}
}

func TestCancelRun(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c := serveFor(t, m, nil)
	c.ok("/v1/programs", looks)
	_, begun := c.post("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}})
	if err := gate.HeldCount(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	path := "/v1/runs/" + begun["id"].(string)
	if _, now := c.call("GET", path, nil); now["status"] != "running" || now["report"] != nil {
		t.Error(now)
	}
	if got := c.ok(path+"/cancel", nil); got["status"] != "cancelled" {
		t.Error(got)
	}
	resp := c.do("GET", path+"/events", nil)
	events, _ := readSSE(t, resp.Body)
	resp.Body.Close()
	if events[len(events)-1]["kind"] != "run_failed" {
		t.Error(events)
	}
	if got := c.ok(path+"/cancel", nil); got["status"] != "cancelled" {
		t.Error("a second time:", got)
	}
}

func TestRunsAreBounded(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c := serveFor(t, m, func(c *Config) { c.Limits.ActiveRuns, c.Limits.Runs, c.Limits.Programs = 2, 1, 1 })
	c.ok("/v1/programs", looks)
	c.refused("/v1/programs", strings.Replace(looks, "name: looks", "name: more", 1), 429, "")
	var paths []string
	for range 2 {
		_, begun := c.post("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}})
		paths = append(paths, "/v1/runs/"+begun["id"].(string))
	}
	c.refused("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}}, 429, "")
	for _, p := range paths {
		c.ok(p+"/cancel", nil)
	}
	gate.Open()
	for range 2 {
		c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})
	}
	if status, _ := c.call("GET", paths[0], nil); status != 404 {
		t.Error("the oldest run is kept for ever:", status)
	}
}

// A score that is infinite is told as a number, and the log keeps what it has.
func TestInfiniteScores(t *testing.T) {
	e := runtime.Event{Scores: []runtime.OptionScore{{Option: "a", Logprob: -1, P: 1}, {Option: "b", Logprob: math.Inf(-1), P: math.NaN()}}}
	got := e.Finite()
	if _, err := encode(got); err != nil || got.Scores[1].Logprob != leastLogprob || got.Scores[0].P != 1 || !math.IsNaN(e.Scores[1].P) {
		t.Error(got, err)
	}
}

// A program that fails says where.
func TestFailedRun(t *testing.T) {
	m := puppet.New()
	m.OnAny().Fail(fmt.Errorf("no luck"))
	c := serveFor(t, m, nil)
	c.ok("/v1/programs", looks)
	got := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})
	if got["status"] != "failed" || !strings.Contains(at(got, "error", "message").(string), "]/view: no luck") {
		t.Error(got)
	}
}

// Close ends runs, and those who watch them.
func TestCloseEndsRuns(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c := serveFor(t, m, nil)
	c.ok("/v1/programs", looks)
	resp := c.do("POST", "/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "stream": true})
	defer resp.Body.Close()
	if err := gate.HeldCount(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	c.srv.Close()
	events, _ := readSSE(t, resp.Body)
	if last := events[len(events)-1]; last["kind"] != string(runtime.RunFailed) {
		t.Error(last)
	}
	c.refused("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}}, 503, "")
}

// The document says what there is.
func TestRoutesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile("serve.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(src), "\n") {
		_, rest, ok := strings.Cut(line, `keyed, "`)
		if !ok {
			continue
		}
		route, _, _ := strings.Cut(rest, `"`)
		_, path, _ := strings.Cut(route, " ")
		path, _, _ = strings.Cut(path, "{name...")
		if !strings.Contains(string(doc), path) {
			t.Errorf("docs/serve.md does not mention %s", path)
		}
	}
}

func TestProgramsWhoseSchemasTheBackendRefusesAreNotTaken(t *testing.T) {
	const back = `
coppice: 1
name: back
steps:
  - user: x
  - gen: {name: a, regex: '(a)\1'}
`
	e := newEngine(t, &chain{next: func(byte) backend.Token { return puppet.EOS }})
	g, err := lang.Decode([]byte(back), "back.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Backend: e, Programs: []Program{{Graph: g}}}); err == nil || !strings.Contains(err.Error(), "back.yaml:6: a: ") {
		t.Errorf("a server with such a program: %v", err)
	}
	c := serveFor(t, e, nil)
	if e := c.refused("/v1/programs", back, http.StatusBadRequest, ""); !strings.Contains(fmt.Sprint(e["message"]), "program:6: a: ") {
		t.Error(e)
	}
}
