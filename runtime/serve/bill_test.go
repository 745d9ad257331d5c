package serve

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
)

// spent is what the first key has used of its tokens a minute.
func (c *client) spent() float64 {
	q := c.srv.tenants.all[0].quota
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tokens.size - q.tokens.level
}

// Hanging up before the end is no way around a limit of tokens.
func TestTokensOfWhoHangsUp(t *testing.T) {
	step := make(chan struct{})
	e := newEngine(t, &chain{next: func(byte) backend.Token { return 'a' }, step: step})
	c, _ := quotaClient(t, e, keyA+" tokens_per_minute=10000")
	c.key = keyA
	ctx, gone := context.WithCancel(t.Context())
	fed, enough := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(fed)
		for range 6 {
			select {
			case step <- struct{}{}:
			case <-enough:
				return
			}
		}
	}()
	t.Cleanup(func() { // the engine can be closed
		close(enough)
		<-fed
		close(step)
	})
	resp := c.doCtx(ctx, "POST", "/v1/completions", tree{"prompt": "bbbbbbbbbb", "max_tokens": 400, "stream": true, "temperature": 0})
	lines := bufio.NewScanner(resp.Body)
	for n := 0; n < 3 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			n++
		}
	}
	gone()
	resp.Body.Close()
	if err := c.srv.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.spent(); got < 13 || got > 18 {
		t.Errorf("%v tokens paid for a prompt of 10 and 3 to 7 that were generated", got)
	}
}

// However requests and runs end, what was done for them is paid: of a backend that
// tells of no passes, the prompts that were given up.
func TestTokensOfWhatEndsEarly(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.OnRegexp("broken").Fail(backend.ErrUnavailable)
	m.OnAny().Reply("yes")
	c, _ := quotaClient(t, m, keyA+" tokens_per_minute=100000")
	c.key = keyA
	paid := 0.0
	pays := func(what string, want float64) {
		t.Helper()
		if got := c.spent() - paid; got != want {
			t.Errorf("%s: %v tokens paid, want %v", what, got, want)
		}
		paid = c.spent()
	}
	whole := at(c.ok("/v1/chat/completions", ask("x", "n", 2)), "usage")
	prompt := at(whole, "prompt_tokens").(float64)
	pays("two choices", at(whole, "total_tokens").(float64))
	c.post("/v1/chat/completions", ask("broken"))
	pays("nothing was done", 0)
	c.post("/v1/chat/completions", ask("x", "top_logprobs", 1, "logprobs", true))
	pays("refused", 0)

	m.SetGate(gate)
	for name, end := range map[string]func(gone func()){
		"gone":    func(gone func()) { gone() },
		"aborted": func(func()) { c.ok("/abort_request", tree{"rid": "chatcmpl-mine"}) },
	} {
		ctx, gone := context.WithCancel(t.Context())
		defer gone()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if resp, err := c.try(ctx, "POST", "/v1/chat/completions", ask("x", "n", 2, "request_id", "mine")); err == nil {
				resp.Body.Close()
			}
		}()
		if err := gate.HeldCount(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		end(gone)
		<-ended
		if err := c.srv.Idle(t.Context()); err != nil {
			t.Fatal(err)
		}
		pays(name, prompt)
	}

	c.ok("/v1/programs", looks)
	begun := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}})
	if err := gate.HeldCount(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	c.ok("/v1/runs/"+begun["id"].(string)+"/cancel", nil)
	if err := c.srv.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.spent() - paid; got < 2*float64(len("About x.")) {
		t.Errorf("%v tokens paid for two nodes of a run that was cancelled", got)
	}
	paid = c.spent()
	gate.Open()
	done := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})
	sum := 0.0
	for _, k := range []string{"prompt_tokens", "sampled_tokens", "forced_tokens"} {
		sum += at(done, "report", "usage", k).(float64)
	}
	pays("a run", sum)
}

// A bill counts passes and pieces once, and what the pass at work did when its
// request ended.
func TestBill(t *testing.T) {
	now := time.Unix(1000, 0)
	pass := func(tokens int, prompt bool) backend.Step { return backend.Step{Tokens: tokens, Prompt: prompt} }
	for _, x := range []struct {
		name   string
		silent bool
		gone   bool
		do     func(b *bill)
		after  func(b *bill)
		want   float64
	}{
		{name: "nothing"},
		{name: "nobody can know", silent: true, want: 0},
		{name: "given up, and nobody can know", silent: true, gone: true, want: 100},
		{name: "given up in the queue", gone: true, want: 0},
		{name: "a part of the prompt", gone: true, do: func(b *bill) { b.step(pass(30, true)) }, want: 30},
		{name: "and the pass that was at work", gone: true, do: func(b *bill) { b.step(pass(30, true)) }, after: func(b *bill) { b.step(pass(20, true)) }, want: 50},
		{name: "the prompt, some of it cached", do: func(b *bill) {
			b.step(pass(30, true))
			b.delta(backend.Delta{Text: "a", Tokens: []backend.Token{1}})
			b.step(pass(1, false))
			b.delta(backend.Delta{Text: "bc", Tokens: []backend.Token{2, 3}})
		}, want: 103},
		{name: "text that is held back", do: func(b *bill) {
			b.step(pass(100, true))
			for range 7 {
				b.step(pass(1, false))
			}
		}, after: func(b *bill) { b.step(pass(1, false)) }, want: 108},
		{name: "pieces without ids", silent: true, do: func(b *bill) { b.delta(backend.Delta{Text: "a"}); b.delta(backend.Delta{PromptTokens: 5}) }, want: 101},
	} {
		q := newQuota(KeyLimits{TokensPerMinute: 1000}, func() time.Time { return now })
		b := &bill{quota: q, shared: &promptBill{}, silent: x.silent, prompt: func() int { return 100 }}
		if x.do != nil {
			x.do(b)
		}
		b.leave(x.gone)
		if x.after != nil {
			x.after(b)
		}
		if got := 1000 - q.tokens.level; got != x.want {
			t.Errorf("%s: %v paid, want %v", x.name, got, x.want)
		}
	}
}

// A request that no wait would let in is refused for good, by the name of what is
// too much.
func TestRequestsThatNeverFit(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("yes")
	keyed, _ := quotaClient(t, m, keyA+" generations=2")
	keyed.key = keyA
	small := serveFor(t, m, func(c *Config) { c.Limits.Generations = 2 })
	for _, c := range []*client{keyed, small} {
		for _, x := range []struct {
			path  string
			body  tree
			param string
		}{
			{"/v1/chat/completions", ask("x", "n", 3), "n"},
			{"/v1/chat/completions", ask("x", "n", 3, "stream", true), "n"},
			{"/v1/completions", tree{"prompt": "x", "n": 3}, "n"},
			{"/v1/completions", tree{"prompt": []any{"x", "y", "z"}}, "prompt"},
			{"/v1/completions", tree{"prompt": []any{"x", "y", "z"}, "stream": true}, "prompt"},
			{"/v1/completions", tree{"prompt": "x", "best_of": 3}, "best_of"},
			{"/generate", tree{"text": "x", "sampling_params": tree{"n": 3}}, "sampling_params.n"},
			{"/generate", tree{"text": []any{"x", "y", "z"}}, "text"},
			{"/generate", tree{"input_ids": []any{[]any{1}, []any{2}, []any{3}}}, "input_ids"},
		} {
			if e := c.refused(x.path, x.body, 400, x.param); !strings.Contains(e["message"].(string), "at most 2") {
				t.Error(e)
			}
		}
		c.ok("/v1/chat/completions", ask("x", "n", 2))
		c.ok("/v1/completions", tree{"prompt": []any{"x", "y"}})
	}
}
