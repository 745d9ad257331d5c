package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// The command serves the embedded model: it says where when it is ready, answers,
// runs the built-in program, and ends in order.
func TestServe(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, in := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"serve", "--addr", "127.0.0.1:0"}, nil, in, devNull(t))
		in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	_, url, ok := strings.Cut(strings.TrimSpace(line), " on ")
	if err != nil || !ok || !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Fatalf("%q, %v, exit code %d", line, err, <-code)
	}
	for path, body := range map[string]string{
		"/v1/chat/completions":     `{"model":"sapling","messages":[{"role":"user","content":"Which?"}],"structured_outputs":{"choice":["OOMKilled","ImagePullBackOff"]}}`,
		"/generate":                `{"text":"Alert","sampling_params":{"max_new_tokens":2}}`,
		"/tokenize":                `{"messages":[{"role":"user","content":"Pod"}]}`,
		"/v1/programs/triage/runs": `{"inputs":{"alert":"Pod web-1 is in CrashLoopBackOff with exit code 137 (OOMKilled)"},"wait":true}`,
	} {
		resp, err := http.Post(url+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || strings.Contains(string(data), `"error":{`) {
			t.Errorf("%s: %s %s %v", path, resp.Status, data, err)
		}
	}
	stop()
	if c := <-code; c != 0 {
		t.Errorf("exit code %d", c)
	}
}

func TestServeMistakes(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "x"}, {"serve", "--api-keys", "/no/such/file"}, {"serve", "--tls-cert", "c.pem"}, {"serve", "--model", "nosuch", "--addr", "127.0.0.1:0"},
	} {
		if code := run(t.Context(), args, nil, devNull(t), devNull(t)); code != 2 {
			t.Errorf("coppice %q: exit code %d, want 2", args, code)
		}
	}
}
