package serve

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
)

// tracedFor is serveFor with spans.
func tracedFor(t *testing.T, be backend.Backend) (*client, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	return serveFor(t, be, func(c *Config) { c.Traces = p }), spans
}

func attributes(s sdktrace.ReadOnlySpan) map[attribute.Key]any {
	out := map[attribute.Key]any{}
	for _, kv := range s.Attributes() {
		out[kv.Key] = kv.Value.AsInterface()
	}
	return out
}

// named returns the spans of a name.
func named(spans []sdktrace.ReadOnlySpan, name string) (out []sdktrace.ReadOnlySpan) {
	for _, s := range spans {
		if s.Name() == name {
			out = append(out, s)
		}
	}
	return out
}

func TestTraceOfARequest(t *testing.T) {
	c, rec := tracedFor(t, newEngine(t, &chain{next: alphabet}))
	const remote = "4bf92f3577b34da6a3ce929d0e0e4736"
	resp := c.do("POST", "/v1/completions", tree{"prompt": "a", "max_tokens": 3, "temperature": 0, "request_id": "mine"}, "traceparent", "00-"+remote+"-00f067aa0ba902b7-01")
	resp.Body.Close()
	spans := rec.Ended()
	all := named(spans, "text_completion chain")
	if len(all) != 1 {
		t.Fatal(spans)
	}
	root := all[0]
	a := attributes(root)
	if root.SpanContext().TraceID().String() != remote || !root.Parent().IsRemote() {
		t.Error("the request is not in the client's trace")
	}
	for k, want := range map[attribute.Key]any{
		"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "coppice", "gen_ai.request.model": "chain", "gen_ai.response.id": "cmpl-mine",
		"gen_ai.request.max_tokens": int64(3), "gen_ai.usage.input_tokens": int64(1), "gen_ai.usage.output_tokens": int64(3), "gen_ai.response.finish_reasons": []string{"length"},
	} {
		if fmt.Sprint(a[k]) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", k, a[k], want)
		}
	}
	steps := named(spans, "engine step")
	if len(steps) != 3 {
		t.Fatalf("%d steps", len(steps))
	}
	for i, s := range steps {
		phase := "decode"
		if i == 0 {
			phase = "prefill"
		}
		if s.Parent().SpanID() != root.SpanContext().SpanID() || attributes(s)["coppice.phase"] != phase || s.EndTime().Before(s.StartTime()) {
			t.Errorf("step %d: %v", i, attributes(s))
		}
	}
}

// A run has its nodes below it, and they have the passes of the engine.
func TestTraceOfARun(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c, rec := tracedFor(t, e)
	c.ok("/v1/programs", strings.ReplaceAll(looks, "max_tokens: 60", "max_tokens: 4"))
	got := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "a secret"}, "wait": true})
	c.srv.Close() // the span of the run ends after its answer
	spans := rec.Ended()
	runs := named(spans, "invoke_workflow looks")
	if len(runs) != 1 || attributes(runs[0])["coppice.run"] != got["id"] || attributes(runs[0])["coppice.status"] != "finished" {
		t.Fatal(got, runs)
	}
	nodes := named(spans, "chat chain")
	if len(nodes) != 3 {
		t.Fatalf("%d nodes", len(nodes))
	}
	below := map[string]int{}
	for _, s := range named(spans, "engine step") {
		below[s.Parent().SpanID().String()]++
	}
	branches := 0
	for _, n := range nodes {
		a := attributes(n)
		if a["coppice.branch"] != nil {
			branches++
		}
		if n.Parent().SpanID() != runs[0].SpanContext().SpanID() || below[n.SpanContext().SpanID().String()] != 4 || a["gen_ai.usage.output_tokens"] != int64(4) {
			t.Errorf("%v: %d steps, %v", a["coppice.node"], below[n.SpanContext().SpanID().String()], a)
		}
	}
	if branches != 2 {
		t.Errorf("%d nodes in branches", branches)
	}
	for _, s := range spans {
		if text := fmt.Sprint(s.Name(), s.Attributes(), s.Events(), s.Status()); strings.Contains(text, "secret") {
			t.Errorf("the prompt is in a span: %s", text)
		}
	}
}

func TestTraceOfAFailure(t *testing.T) {
	m := puppet.New()
	m.OnRegexp("boom").Fail(backend.ErrUnavailable)
	m.OnAny().Reply("x")
	c, rec := tracedFor(t, m)
	c.post("/v1/chat/completions", ask("boom"))
	c.ok("/v1/chat/completions", ask("fine", "n", 2))
	spans := named(rec.Ended(), "chat puppet")
	if len(spans) != 2 || spans[0].Status().Code != codes.Error || attributes(spans[0])["error.type"] != "unavailable" || spans[1].Status().Code == codes.Error {
		t.Error(spans)
	}
}

// However many passes a generation takes, its spans are bounded.
func TestStepsAreBounded(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
	x := &steps{tracer: p.Tracer("t"), ctx: t.Context(), choice: -1}
	at := time.Unix(0, 0)
	for i := range maxStepSpans + 50 {
		x.add(backend.Step{Start: at.Add(time.Duration(i)), End: at.Add(time.Duration(i + 1))})
	}
	x.end()
	x.add(backend.Step{})
	rest := named(rec.Ended(), "engine steps")
	if n := len(rec.Ended()); n != maxStepSpans+1 || len(rest) != 1 || attributes(rest[0])["coppice.steps"] != int64(50) || rest[0].EndTime().Sub(rest[0].StartTime()) != 50 {
		t.Error(n, rest)
	}
}

func TestThroughput(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	x := &throughput{now: clock.Now}
	for range 10 {
		x.add(7)
		x.add(3)
		clock.add(time.Second)
	}
	if v := x.read(); v != 10 {
		t.Errorf("%v tokens per second", v)
	}
	clock.add(5 * time.Second)
	if v := x.read(); v != 5 {
		t.Errorf("%v tokens per second", v)
	}
	clock.add(time.Hour)
	if v := x.read(); v != 0 {
		t.Errorf("%v tokens per second", v)
	}
}
