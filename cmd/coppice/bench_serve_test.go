package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/runtime/serve"
)

// A small run of what 'coppice bench serve' does: nothing answered wrong, nothing
// left behind.
func TestBenchServe(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures for seconds")
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"bench", "serve", "--runs", "1", "--streams", "10", "--requests", "40", "--json"}, nil, &out, devNull(t)); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	var r benchReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	zero := 0
	for _, x := range r.Rows {
		if strings.HasSuffix(x.What, "wrong answers or statuses") || strings.HasSuffix(x.What, "pages held at the end") {
			zero++
			if x.Value != 0 {
				t.Errorf("%s: %v", x.What, x.Value)
			}
		} else if strings.HasPrefix(x.What, "streamed") && x.Value <= 0 {
			t.Errorf("%s: %v", x.What, x.Value)
		}
	}
	if zero != 3 {
		t.Errorf("rows %+v", r.Rows)
	}
	for _, args := range [][]string{{"--streams", "1"}, {"--requests", "0"}} {
		if code := run(t.Context(), append([]string{"bench", "serve"}, args...), nil, devNull(t), devNull(t)); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}

// Two servers are compared by the same requests, in turn.
func TestBenchServeAgainst(t *testing.T) {
	var urls [2]string
	for i := range urls {
		l, err := startServer(serve.Config{Backend: nullDevice{}})
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		urls[i] = l.url
	}
	bench := []string{"bench", "serve", "--runs", "1", "--clients", "3", "--answer-tokens", "5", "--ours", urls[0], "--json", "--against"}
	var out bytes.Buffer
	if code := run(t.Context(), append(bench, urls[1]+"/"), nil, &out, devNull(t)); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	var r benchReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 8 {
		t.Fatalf("rows %+v", r.Rows)
	}
	for _, x := range r.Rows {
		if x.Peer == nil || !strings.Contains(x.What, urls[1]) || x.Unit != "tokens" && x.Ratio == nil {
			t.Errorf("%+v", x)
		}
	}
	if n := r.Rows[7]; n.Value != 30 || *n.Peer != 30 { // two answers of five tokens for each client
		t.Errorf("%+v", n)
	}
	silent, err := listenOn(http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.close()
	for _, peer := range []string{silent.url, "http://127.0.0.1:1", "::"} {
		if code := run(t.Context(), append(bench, peer), nil, devNull(t), devNull(t)); code != 1 {
			t.Errorf("%s: exit code %d", peer, code)
		}
	}
	if code := run(t.Context(), append(bench, urls[1], "--clients", "0"), nil, devNull(t), devNull(t)); code != 2 {
		t.Errorf("no client: exit code %d", code)
	}
}
