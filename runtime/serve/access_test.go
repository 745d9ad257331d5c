package serve

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend/puppet"
)

const (
	keyA = "key-of-tenant-a"
	keyB = "key-of-tenant-b"
)

func TestKeys(t *testing.T) {
	keys, err := ParseKeys([]byte("# two\n\nacme " + keyA + "\r\n" + keyB + "\n"))
	if err != nil || len(keys) != 2 || keys[0].Name != "acme" || keys[1].Name != "key-2" {
		t.Fatal(keys, err)
	}
	var log strings.Builder
	m := looksModel()
	m.OnAny().Reply("yes")
	c := serveFor(t, m, func(c *Config) {
		c.Keys = keys
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	for _, open := range []string{"/health", "/ping", "/version"} {
		if status, _ := c.call("GET", open, nil); status != 200 {
			t.Error(open, status)
		}
	}
	for _, key := range []string{"", "key-of-tenant", keyA + "x", "Bearer"} {
		c.key = key
		for _, path := range []string{"/v1/models", "/metrics", "/get_model_info", "/v1/runs", "/none"} {
			resp := c.do("GET", path, nil)
			resp.Body.Close()
			if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s with key %q: %s", path, key, resp.Status)
			}
		}
	}
	a, b := *c, *c
	a.key, b.key = keyA, keyB

	// What one has asked tells the other nothing.
	cached := func(c *client, salt any) float64 {
		return at(c.ok("/v1/chat/completions", ask("a secret of one of us", "cache_salt", salt)), "usage", "prompt_tokens_details", "cached_tokens").(float64)
	}
	cached(&a, nil)
	cached(&b, nil)
	cached(&a, "x")
	var salts []string
	for _, call := range m.Log() {
		salts = append(salts, call.Request.Salt)
	}
	if len(salts) != 3 || salts[0] == salts[1] || salts[0] == salts[2] || salts[0] == "" || strings.Contains(strings.Join(salts, ""), "tenant") {
		t.Errorf("salts %q", salts)
	}
	if status, _ := a.post("/flush_cache", nil); status != 403 {
		t.Error("one tenant flushes the cache of all:", status)
	}

	// Programs and runs belong to who brought them.
	a.ok("/v1/programs", looks)
	done := a.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})
	b.refused("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}}, 404, "")
	path := "/v1/runs/" + done["id"].(string)
	for _, x := range []struct {
		c    *client
		want int
	}{{&a, 200}, {&b, 404}} {
		if status, _ := x.c.call("GET", path, nil); status != x.want {
			t.Error(x.c.key, status)
		}
	}
	p := b.dial()
	p.send(tree{"type": "watch", "run": done["id"]})
	if m := p.next(); m["type"] != "error" {
		t.Error(m)
	}
	p.conn.Close()
	if s := log.String(); strings.Contains(s, keyA) || strings.Contains(s, "secret of one") {
		t.Error("a secret is in the log")
	}
}

func TestBadKeys(t *testing.T) {
	for _, keys := range [][]Key{{{Secret: "short"}}, {{Secret: keyA}, {Secret: keyA}}} {
		if _, err := New(Config{Backend: puppet.New(), Keys: keys}); err == nil {
			t.Error(keys)
		}
	}
	for _, bad := range []string{"a b c", "name secret-secret limit=4", "name secret-secret runs=0", "secret-secret tokens_per_minute=x", "secret-secret operator=maybe", "secret-secret salt="} {
		if keys, err := ParseKeys([]byte(bad)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, %v", bad, keys, err)
		}
	}
	for _, o := range []string{"x", "app.example", "https://app.example/path", "https://"} {
		if _, err := New(Config{Backend: puppet.New(), Origins: []string{o}}); err == nil {
			t.Error(o)
		}
	}
}

// Salts of requests are told from those of keys, and absent from given.
func TestSalts(t *testing.T) {
	ts, err := newTenants([]Key{{Secret: keyA}}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	anyone, _ := newTenants(nil, time.Now)
	seen := map[string]bool{}
	for _, s := range []string{
		ts.all[0].salt("", ""), ts.all[0].salt("x", ""), anyone.anyone.salt("", ""), anyone.anyone.salt("x", ""), anyone.anyone.salt(ts.all[0].salt("x", ""), ""),
		// A salt and an extra key are told apart however they are put together.
		anyone.anyone.salt("a", "bc"), anyone.anyone.salt("ab", "c"), anyone.anyone.salt("abc", ""), anyone.anyone.salt("", "abc"), anyone.anyone.salt("a/bc", ""),
		anyone.anyone.salt("1:abc", ""), anyone.anyone.salt("+:1:abc", ""), ts.all[0].salt("a", "bc"), ts.all[0].salt("1:abc", ""),
	} {
		if seen[s] {
			t.Errorf("%q twice", s)
		}
		seen[s] = true
	}
	c := serveFor(t, looksModel(), nil)
	c.refused("/v1/chat/completions", ask("x", "cache_salt", ""), 400, "cache_salt")
	c.refused("/v1/chat/completions", ask("x", "cache_salt", strings.Repeat("x", 2000)), 400, "cache_salt")
	c.refused("/v1/chat/completions", ask("x", "cache_salt", 5), 400, "cache_salt")
}

func TestUnknownRoutes(t *testing.T) {
	c := serveFor(t, looksModel(), nil)
	if status, out := c.call("GET", "/v1/nothing", nil); status != 404 || at(out, "error", "code") != "not_found" {
		t.Error(status, out)
	}
	resp := c.do("GET", "/v1/completions", nil)
	resp.Body.Close()
	if resp.StatusCode != 405 || resp.Header.Get("Allow") != "POST" {
		t.Error(resp.Status, resp.Header)
	}
	if status, out := c.call("GET", "/version", nil); status != 200 || out["version"] != "test" {
		t.Error(status, out)
	}
	_, out := c.post("/v1/chat/completions", ask("x", "request_id", "mine.1"))
	if status, _ := c.post("/v1/chat/completions", ask("x", "request_id", "a b")); status != 400 {
		t.Error(status, out)
	}
}

func TestMetrics(t *testing.T) {
	m := looksModel()
	m.OnAny().Reply(`{"a":1}`)
	c := serveFor(t, m, func(c *Config) { c.Names = []string{"m"} })
	c.ok("/v1/chat/completions", ask("x", "guided_json", `{"type":"object","properties":{"a":{"const":1}},"required":["a"],"additionalProperties":false}`))
	c.ok("/v1/chat/completions", ask("x"))
	c.post("/v1/chat/completions", ask("x", "guided_regex", "("))
	c.ok("/v1/programs", looks)
	c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})
	resp := c.do("GET", "/metrics", nil)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	text := string(data)
	for _, line := range []string{
		`vllm:num_requests_running{model_name="m"} 0`, `vllm:num_requests_waiting{model_name="m"} 0`, `vllm:kv_cache_usage_perc{model_name="m"} 0`,
		`vllm:request_success_total{finished_reason="stop",model_name="m"} 5`, `coppice_request_failures_total{model_name="m",status="400"} 1`,
		`coppice_forced_tokens_total{model_name="m"} 7`, `coppice_runs_total{model_name="m",status="finished"} 1`,
		`vllm:time_to_first_token_seconds_count{model_name="m"} 5`, `sglang:e2e_request_latency_seconds_count{model_name="m"} 5`,
		`sglang:num_running_reqs{model_name="m"} 0`, `sglang:num_queue_reqs{model_name="m"} 0`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	for _, name := range []string{"vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "sglang:cached_tokens_total"} {
		if !strings.Contains(text, name+`{model_name="m"} `) || strings.Contains(text, name+`{model_name="m"} 0`+"\n") {
			t.Errorf("%s is missing or 0", name)
		}
	}
	e := newEngine(t, &chain{next: alphabet})
	c = serveFor(t, e, nil)
	c.ok("/v1/completions", tree{"prompt": "a", "max_tokens": 3})
	resp = c.do("GET", "/metrics", nil)
	defer resp.Body.Close()
	data, _ = io.ReadAll(resp.Body)
	for _, line := range []string{`vllm:cache_config_info{block_size="16",model_name="chain",num_gpu_blocks="256"} 1`, `coppice_kv_pages_held{model_name="chain"} 0`} {
		if !strings.Contains(string(data), line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}
