package serve

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// The page and all that it names are there without a key, and nothing of it
// comes from elsewhere.
func TestPage(t *testing.T) {
	c := serveFor(t, looksModel(), func(c *Config) { c.Keys = []Key{{Secret: "secret-key"}} })
	get := func(path string, header ...string) (*http.Response, string) {
		resp := c.do("GET", path, nil, header...)
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(data)
	}
	resp, html := get("/")
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		t.Fatal(resp.Status, resp.Header)
	}
	if p := resp.Header.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") {
		t.Error(p)
	}
	links := regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(html, -1)
	if len(links) < 3 {
		t.Error(links)
	}
	for _, l := range links {
		resp, data := get("/" + l[1])
		if resp.StatusCode != 200 || len(data) == 0 || strings.Contains(l[1], ":") {
			t.Errorf("%s: %s", l[1], resp.Status)
		}
		if again, data := get("/"+l[1], "If-None-Match", resp.Header.Get("ETag")); again.StatusCode != http.StatusNotModified || data != "" {
			t.Errorf("%s again: %s", l[1], again.Status)
		}
	}
	if resp, _ := get("/assets/none"); resp.StatusCode != http.StatusUnauthorized {
		t.Error("an asset that is none:", resp.Status)
	}
	if resp, _ := get("/v1/runs"); resp.StatusCode != http.StatusUnauthorized {
		t.Error(resp.Status)
	}
}

// A page is the server's own only where no other site can have that origin.
func TestOwnOrigin(t *testing.T) {
	for _, x := range []struct {
		host, origin string
		tls, want    bool
	}{
		{"127.0.0.1:8080", "http://127.0.0.1:8080", false, true},
		{"localhost:8080", "http://localhost:8080", false, true},
		{"[::1]:8080", "http://[::1]:8080", false, true},
		{"[::1]", "http://[::1]", false, true},
		{"192.168.1.5", "http://192.168.1.5", false, true},
		{"coppice.example", "https://coppice.example", true, true},
		{"evil.test:8080", "http://evil.test:8080", false, false}, // its name may point here
		{"localhost.evil.test", "http://localhost.evil.test", false, false},
		{"127.0.0.1:8080", "http://127.0.0.1:9090", false, false},
		{"127.0.0.1:8080", "http://localhost:8080", false, false},
		{"127.0.0.1:8080", "https://127.0.0.1:8080", false, false},
		{"127.0.0.1:8080", "null", false, false},
		{"", "http://", false, false},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if x.tls {
			r = httptest.NewRequest("GET", "https://x/", nil)
		}
		r.Host = x.host
		r.Header.Set("Origin", x.origin)
		if got := ownOrigin(r); got != x.want {
			t.Errorf("origin %s at %s: %v", x.origin, x.host, got)
		}
	}
}

// A browser sends its key as a protocol of the websocket.
func TestSocketKey(t *testing.T) {
	c := serveFor(t, looksModel(), func(c *Config) { c.Keys = []Key{{Secret: "secret-key"}} })
	for key, ok := range map[string]bool{hex.EncodeToString([]byte("secret-key")): true, hex.EncodeToString([]byte("secret-kez")): false, "zz": false, "": false} {
		d := websocket.Dialer{Subprotocols: []string{socketProtocol, keyProtocol + key}}
		conn, resp, err := d.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/v1/ws", nil)
		if (err == nil) != ok || !ok && resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%q: %v", key, err)
		}
		if conn != nil {
			if conn.Subprotocol() != socketProtocol { // the key is not sent back
				t.Error(conn.Subprotocol())
			}
			conn.Close()
		}
	}
}

func TestEngineWork(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	c.ok("/v1/completions", tree{"prompt": "abc", "max_tokens": 5, "temperature": 0})
	_, work := c.call("GET", "/v1/engine", nil)
	passes := work["passes"].([]any)
	if at(work, "stats", "sampled") != 5.0 || len(passes) == 0 || at(passes[0], "pass") != 1.0 || at(work, "page_tokens") != 16.0 {
		t.Error(work)
	}
	if _, rest := c.call("GET", "/v1/engine?after=1", nil); len(rest["passes"].([]any)) != len(passes)-1 {
		t.Error(rest)
	}
	if status, _ := c.call("GET", "/v1/engine?after=x", nil); status != 400 {
		t.Error(status)
	}
	_, cached := c.call("GET", "/v1/engine/cache", nil)
	if cached["all"] == 0.0 || at(cached, "nodes", 0, "text") != "abc" {
		t.Error(cached)
	}
	shut := serveFor(t, newEngine(t, &chain{next: alphabet}), func(c *Config) { c.Keys = []Key{{Secret: "secret-key"}, {Secret: "operator-key", Operator: true}} })
	for key, want := range map[string]int{"secret-key": 403, "operator-key": 200} {
		shut.key = key
		for _, path := range []string{"/v1/engine", "/v1/engine/cache"} {
			if status, _ := shut.call("GET", path, nil); status != want {
				t.Errorf("%s with %s: %d", path, key, status)
			}
		}
	}
	other := serveFor(t, looksModel(), nil)
	if status, _ := other.call("GET", "/v1/engine", nil); status != 404 {
		t.Error(status)
	}
}

func TestJournalEvents(t *testing.T) {
	g, err := lang.Decode([]byte(looks), "looks")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "j")
	if _, err := runtime.RunGraph(t.Context(), looksModel(), g, nil, lang.Args{"topic": "rain"}, runtime.WithJournal(path)); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := serveFor(t, looksModel(), nil)
	resp := c.do("POST", "/v1/journals/events", string(data))
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp.Status, err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, `"run_finished"`) || !strings.Contains(last, `"take it"`) {
		t.Error(last)
	}
	for _, bad := range []string{"", "x", string(data[:20]), strings.Replace(string(data), "rain", "snow", 1)} {
		c.refused("/v1/journals/events", bad, 400, "")
	}
}
