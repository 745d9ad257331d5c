package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestPeerOutputIsRead(t *testing.T) {
	decode, prefill, err := parseLlamaBench([]byte(`[{"n_prompt":512,"n_gen":0,"avg_ts":700.5},{"n_prompt":0,"n_gen":128,"avg_ts":138.25}]`))
	if err != nil || decode != 138.25 || prefill != 700.5 {
		t.Errorf("%v %v %v", decode, prefill, err)
	}
	for _, bad := range []string{``, `{}`, `[]`, `[{"n_prompt":512,"n_gen":0,"avg_ts":700.5}]`} {
		if _, _, err := parseLlamaBench([]byte(bad)); err == nil {
			t.Errorf("%q is no result of llama-bench", bad)
		}
	}
	lines := "log line\n" + `{"pl":1,"pp":600,"tg":32,"t_tg":0.64}` + "\n" + `{"pl":8,"pp":600,"tg":32,"t_tg":3.2}` + "\n"
	steps, err := parseLlamaSteps([]byte(lines), []int{1, 8})
	if err != nil || math.Abs(steps[1]-20) > 1e-9 || math.Abs(steps[8]-100) > 1e-9 {
		t.Errorf("%v %v", steps, err)
	}
	if _, err := parseLlamaSteps([]byte(lines), []int{1, 32}); err == nil {
		t.Error("32 branches are not there")
	}
}

// TestForkWorkload runs it on a server that counts: every prompt of a round
// begins with the same turns, and the join holds what the branches wrote.
func TestForkWorkload(t *testing.T) {
	file, remove, err := peerFile("sapling")
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	o := &benchOptions{peers: peerOptions{rounds: 2, forks: 3, reply: 8}}
	o.speed.shared = 200
	job, err := newForkJob(o, file)
	if err != nil || job == nil {
		t.Fatal(job, err)
	}
	job.chat = true
	var mu sync.Mutex
	var prompts [][]chatMessage
	joins := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Messages []chatMessage
			Format   json.RawMessage `json:"response_format"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		prompts = append(prompts, q.Messages)
		last := q.Messages[len(q.Messages)-1].Content
		if q.Format != nil {
			joins++
			if strings.Count(last, "found it") != 3 {
				t.Errorf("join without the branches' texts: %s", last)
			}
		}
		fmt.Fprint(w, `{"choices":[{"message":{"role":"assistant","content":"found it"}}],"usage":{"prompt_tokens":100,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":90}}}`)
	}))
	defer srv.Close()
	out, err := job.run(context.Background(), srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	if len(prompts) != 8 || joins != 2 || out.Computed != 80 || out.Generated != 64 || out.Wall <= 0 {
		t.Errorf("%d prompts, %d joins, %+v", len(prompts), joins, out)
	}
	for _, p := range prompts {
		if p[0].Content != job.prefix {
			t.Error("a prompt that does not begin with the runbook")
		}
	}
	srv.Close()
	if _, err := job.run(context.Background(), srv.URL); err == nil {
		t.Error("no error from a server that is gone")
	}
}

func TestForkSchemaIsOne(t *testing.T) {
	s, err := forkSchema(8)
	if err != nil || !json.Valid(s) || !strings.Contains(string(s), `"idea-8"`) {
		t.Errorf("%s %v", s, err)
	}
}

// TestPeersThatEndAtOnce: a tool that fails is an error with its log, not a hang.
func TestPeersThatEndAtOnce(t *testing.T) {
	dir := t.TempDir()
	tool := filepath.Join(dir, "llama-server")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\necho no such model >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	a := &app{out: devNull(t), errOut: devNull(t)}
	_, err := a.runFork(context.Background(), &forkJob{}, false, []string{tool})
	if err == nil || !strings.Contains(err.Error(), "no such model") {
		t.Error(err)
	}
	if _, err := output(context.Background(), tool); err == nil || !strings.Contains(err.Error(), "no such model") {
		t.Error(err)
	}
}

// TestSpeedBenchmarksRun: small, for the shape of what they print.
func TestSpeedBenchmarksRun(t *testing.T) {
	for name, kv := range map[string]string{"decode": "q8", "prefill": "bf16"} {
		out, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		code := run(context.Background(), []string{"bench", name, "--runs", "1", "--threads", "1", "--depths", "0,40", "--tokens", "12", "--prompt-tokens", "24",
			"--branches", "1,3", "--shared-tokens", "50", "--resident-tokens", "64", "--kv", kv, "--json"}, nil, out, devNull(t))
		data, _ := os.ReadFile(out.Name())
		var r benchReport
		if err := json.Unmarshal(data, &r); code != 0 || err != nil {
			t.Fatalf("%s: exit code %d, %v: %s", name, code, err, data)
		}
		limits, positive := 0, 0
		for _, row := range r.Rows {
			if row.Limit != nil && *row.Limit > 0 && row.Ratio != nil {
				limits++
			}
			if row.Value > 0 {
				positive++
			}
		}
		if limits < 2 || positive != len(r.Rows) || r.Machine == "" {
			t.Errorf("%s: %s", name, data)
		}
	}
}
