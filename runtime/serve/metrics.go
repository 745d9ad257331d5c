package serve

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/cache"
)

// metrics are what /metrics shows: under vLLM's and SGLang's names what those
// servers count too, so that dashboards and routers made for them can read it,
// and under coppice_ what they do not have.
type metrics struct {
	registry *prometheus.Registry
	handler  http.Handler

	prompt, cached, generated       []prometheus.Counter // by naming
	ttft, itl, e2e, queue           []prometheus.Histogram
	prefill, decode, inference      prometheus.Histogram
	promptSize, answerSize          prometheus.Histogram
	forced, computed, passes, saved prometheus.Counter
	requests, aborted, refused      prometheus.Counter
	slow                            prometheus.Counter
	success                         *prometheus.CounterVec
	failures                        *prometheus.CounterVec
	runs, scores                    *prometheus.CounterVec
	speed                           *throughput
}

// statser is a backend that counts its work; our engine is one.
type statser interface{ Stats() engine.Stats }

var (
	firstBuckets = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160}
	tokenBuckets = []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5}
	wholeBuckets = []float64{.01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480}
	sizeBuckets  = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
)

// registrar registers metrics with the labels that all have.
type registrar struct{ prometheus.Registerer }

func (r registrar) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	r.MustRegister(c)
	return c
}

func (r registrar) counters(help string, names ...string) (out []prometheus.Counter) {
	for _, name := range names {
		out = append(out, r.counter(name, help))
	}
	return out
}

func (r registrar) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	r.MustRegister(h)
	return h
}

func (r registrar) histograms(help string, buckets []float64, names ...string) (out []prometheus.Histogram) {
	for _, name := range names {
		out = append(out, r.histogram(name, help, buckets))
	}
	return out
}

func (r registrar) vec(name, help, label string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	r.MustRegister(v)
	return v
}

func (r registrar) gauges(help string, f func() float64, names ...string) {
	for _, name := range names {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
}

func (r registrar) total(name, help string, f func() float64) {
	r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, f))
}

// sizes shows the size of the cache in labels, as routers read it.
func (r registrar) sizes(name, ofPage, ofPool string, pages int) {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: "Size of the cache, in the labels."}, []string{ofPage, ofPool})
	r.MustRegister(v)
	v.WithLabelValues(strconv.Itoa(cache.PageTokens), strconv.Itoa(pages)).Set(1)
}

func newMetrics(s *Server) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), speed: &throughput{now: time.Now}}
	// SGLang's dashboards and pickers filter by model_name, some of vLLM's by
	// engine too.
	r := registrar{prometheus.WrapRegistererWith(prometheus.Labels{"model_name": s.cfg.Names[0]}, m.registry)}
	m.prompt = r.counters("Tokens of prompts.", "vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "vllm:prefix_cache_queries_total")
	m.generated = r.counters("Tokens generated.", "vllm:generation_tokens_total", "sglang:generation_tokens_total")
	m.cached = r.counters("Tokens of prompts that were read from the cache.", "vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
	m.ttft = r.histograms("Time from a request to its first token.", firstBuckets, "vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds")
	m.itl = r.histograms("Time between tokens.", tokenBuckets, "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds", "sglang:inter_token_latency_seconds")
	m.e2e = r.histograms("Time from a request to its end.", wholeBuckets, "vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds")
	m.queue = r.histograms("Time from a request to its first forward pass.", firstBuckets, "vllm:request_queue_time_seconds", "sglang:queue_time_seconds")
	m.prefill = r.histogram("vllm:request_prefill_time_seconds", "Time in which a prompt was computed.", wholeBuckets)
	m.decode = r.histogram("vllm:request_decode_time_seconds", "Time from the end of the prompt to the end of the last forward pass.", wholeBuckets)
	m.inference = r.histogram("vllm:request_inference_time_seconds", "Time from the first forward pass to the end of the last.", wholeBuckets)
	m.promptSize = r.histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", sizeBuckets)
	m.answerSize = r.histogram("vllm:request_generation_tokens", "Tokens of an answer.", sizeBuckets)
	m.success = r.vec("vllm:request_success_total", "Generations that ended well, by reason.", "finished_reason")
	m.requests = r.counter("sglang:num_requests_total", "Generations that ended well.")
	m.aborted = r.counter("sglang:num_aborted_requests_total", "Generations that were cancelled.")
	m.failures = r.vec("coppice_request_failures_total", "Generations that failed, by status.", "status")
	m.runs = r.vec("coppice_runs_total", "Runs of programs that ended, by status.", "status")
	m.scores = r.vec("coppice_scores_total", "Requests of /v1/score that ended, by status.", "status")
	m.forced = r.counter("coppice_forced_tokens_total", "Tokens that a constraint gave without a forward pass of their own.")
	m.computed = r.counter("coppice_computed_tokens_total", "Tokens that went through a forward pass.")
	m.passes = r.counter("coppice_forward_passes_total", "Forward passes, counted for each request that took part.")
	m.saved = r.counter("coppice_forward_passes_saved_total", "Forward passes that jumping over forced tokens saved.")
	m.refused = r.counter("coppice_requests_refused_total", "Requests refused because a queue was full or a limit of a key reached.")
	m.slow = r.counter("coppice_websockets_slow_total", "Websocket connections that were closed because their clients did not read.")
	m.gauges(r, s)
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	return m
}

// gauges are what is read when it is asked for.
func (m *metrics) gauges(r registrar, s *Server) {
	b, counts := s.be.(statser)
	stats := func() (st engine.Stats) {
		if counts {
			st = b.Stats()
		}
		return st
	}
	of := func(f func(st engine.Stats) float64) func() float64 { return func() float64 { return f(stats()) } }
	r.gauges("Sequences that are computed.", func() float64 {
		if counts {
			return float64(stats().Running)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(s.inFlight)
	}, "vllm:num_requests_running", "sglang:num_running_reqs")
	r.gauges("Sequences that wait.", of(func(st engine.Stats) float64 { return float64(st.Waiting) }), "vllm:num_requests_waiting", "sglang:num_queue_reqs")
	r.gauges("Share of the cache's pages that running sequences hold, 0 to 1.", of(func(st engine.Stats) float64 {
		if st.Pages == 0 {
			return 0
		}
		return float64(st.Held) / float64(st.Pages)
	}), "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
	r.gauges("Tokens generated per second, lately.", m.speed.read, "sglang:gen_throughput")
	r.gauges("Runs of programs at work.", func() float64 { return float64(s.tenants.activeRuns()) }, "coppice_active_runs")
	r.gauges("Open websocket connections.", func() float64 { return float64(s.sockets.count()) }, "coppice_websockets")
	if !counts {
		return
	}
	r.gauges("Share of the tokens of prompts that were read from the cache, 0 to 1.", of(func(st engine.Stats) float64 {
		// What is computed are prompts and sampled tokens.
		if all := float64(st.Cached) + max(0, float64(st.Computed)-float64(st.Sampled)); all > 0 {
			return float64(st.Cached) / all
		}
		return 0
	}), "sglang:cache_hit_rate")
	r.gauges("Tokens in the pages that running sequences hold.", of(func(st engine.Stats) float64 { return float64(st.Held * cache.PageTokens) }), "sglang:num_used_tokens")
	r.gauges("Tokens that the cache has room for.", of(func(st engine.Stats) float64 { return float64(st.Pages * cache.PageTokens) }), "sglang:max_total_num_tokens")
	r.gauges("Pages that hold nothing.", of(func(st engine.Stats) float64 { return float64(st.Free) }), "coppice_kv_pages_free")
	r.gauges("Pages that running sequences hold.", of(func(st engine.Stats) float64 { return float64(st.Held) }), "coppice_kv_pages_held")
	r.gauges("Pages that are cached and held by nobody.", of(func(st engine.Stats) float64 { return float64(st.Evictable) }), "coppice_kv_pages_evictable")
	r.gauges("Pages that the second tier has room for.", of(func(st engine.Stats) float64 { return float64(st.TierPages) }), "coppice_kv_tier_pages")
	r.gauges("Pages that the second tier holds.", of(func(st engine.Stats) float64 { return float64(st.TierUsed) }), "coppice_kv_tier_pages_used")
	r.total("coppice_kv_tier_saved_total", "Pages that were evicted and went to the second tier.", of(func(st engine.Stats) float64 { return float64(st.TierSaved) }))
	r.total("coppice_kv_tier_loaded_total", "Pages that came back from the second tier as a request needed them.", of(func(st engine.Stats) float64 { return float64(st.TierLoaded) }))
	r.total("coppice_kv_tier_fetched_total", "Pages that came back from the second tier before a request needed them.", of(func(st engine.Stats) float64 { return float64(st.TierFetched) }))
	r.total("coppice_kv_tier_failed_total", "Pages that the second tier could not keep or did not give back.", of(func(st engine.Stats) float64 { return float64(st.TierFailed) }))
	r.gauges("Bytes of keys and values of a token.", of(func(st engine.Stats) float64 { return float64(st.PageBytes) / cache.PageTokens }), "coppice_kv_bytes_per_token")
	preempted := of(func(st engine.Stats) float64 { return float64(st.Preempted) })
	r.total("vllm:num_preemptions_total", "Times that a sequence lost its pages.", preempted)
	r.total("sglang:num_retracted_reqs_total", "Times that a sequence lost its pages.", preempted)
	r.total("coppice_engine_steps_total", "Forward passes of the engine.", of(func(st engine.Stats) float64 { return float64(st.Steps) }))
	pages := stats().Pages
	r.sizes("vllm:cache_config_info", "block_size", "num_gpu_blocks", pages)
	r.sizes("sglang:cache_config_info", "page_size", "num_pages", pages)
}

// throughput is a speed over the last seconds.
type throughput struct {
	now    func() time.Time
	mu     sync.Mutex
	second int64 // of the newest slot
	slots  [11]int
}

// move makes the slot of the present second the newest. t.mu is held.
func (t *throughput) move() {
	now := t.now().Unix()
	if now-t.second >= int64(len(t.slots)) {
		t.slots = [len(t.slots)]int{}
	} else {
		for s := t.second + 1; s <= now; s++ {
			t.slots[s%int64(len(t.slots))] = 0
		}
	}
	t.second = max(t.second, now)
}

func (t *throughput) add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.move()
	t.slots[t.second%int64(len(t.slots))] += n
}

// read is the mean of the whole seconds that are kept.
func (t *throughput) read() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.move()
	sum := 0
	for i, n := range t.slots {
		if i != int(t.second%int64(len(t.slots))) {
			sum += n
		}
	}
	return float64(sum) / float64(len(t.slots)-1)
}

// observation is one generation as it goes.
type observation struct {
	m           *metrics
	start, last time.Time
	any         bool
}

func (m *metrics) begin() *observation { return &observation{m: m, start: time.Now()} }

func (o *observation) delta(d backend.Delta) {
	now := time.Now()
	n := max(1, len(d.Tokens)) // a backend without ids sends a piece a token
	if !o.any {
		o.any = true
		observe(o.m.ttft, now.Sub(o.start).Seconds())
	} else {
		observe(o.m.itl, now.Sub(o.last).Seconds()/float64(n))
	}
	o.m.speed.add(n)
	o.last = now
}

func observe(hs []prometheus.Histogram, x float64) {
	for _, h := range hs {
		h.Observe(x)
	}
}

func add(cs []prometheus.Counter, n int) {
	for _, c := range cs {
		c.Add(float64(n))
	}
}

func (o *observation) finished(reason backend.FinishReason, u *backend.Usage) {
	observe(o.m.e2e, time.Since(o.start).Seconds())
	o.m.success.WithLabelValues(string(reason)).Inc()
	o.m.requests.Inc()
	o.m.promptSize.Observe(float64(u.PromptTokens))
	o.m.answerSize.Observe(float64(u.SampledTokens + u.ForcedTokens))
	o.m.count(u)
}

// times takes in when the passes of a generation were.
func (o *observation) times(x *steps) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.count == 0 {
		return
	}
	observe(o.m.queue, max(0, x.first.Sub(o.start).Seconds()))
	begun := x.first // of what follows the prompt
	if !x.prompt.IsZero() {
		begun = x.prompt
		o.m.prefill.Observe(x.prompt.Sub(x.first).Seconds())
	}
	o.m.decode.Observe(x.last.Sub(begun).Seconds())
	o.m.inference.Observe(x.last.Sub(x.first).Seconds())
}

// count adds what a generation or a scoring cost.
func (m *metrics) count(u *backend.Usage) {
	passes := countPasses(append([]backend.Span(nil), u.Passes...))
	add(m.prompt, u.PromptTokens)
	add(m.cached, u.CachedTokens)
	add(m.generated, u.SampledTokens+u.ForcedTokens)
	m.forced.Add(float64(u.ForcedTokens))
	m.computed.Add(float64(u.ComputedTokens))
	m.passes.Add(float64(passes))
	m.saved.Add(float64(max(0, u.Without.ForwardPasses-passes)))
}

// spent adds what is known of a generation that has no result.
func (m *metrics) spent(prompt, computed, made int) {
	add(m.prompt, prompt)
	add(m.generated, made)
	m.computed.Add(float64(computed))
}

func (o *observation) failed(err error) {
	status := statusOf(err)
	if status == statusClientGone {
		o.m.aborted.Inc()
	}
	o.m.failures.WithLabelValues(strconv.Itoa(status)).Inc()
}

// scored counts a request of /v1/score.
func (m *metrics) scored(err error) {
	status := http.StatusOK
	if err != nil {
		status = statusOf(err)
	}
	m.scores.WithLabelValues(strconv.Itoa(status)).Inc()
}

func statusOf(err error) int {
	if errors.Is(err, context.Canceled) {
		return statusClientGone
	}
	return toError(err).Status
}
