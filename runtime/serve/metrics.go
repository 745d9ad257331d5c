package serve

import (
	"context"
	"errors"
	"net/http"
	"strconv"
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
	ttft, itl, e2e                  []prometheus.Histogram
	forced, computed, passes, saved prometheus.Counter
	refused                         prometheus.Counter
	success                         *prometheus.CounterVec
	failures                        *prometheus.CounterVec
	runs                            *prometheus.CounterVec
}

// statser is a backend that counts its work; our engine is one.
type statser interface{ Stats() engine.Stats }

var (
	firstBuckets = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160}
	tokenBuckets = []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5}
	wholeBuckets = []float64{.01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480}
)

func newMetrics(s *Server) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	labels := prometheus.Labels{"model_name": s.cfg.Names[0]}
	reg := prometheus.WrapRegistererWith(labels, m.registry)
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string) []prometheus.Counter {
		return []prometheus.Counter{counter("vllm:"+name, help), counter("sglang:"+name, help)}
	}
	histograms := func(name, help string, buckets []float64) (out []prometheus.Histogram) {
		for _, prefix := range []string{"vllm:", "sglang:"} {
			h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets})
			reg.MustRegister(h)
			out = append(out, h)
		}
		return out
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		reg.MustRegister(v)
		return v
	}
	gauge := func(name, help string, f func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
	m.prompt = counters("prompt_tokens_total", "Tokens of prompts.")
	m.generated = counters("generation_tokens_total", "Tokens generated.")
	m.cached = []prometheus.Counter{
		counter("vllm:prefix_cache_hits_total", "Tokens of prompts that were read from the cache."),
		counter("sglang:cached_tokens_total", "Tokens of prompts that were read from the cache."),
	}
	queries := counter("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked up in the cache.")
	m.prompt = append(m.prompt, queries)
	m.ttft = histograms("time_to_first_token_seconds", "Time from a request to its first token.", firstBuckets)
	m.itl = histograms("inter_token_latency_seconds", "Time between tokens.", tokenBuckets)
	m.e2e = histograms("e2e_request_latency_seconds", "Time from a request to its end.", wholeBuckets)
	m.success = vec("vllm:request_success_total", "Generations that ended well, by reason.", "finished_reason")
	m.failures = vec("coppice_request_failures_total", "Generations that failed, by status.", "status")
	m.runs = vec("coppice_runs_total", "Runs of programs that ended, by status.", "status")
	m.forced = counter("coppice_forced_tokens_total", "Tokens that a constraint gave without a forward pass of their own.")
	m.computed = counter("coppice_computed_tokens_total", "Tokens that went through a forward pass.")
	m.passes = counter("coppice_forward_passes_total", "Forward passes, counted for each request that took part.")
	m.saved = counter("coppice_forward_passes_saved_total", "Forward passes that jumping over forced tokens saved.")
	m.refused = counter("coppice_requests_refused_total", "Requests refused because the queue was full.")

	stats := func() (st engine.Stats, ok bool) {
		b, ok := s.be.(statser)
		if ok {
			st = b.Stats()
		}
		return st, ok
	}
	running := func() float64 {
		if st, ok := stats(); ok {
			return float64(st.Running)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(s.inFlight)
	}
	waiting := func() float64 { st, _ := stats(); return float64(st.Waiting) }
	used := func() float64 {
		st, ok := stats()
		if !ok || st.Pages == 0 {
			return 0
		}
		return float64(st.Held) / float64(st.Pages)
	}
	gauge("vllm:num_requests_running", "Sequences that are computed.", running)
	gauge("sglang:num_running_reqs", "Sequences that are computed.", running)
	gauge("vllm:num_requests_waiting", "Sequences that wait.", waiting)
	gauge("sglang:num_queue_reqs", "Sequences that wait.", waiting)
	gauge("vllm:kv_cache_usage_perc", "Share of the cache's pages that running sequences hold, 0 to 1.", used)
	gauge("sglang:token_usage", "Share of the cache's pages that running sequences hold, 0 to 1.", used)
	gauge("coppice_active_runs", "Runs of programs at work.", func() float64 { return float64(s.tenants.activeRuns()) })
	gauge("coppice_websockets", "Open websocket connections.", func() float64 { return float64(s.sockets.count()) })
	if st, ok := stats(); ok {
		gauge("coppice_kv_pages_free", "Pages that hold nothing.", func() float64 { st, _ := stats(); return float64(st.Free) })
		gauge("coppice_kv_pages_held", "Pages that running sequences hold.", func() float64 { st, _ := stats(); return float64(st.Held) })
		gauge("coppice_kv_pages_evictable", "Pages that are cached and held by nobody.", func() float64 { st, _ := stats(); return float64(st.Evictable) })
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "vllm:num_preemptions_total", Help: "Times that a sequence lost its pages."},
			func() float64 { st, _ := stats(); return float64(st.Preempted) }))
		info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "vllm:cache_config_info", Help: "Size of the cache, in its labels."}, []string{"block_size", "num_gpu_blocks"})
		reg.MustRegister(info)
		info.WithLabelValues(strconv.Itoa(cache.PageTokens), strconv.Itoa(st.Pages)).Set(1)
	}
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	return m
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
	if !o.any {
		o.any = true
		observe(o.m.ttft, now.Sub(o.start).Seconds())
	} else if n := len(d.Tokens); n > 0 {
		observe(o.m.itl, now.Sub(o.last).Seconds()/float64(n))
	}
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

func (o *observation) finished(r *backend.Result) {
	observe(o.m.e2e, time.Since(o.start).Seconds())
	o.m.success.WithLabelValues(string(r.Finish)).Inc()
	u := r.Usage
	passes := countPasses(append([]backend.Span(nil), u.Passes...))
	o.m.count(u.PromptTokens, u.CachedTokens, u.SampledTokens+u.ForcedTokens, u.ForcedTokens, u.ComputedTokens, passes, u.Without.ForwardPasses)
}

func (m *metrics) count(prompt, cached, generated, forced, computed, passes, without int) {
	add(m.prompt, prompt)
	add(m.cached, cached)
	add(m.generated, generated)
	m.forced.Add(float64(forced))
	m.computed.Add(float64(computed))
	m.passes.Add(float64(passes))
	m.saved.Add(float64(max(0, without-passes)))
}

func (o *observation) failed(err error) {
	status := toError(err).Status
	if errors.Is(err, context.Canceled) {
		status = statusClientGone
	}
	o.m.failures.WithLabelValues(strconv.Itoa(status)).Inc()
}
