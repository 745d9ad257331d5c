package serve

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
)

// handClock is a clock that a test moves.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// quotaClient is a client of a server with keys whose limits go by a clock of
// the test's.
func quotaClient(t *testing.T, m backend.Backend, keys string) (*client, *handClock) {
	t.Helper()
	list, err := ParseKeys([]byte(keys))
	if err != nil {
		t.Fatal(err)
	}
	clock := &handClock{now: time.Unix(1000, 0)}
	c := serveFor(t, m, func(c *Config) { c.Keys = list })
	for _, x := range c.srv.tenants.all {
		x.quota = newQuota(x.quota.limits, clock.Now)
	}
	return c, clock
}

// status posts a chat and returns the status and the seconds of Retry-After.
func (c *client) status(body any) (status, after int) {
	c.t.Helper()
	resp := c.do("POST", "/v1/chat/completions", body)
	resp.Body.Close()
	after, _ = strconv.Atoi(resp.Header.Get("Retry-After"))
	return resp.StatusCode, after
}

func TestRequestsPerMinute(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("yes")
	c, clock := quotaClient(t, m, "a "+keyA+" requests_per_minute=2\nb "+keyB)
	c.key = keyA
	for i, want := range []int{200, 200, 429} {
		status, after := c.status(ask("x"))
		if status != want || (want == 429) != (after == 30) {
			t.Errorf("request %d: %d, again after %d s", i, status, after)
		}
	}
	if status, _ := c.call("GET", "/v1/models", nil); status != 200 {
		t.Error("a limit of requests holds for those that generate only:", status)
	}
	other := *c
	other.key = keyB
	for range 5 {
		if status, _ := other.status(ask("x")); status != 200 {
			t.Error("one key's limit is felt by another:", status)
		}
	}
	clock.add(29 * time.Second)
	if status, after := c.status(ask("x")); status != 429 || after != 1 {
		t.Error(status, after)
	}
	clock.add(time.Second)
	resp := c.do("POST", "/v1/chat/completions", ask("x"))
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
	// A minute of rest gives no more than a minute's worth.
	clock.add(time.Hour)
	resp = c.do("GET", "/v1/models", nil)
	resp.Body.Close()
	if h := resp.Header; h.Get("X-Ratelimit-Limit-Requests") != "2" || h.Get("X-Ratelimit-Remaining-Requests") != "2" || h.Get("X-Ratelimit-Limit-Tokens") != "" {
		t.Error(h)
	}
}

// Tokens are counted when they are known: what was used beyond the limit must be
// waited for.
func TestTokensPerMinute(t *testing.T) {
	m := looksModel()
	m.OnAny().Reply(strings.Repeat("x", 100))
	c, clock := quotaClient(t, m, keyA+" tokens_per_minute=60\n"+keyB+" tokens_per_minute=60")
	c.key = keyA
	first := c.ok("/v1/chat/completions", ask("x"))
	used := at(first, "usage", "total_tokens").(float64)
	if used <= 60 {
		t.Fatal(used)
	}
	status, after := c.status(ask("x"))
	if want := int(used) - 60 + 1; status != 429 || after != want {
		t.Errorf("%d, again after %d s, want %d", status, after, want)
	}
	clock.add(time.Duration(after) * time.Second)
	if status, _ := c.status(ask("x")); status != 200 {
		t.Error(status)
	}
	// What runs use counts too.
	c.key = keyB
	c.ok("/v1/programs", looks)
	c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})
	c.refused("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}}, 429, "")
	c.refused("/generate", tree{"text": "x"}, 429, "")
}

func TestGenerationsOfAKey(t *testing.T) {
	m, gate := puppet.New(), puppet.NewGate()
	m.SetGate(gate)
	m.OnAny().Reply("yes")
	c, _ := quotaClient(t, m, keyA+" generations=2 runs=1\n"+keyB)
	c.key = keyA
	done := make(chan int)
	go func() {
		resp, err := c.try(t.Context(), "POST", "/v1/chat/completions", ask("x", "n", 2))
		if err != nil {
			done <- 0
			return
		}
		resp.Body.Close()
		done <- resp.StatusCode
	}()
	if err := gate.HeldCount(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	c.refused("/v1/chat/completions", ask("x"), http.StatusTooManyRequests, "")
	c.ok("/v1/programs", looks)
	c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}})
	if e := c.refused("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}}, http.StatusTooManyRequests, ""); e["code"] != "too_many_runs" {
		t.Error(e)
	}
	other := *c
	other.key = keyB
	gate.Open()
	if status := <-done; status != 200 {
		t.Error(status)
	}
	other.ok("/v1/chat/completions", ask("x", "n", 3))
	c.ok("/v1/chat/completions", ask("x", "n", 2))
}

// Operators see what concerns all, and a key that is the only one.
func TestOperators(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	for _, x := range []struct {
		keys     string
		a, b     int // statuses of what concerns all
		aFlushes int
	}{
		{"a " + keyA + "\nb " + keyB, 403, 403, 403},
		{"a " + keyA + " operator=true\nb " + keyB, 200, 403, 200},
		{"a " + keyA, 200, 401, 403},
	} {
		list, err := ParseKeys([]byte(x.keys))
		if err != nil {
			t.Fatal(err)
		}
		c := serveFor(t, e, func(c *Config) { c.Keys = list })
		for key, want := range map[string]int{keyA: x.a, keyB: x.b} {
			c.key = key
			for _, path := range []string{"/metrics", "/load", "/v1/engine"} {
				resp := c.do("GET", path, nil)
				resp.Body.Close()
				if resp.StatusCode != want {
					t.Errorf("%s with %s: %s, want %d", path, key, resp.Status, want)
				}
			}
			if want == 401 {
				continue
			}
			_, info := c.call("GET", "/server_info", nil)
			if _, shown := info["stats"]; shown != (want == 200) {
				t.Errorf("%s: %v", key, info)
			}
			flushes := 403
			if key == keyA {
				flushes = x.aFlushes
			}
			resp := c.do("POST", "/flush_cache", nil)
			resp.Body.Close()
			if resp.StatusCode != flushes {
				t.Errorf("flush with %s: %s, want %d", key, resp.Status, flushes)
			}
		}
	}
}

// Scrapers without a key see the metrics if they may, and nothing else.
func TestOpenMetrics(t *testing.T) {
	c := serveFor(t, puppet.New(), func(c *Config) { c.Keys, c.OpenMetrics = []Key{{Secret: keyA}}, true })
	for path, want := range map[string]int{"/metrics": 200, "/load": 401, "/v1/models": 401} {
		resp := c.do("GET", path, nil)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, resp.Status, want)
		}
	}
}

// Keys share cached prefixes if they are told to, and only then.
func TestSharedSalts(t *testing.T) {
	ts, err := newTenants([]Key{{Secret: keyA, Salt: "team"}, {Secret: keyB, Salt: "team"}, {Secret: "key-of-tenant-c"}, {Secret: "key-of-tenant-d", Salt: "other"}}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := ts.all[0].salt("x", ""), ts.all[1].salt("x", ""); a != b || strings.Contains(a, "team") {
		t.Error(a, b)
	}
	seen := map[string]bool{}
	for _, x := range ts.all[1:] {
		seen[x.salt("", "")] = true
	}
	if len(seen) != 3 {
		t.Error(seen)
	}
}

// However a key is printed, its secret is not.
func TestKeysArePrintedWithoutSecrets(t *testing.T) {
	k := Key{Name: "a", Secret: keyA}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if s := fmt.Sprintf(format, k); strings.Contains(s, keyA) {
			t.Errorf("%s: %s", format, s)
		}
	}
	if s := k.LogValue().String(); strings.Contains(s, keyA) {
		t.Error(s)
	}
}
