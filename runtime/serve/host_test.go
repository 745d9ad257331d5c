package serve

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Without keys a loopback server answers under its own names only, whatever is
// asked.
func TestHosts(t *testing.T) {
	ask := func(c *client, method, path, host string) int {
		req, err := http.NewRequest(method, c.url+path, nil)
		assert.NoError(t, err)
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if !assert.NoError(t, err) {
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	c := serveFor(t, looksModel(), func(c *Config) { c.Hosts = []string{"coppice.lan", "10.0.0.7"} })
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:8080": 200, "localhost.": 200, "127.0.0.1": 200, "127.3.2.1:99": 200, "[::1]:8080": 200,
		"coppice.lan": 200, "Coppice.LAN:8080": 200, "10.0.0.7:80": 200,
		"evil.test": 403, "evil.test:8080": 403, "localhost.evil.test": 403, "127.0.0.1.evil.test": 403, "evil.localhost.test": 403,
		"10.0.0.8": 403, "192.168.1.2:8080": 403, "0.0.0.0": 403, "xlocalhost": 403,
	} {
		for _, path := range []string{"/v1/models", "/", "/health", "/metrics"} {
			assert.Equal(t, want, ask(c, "GET", path, host), "%s for %s", path, host)
		}
	}
	e := tree{}
	req, _ := http.NewRequest("POST", c.url+"/v1/completions", nil)
	req.Host = "evil.test"
	resp, err := http.DefaultClient.Do(req)
	if assert.NoError(t, err) {
		assert.NoError(t, json.NewDecoder(resp.Body).Decode(&e))
		resp.Body.Close()
		assert.Equal(t, "host_not_allowed", at(e, "error", "code"))
		assert.Contains(t, at(e, "error", "message"), "--allow-host evil.test")
	}

	all := serveFor(t, looksModel(), func(c *Config) { c.Hosts = []string{"*"} })
	assert.Equal(t, 200, ask(all, "GET", "/v1/models", "evil.test"))
	keyed := serveFor(t, looksModel(), func(c *Config) { c.Keys = []Key{{Secret: "secret-key"}} })
	assert.Equal(t, 200, ask(keyed, "GET", "/health", "evil.test"), "a key is what such a page lacks")
	assert.Equal(t, 401, ask(keyed, "GET", "/v1/models", "evil.test"))

	// A request that came to another address is somebody else's business.
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/health", nil)
	c.srv.ServeHTTP(w, r)
	assert.Equal(t, 200, w.Code)

	for _, bad := range []string{"", "http://x", "x:80", "a b", "*.x", "[::1]"} {
		_, err := New(Config{Backend: looksModel(), Hosts: []string{bad}})
		assert.ErrorContains(t, err, "host name", bad)
	}
}
