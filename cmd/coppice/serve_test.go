package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// The command serves the embedded model: it says where when it is ready, answers,
// runs the built-in program, and ends in order.
func TestServe(t *testing.T) {
	url, stop := serveBuiltIn(t)
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
}

// serveBuiltIn starts the command with the embedded model and returns its address.
// stop ends it in order.
func serveBuiltIn(t *testing.T) (url string, stop func()) {
	t.Helper()
	return serveModel(t)
}

// serveModel is serveBuiltIn with more arguments.
func serveModel(t *testing.T, args ...string) (url string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{"serve", "--addr", "127.0.0.1:0"}, args...), nil, in, devNull(t))
		in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	_, url, ok := strings.Cut(strings.TrimSpace(line), " on ")
	if err != nil || !ok || !strings.HasPrefix(url, "http://127.0.0.1:") {
		cancel()
		t.Fatalf("%q, %v, exit code %d", line, err, <-code)
	}
	return url, func() {
		t.Helper()
		cancel()
		if c := <-code; c != 0 {
			t.Errorf("exit code %d", c)
		}
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

// The request of the documentation works as it is written, and the second time what
// was computed of it the first time is read from the cache, as its usage and the
// metrics say.
func TestServeIncidentTriage(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is not here")
	}
	doc, err := os.ReadFile("../../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	_, command, ok := strings.Cut(string(doc), "<!-- test: incident_triage -->\n```\n")
	command, _, closed := strings.Cut(command, "\n```\n")
	if !ok || !closed || !strings.HasPrefix(command, "curl ") {
		t.Fatal("docs/serve.md has no such command")
	}
	url, stop := serveBuiltIn(t)
	defer stop()
	command = curl + " -sS --fail-with-body" + strings.ReplaceAll(strings.TrimPrefix(command, "curl"), "http://127.0.0.1:8080", url)
	hits := func() float64 {
		resp, err := http.Get(url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "vllm:prefix_cache_hits_total{") {
				f := strings.Fields(line)
				n, err := strconv.ParseFloat(f[len(f)-1], 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatal("no prefix_cache_hits_total")
		return 0
	}
	var texts [2]string
	for i := range texts {
		before := hits()
		out, err := exec.CommandContext(t.Context(), "sh", "-c", command).Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var got struct {
			Choices []struct {
				Message struct{ Content string }
				Finish  string `json:"finish_reason"`
			}
			Usage struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal(out, &got); err != nil || len(got.Choices) != 1 {
			t.Fatalf("%v in %s", err, out)
		}
		var form struct {
			Pod, Reason string
			OOM         *bool   `json:"oom_killed"`
			Action      *string `json:"recommended_action"`
		}
		texts[i] = got.Choices[0].Message.Content
		if err := json.Unmarshal([]byte(texts[i]), &form); err != nil || form.Pod == "" || form.OOM == nil || form.Action == nil || got.Choices[0].Finish != "stop" {
			t.Errorf("%v in %s", err, out)
		}
		cached, prompt := got.Usage.Details.Cached, got.Usage.Prompt
		if more := hits() - before; more != float64(cached) {
			t.Errorf("/metrics counts %v tokens of the cache, usage %d", more, cached)
		}
		if i == 1 && (cached < prompt-16 || cached > prompt) {
			t.Errorf("%d of %d tokens came from the cache", cached, prompt)
		}
	}
	if texts[0] != texts[1] {
		t.Errorf("%q, then %q", texts[0], texts[1])
	}
}
