package serve

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// tracing makes the spans of OpenTelemetry's conventions for generative AI: a
// request or a run, under a run its nodes, and under what generates the forward
// passes that it took part in. Prompts and answers are in none of them.
type tracing struct {
	tracer trace.Tracer
	model  string
}

// Names of operations in those conventions.
const (
	opChat     = "chat"
	opText     = "text_completion"
	opScore    = "score"
	opTool     = "execute_tool"
	opWorkflow = "invoke_workflow"
)

// maxStepSpans bounds the spans of one generation; further passes share one.
const maxStepSpans = 256

func newTracing(p trace.TracerProvider, version, model string) *tracing {
	if p == nil {
		return nil
	}
	return &tracing{p.Tracer("github.com/coppice-run/coppice/runtime/serve", trace.WithInstrumentationVersion(version)), model}
}

// traced takes in whose trace a request belongs to.
func (s *Server) traced(next http.Handler) http.Handler {
	if s.traces == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func text(key, value string) attribute.KeyValue { return attribute.String(key, value) }
func number[T int | uint64](key string, n T) attribute.KeyValue {
	return attribute.Int64(key, int64(n))
}

// operation is what all spans of one have.
func (t *tracing) operation(op string, more ...attribute.KeyValue) []attribute.KeyValue {
	return append([]attribute.KeyValue{text("gen_ai.operation.name", op), text("gen_ai.provider.name", "coppice")}, more...)
}

// asked says what a request asks for.
func asked(j *job) []attribute.KeyValue {
	r, p := &j.base, &j.base.Sampling
	out := []attribute.KeyValue{
		text("gen_ai.response.id", j.id),
		attribute.Float64("gen_ai.request.temperature", p.Temperature),
		number("gen_ai.request.choice.count", j.n),
		attribute.Bool("coppice.constrained", !r.Constraint.IsZero()),
	}
	if r.MaxTokens > 0 {
		out = append(out, number("gen_ai.request.max_tokens", r.MaxTokens))
	}
	if p.TopP > 0 && p.TopP < 1 {
		out = append(out, attribute.Float64("gen_ai.request.top_p", p.TopP))
	}
	if p.TopK > 0 {
		out = append(out, number("gen_ai.request.top_k", p.TopK))
	}
	if len(r.Constraint.JSONSchema) > 0 {
		out = append(out, text("gen_ai.output.type", "json"))
	}
	return out
}

// used says what a generation cost.
func used(u *backend.Usage) []attribute.KeyValue {
	return []attribute.KeyValue{
		number("gen_ai.usage.input_tokens", u.PromptTokens),
		number("gen_ai.usage.output_tokens", u.SampledTokens+u.ForcedTokens),
		number("gen_ai.usage.cache_read.input_tokens", u.CachedTokens),
		number("coppice.forced_tokens", u.ForcedTokens),
		number("coppice.computed_tokens", u.ComputedTokens),
		number("coppice.forward_passes", countPasses(slices.Clone(u.Passes))),
	}
}

// request begins the span of a request; the result ends it.
func (t *tracing) request(ctx context.Context, j *job) (context.Context, func(choices []*choice, err error)) {
	if t == nil {
		return ctx, func([]*choice, error) {}
	}
	op := j.op
	if op == "" {
		op = opText
	}
	ctx, span := t.tracer.Start(ctx, op+" "+t.model, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(t.operation(op, text("gen_ai.request.model", t.model), text("gen_ai.response.model", t.model))...),
		trace.WithAttributes(asked(j)...))
	return ctx, func(choices []*choice, err error) {
		defer span.End()
		if err != nil {
			failedSpan(span, err)
			return
		}
		var reasons []string
		var sum backend.Usage
		for i, c := range choices {
			u := &c.result.Usage
			reasons = append(reasons, string(c.result.Finish))
			if i%j.n == 0 {
				sum.PromptTokens += u.PromptTokens
				sum.CachedTokens += u.CachedTokens
			}
			sum.SampledTokens += u.SampledTokens
			sum.ForcedTokens += u.ForcedTokens
			sum.ComputedTokens += u.ComputedTokens
			sum.Passes = append(sum.Passes, u.Passes...)
		}
		span.SetAttributes(attribute.StringSlice("gen_ai.response.finish_reasons", reasons))
		span.SetAttributes(used(&sum)...)
	}
}

// scoring begins the span of a request of /v1/score; the result ends it.
func (t *tracing) scoring(ctx context.Context, q *scoreRequest) (context.Context, func(u *backend.Usage, err error)) {
	if t == nil {
		return ctx, func(*backend.Usage, error) {}
	}
	ctx, span := t.tracer.Start(ctx, opScore+" "+t.model, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(t.operation(opScore,
		text("gen_ai.request.model", t.model), text("gen_ai.response.model", t.model), text("gen_ai.response.id", q.id),
		number("coppice.items", len(q.prompts)), number("coppice.labels", len(q.labels)))...))
	return ctx, func(u *backend.Usage, err error) {
		defer span.End()
		if err != nil {
			failedSpan(span, err)
		}
		span.SetAttributes(used(u)...)
	}
}

// failedSpan marks a span as failed. What the error says may hold a prompt's
// text, so only its class is kept.
func failedSpan(span trace.Span, err error) {
	e := toError(err)
	span.SetStatus(codes.Error, e.Type)
	span.SetAttributes(text("error.type", errorType(e)), number("http.response.status_code", e.Status))
}

func errorType(e *Error) string {
	if e.Code != "" {
		return e.Code
	}
	if e.Type != "" {
		return e.Type
	}
	return strconv.Itoa(e.Status)
}

// steps are the passes of one generation as they come, in times for the metrics
// and, if traced, in spans. It is used from the goroutine that computes and from
// the one that waits for it.
type steps struct {
	tracer trace.Tracer // nil without spans
	ctx    context.Context
	choice int // -1 where there is one only

	mu        sync.Mutex
	ended     bool
	count     int
	first     time.Time // start of the first pass
	prompt    time.Time // end of the last pass of the prompt
	last      time.Time // end of the last pass
	rest      int       // passes that have no span of their own
	restStart time.Time
}

func (x *steps) add(st backend.Step) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return
	}
	if x.count++; x.count == 1 {
		x.first = st.Start
	}
	x.last = st.End
	if st.Prompt {
		x.prompt = st.End
	}
	if x.tracer == nil {
		return
	}
	if x.count > maxStepSpans {
		if x.rest++; x.rest == 1 {
			x.restStart = st.Start
		}
		return
	}
	phase := "decode"
	if st.Prompt {
		phase = "prefill"
	}
	more := []attribute.KeyValue{
		text("coppice.phase", phase), number("coppice.pass", st.Pass), number("coppice.tokens", st.Tokens),
		number("coppice.batch.tokens", st.Batch), number("coppice.batch.sequences", st.Sequences),
	}
	if x.choice >= 0 {
		more = append(more, number("coppice.choice", x.choice))
	}
	_, span := x.tracer.Start(x.ctx, "engine step", trace.WithTimestamp(st.Start), trace.WithAttributes(more...))
	span.End(trace.WithTimestamp(st.End))
}

// end closes the books; passes that come later are not counted.
func (x *steps) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return
	}
	x.ended = true
	if x.tracer != nil && x.rest > 0 {
		_, span := x.tracer.Start(x.ctx, "engine steps", trace.WithTimestamp(x.restStart), trace.WithAttributes(number("coppice.steps", x.rest)))
		span.End(trace.WithTimestamp(x.last))
	}
}

// runTrace makes the spans of a run from its events. A nil one makes none.
type runTrace struct {
	t    *tracing
	ctx  context.Context
	span trace.Span

	mu    sync.Mutex
	nodes map[string]*nodeSpan // that are at work, by task
}

type nodeSpan struct {
	span  trace.Span
	steps *steps
}

// run begins the span of a run. It belongs to the trace of who asked for it.
func (t *tracing) run(ctx context.Context, parent trace.SpanContext, r *run) (context.Context, *runTrace) {
	if t == nil {
		return ctx, nil
	}
	ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	ctx, span := t.tracer.Start(ctx, opWorkflow+" "+r.program,
		trace.WithAttributes(t.operation(opWorkflow, text("gen_ai.workflow.name", r.program), text("coppice.run", r.id))...))
	return ctx, &runTrace{t: t, ctx: ctx, span: span, nodes: map[string]*nodeSpan{}}
}

// event follows the nodes.
func (x *runTrace) event(e *runtime.Event) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch e.Kind {
	case runtime.NodeStarted:
		if x.nodes[e.Task] != nil { // it is tried again
			return
		}
		name, op := opChat+" "+x.t.model, opChat
		more := []attribute.KeyValue{text("coppice.node", e.Node), text("coppice.task", e.Task), text("coppice.does", e.Does)}
		if e.Branch != "" {
			more = append(more, text("coppice.branch", e.Branch))
		}
		switch lang.Kind(e.Does) {
		case lang.KindCall:
			name, op = opTool+" "+e.Node, opTool
			more = append(more, text("gen_ai.tool.name", e.Node), text("gen_ai.tool.type", "function"))
		case lang.KindWait, lang.KindSleep: // no operation that the conventions know
			name, op = e.Does+" "+e.Node, ""
		default:
			more = append(more, text("gen_ai.request.model", x.t.model))
		}
		if op != "" {
			more = x.t.operation(op, more...)
		}
		ctx, span := x.t.tracer.Start(x.ctx, name, trace.WithTimestamp(e.Time), trace.WithAttributes(more...))
		x.nodes[e.Task] = &nodeSpan{span, &steps{tracer: x.t.tracer, ctx: ctx, choice: -1}}
	case runtime.NodeFinished, runtime.NodeCancelled:
		n := x.nodes[e.Task]
		if n == nil { // from a journal
			return
		}
		delete(x.nodes, e.Task)
		n.steps.end()
		switch {
		case e.Kind == runtime.NodeCancelled:
			n.span.SetAttributes(text("error.type", "cancelled"))
		case e.Error != "":
			n.span.SetStatus(codes.Error, "failed")
			n.span.SetAttributes(text("error.type", "node_failed"))
		}
		if e.Cost != nil {
			n.span.SetAttributes(used(e.Cost)...)
		}
		if e.Finish != "" {
			n.span.SetAttributes(attribute.StringSlice("gen_ai.response.finish_reasons", []string{string(e.Finish)}))
		}
		n.span.End(trace.WithTimestamp(e.Time))
	}
}

// step tells the node whose request a pass was of.
func (x *runTrace) step(st backend.Step) {
	x.mu.Lock()
	n := x.nodes[st.Request]
	x.mu.Unlock()
	if n != nil {
		n.steps.add(st)
	}
}

// end ends the run's span, and those of nodes that never ended.
func (x *runTrace) end(status string, err error) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, n := range x.nodes {
		n.steps.end()
		n.span.End()
	}
	clear(x.nodes)
	x.span.SetAttributes(text("coppice.status", status))
	if err != nil {
		failedSpan(x.span, err)
	}
	x.span.End()
}
