package remote

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"github.com/coppice-run/coppice/backend"
)

// messagesVersion is the version of the Messages API that is spoken.
const messagesVersion = "2023-06-01"

// leastMaxTokens is the limit on generated tokens where neither the request nor the
// server says one: the API wants a number, and every model takes this one.
const leastMaxTokens = 4096

// newMessages returns the Messages API of a server, through the client library. The
// library's client is not used, since it reads keys and addresses from the environment,
// whatever host the key is for.
func newMessages(s *server) *anthropic.MessageService {
	m := anthropic.NewMessageService(
		option.WithBaseURL(s.root.String()),
		option.WithHTTPClient(s.http),
		option.WithMaxRetries(0), // Retry is the one owner of retries
		option.WithMiddleware(func(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			s.authorize(req)
			return s.admit(req, next, nil)
		}),
	)
	return &m
}

// oldClaude are the models from before structured outputs.
var oldClaude = regexp.MustCompile(`^claude-(?:instant|[23]\b|(?:opus|sonnet)-4(?:-0|-2025\d{4})?$)`)

// prefilled are the models that go on with an open assistant turn; later ones refuse it.
var prefilled = regexp.MustCompile(`^claude-(?:instant|[23]\b|(?:opus|sonnet|haiku)-4(?:-[015])?(?:-2025\d{4})?$)`)

// anthropicModel returns the dialect for a model: what is missing is known beforehand.
func anthropicModel(model string) *dialect {
	d := *dialects["anthropic"]
	d.continues = prefilled.MatchString(model)
	if oldClaude.MatchString(model) {
		d.jsonSchema, d.choices = retried, retried
	}
	return &d
}

// probeAnthropic asks for the model, which Anthropic's own service finds by each of its
// names, and says how long its contexts and answers are.
func (b *Backend) probeAnthropic(ctx context.Context) error {
	if b.info.Model == "" {
		return invalidf("name the model: anthropic+https://api.anthropic.com?model=NAME")
	}
	var m struct {
		Input  int `json:"max_input_tokens"`
		Output int `json:"max_tokens"`
	}
	if err := b.srv.get(ctx, b.srv.base, "models/"+b.info.Model, &m); err != nil {
		return err
	}
	if b.info.ContextLength == 0 {
		b.info.ContextLength = m.Input
	}
	b.longest = m.Output
	return nil
}

// authorize puts the key into a request as the dialect wants it.
func (s *server) authorize(req *http.Request) {
	if s.dialect.name == "anthropic" {
		req.Header.Set("Anthropic-Version", messagesVersion)
		if s.key != "" {
			req.Header.Set("X-Api-Key", s.key)
		}
		if s.isAnthropic() {
			return
		}
	}
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
}

// planAnthropic checks what only this dialect asks of a prompt.
func (b *Backend) planAnthropic(c *call) error {
	if t := c.req.Sampling.Temperature; t > 1 {
		return unsupportedf("the anthropic dialect has temperatures from 0 to 1, not %g", t)
	}
	notes := func(note, missing string) error {
		if b.opts.NoEmulation {
			return unsupportedf("the anthropic dialect %s and emulation is off", missing)
		}
		c.notes = append(c.notes, note)
		return nil
	}
	first := slices.IndexFunc(c.turns, func(t backend.Turn) bool { return t.Role != backend.System })
	switch {
	case first < 0:
		c.turns = append(slices.Clip(c.turns), text(backend.User, goOn))
		if err := notes("no user turn: one was put in", "needs a user turn"); err != nil {
			return err
		}
	case c.turns[first].Role == backend.Assistant:
		return unsupportedf("the anthropic dialect takes no prompt that begins with an assistant turn; put a user turn before it")
	case slices.ContainsFunc(c.turns[first:], func(t backend.Turn) bool { return t.Role == backend.System }):
		if err := notes("system turns after the first user turn: sent as user turns", "takes system turns at the beginning only"); err != nil {
			return err
		}
	}
	if open(c.turns) && strings.TrimRight(c.turns[len(c.turns)-1].Text(), " \t\r\n") != c.turns[len(c.turns)-1].Text() {
		return unsupportedf("the anthropic dialect goes on with no assistant turn that ends in white space; leave it out, the model writes it")
	}
	if slices.ContainsFunc(c.req.Stop, blank) {
		if err := notes("stop: strings of white space are looked for here", "takes no stop strings of white space"); err != nil {
			return err
		}
	}
	if b.plainSampling.Load() && c.samples() {
		return notes(plainNote, "(or this model of it) takes no sampling options")
	}
	return nil
}

// plainNote reports that a model draws as it likes.
const plainNote = "temperature, top_p, top_k: the model takes none"

func blank(s string) bool { return strings.TrimSpace(s) == "" }

// samples reports whether sampling options are sent, which greedy needs as well.
func (c *call) samples() bool {
	s := &c.req.Sampling
	return s.Temperature != 1 || s.TopP != 0 || s.TopK != 0
}

// generateAnthropic runs c on /v1/messages. Models that take no sampling options say so;
// then they are left out, and the result says that.
func (b *Backend) generateAnthropic(ctx context.Context, c *call, col *collector) error {
	plain := b.plainSampling.Load()
	err := b.streamMessages(ctx, c, col, plain)
	var e *Error
	if plain || !c.samples() || b.opts.NoEmulation || !errors.As(err, &e) || !refusesSampling(e) {
		return err
	}
	b.plainSampling.Store(true)
	if !slices.Contains(c.notes, plainNote) {
		c.notes = append(slices.Clip(c.notes), plainNote)
	}
	return b.streamMessages(ctx, c, col, true)
}

// refusesSampling reports whether a server's words are that the model has no temperature,
// and not that a value is wrong.
func refusesSampling(e *Error) bool {
	msg := strings.ToLower(e.Message)
	return e.Status == http.StatusBadRequest &&
		(strings.Contains(msg, "temperature") || strings.Contains(msg, "top_p") || strings.Contains(msg, "top_k")) &&
		(strings.Contains(msg, "deprecated") || strings.Contains(msg, "not supported") || strings.Contains(msg, "does not support") || strings.Contains(msg, "not permitted"))
}

func (b *Backend) streamMessages(ctx context.Context, c *call, col *collector, plain bool) error {
	name := op(http.MethodPost, b.srv.base, "messages")
	stream := b.messages.NewStreaming(ctx, c.messageParams(b.longest, plain))
	defer stream.Close()
	col.cuts = slices.ContainsFunc(c.req.Stop, blank)
	var in, cached, out, pieces int64
	count := func(input, read, written, output int64) {
		in, cached, out = max(in, input+read+written), max(cached, read), max(out, output)
		col.result.Usage = usage(int(in), int(cached), int(out))
	}
	for stream.Next() {
		e := stream.Current()
		piece := ""
		switch e.Type {
		case "message_start":
			u := &e.Message.Usage
			count(u.InputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens, u.OutputTokens)
		case "content_block_start":
			piece = e.ContentBlock.Text // thoughts and calls are blocks of other kinds
		case "content_block_delta":
			piece = e.Delta.Text
		case "message_delta":
			u := &e.Usage
			count(u.InputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens, u.OutputTokens)
			switch reason := string(e.Delta.StopReason); reason {
			case "":
			case "refusal":
				return b.srv.refused(name, "the model refused: "+e.Delta.StopDetails.Explanation)
			case "model_context_window_exceeded":
				col.result.Finish, col.done = backend.FinishLength, true
			case "pause_turn":
				return b.srv.garbled(name, "the server paused the turn, which only its own tools make it do")
			default: // end_turn, stop_sequence, max_tokens, tool_use
				if err := b.srv.finish(name, col, reason, ""); err != nil {
					return err
				}
				col.result.Matched = e.Delta.StopSequence
			}
		case "message_stop":
			if col.done {
				return nil
			}
		}
		if piece == "" {
			continue
		}
		if err := col.add(piece, nil, nil); err != nil {
			return b.srv.diverged(name, err)
		}
		pieces++ // of a token at least; a stream that is left early never tells
		if col.done {
			count(0, 0, 0, pieces)
			return nil
		}
	}
	if col.done {
		return nil
	}
	err := stream.Err()
	var api *anthropic.Error
	switch {
	case errors.As(err, &api): // an event of the stream
		raw := []byte(api.RawJSON())
		_, typ, _, _ := readErrorBody(raw)
		return b.srv.errorFromBody(name, statusOf[typ], nil, raw)
	case err != nil:
		return b.srv.broken(ctx, name, err)
	case ctx.Err() != nil:
		return b.srv.cancelled(ctx, name)
	}
	return b.srv.cut(name)
}

// statusOf is the status that an error would have had before the stream began.
var statusOf = map[string]int{
	"invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
	"not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "api_error": 500,
	"timeout_error": 504, "overloaded_error": 529,
}

// messageParams writes c for /v1/messages. longest is the longest answer of the model, 0
// if that is not known; plain leaves out how tokens are drawn.
func (c *call) messageParams(longest int, plain bool) anthropic.MessageNewParams {
	r, s := c.req, &c.req.Sampling
	p := anthropic.MessageNewParams{Model: c.model, MaxTokens: int64(c.maxTokens())}
	if p.MaxTokens == 0 {
		if p.MaxTokens = leastMaxTokens; longest > 0 {
			p.MaxTokens = int64(longest)
		}
	}
	if !plain {
		p.Temperature = anthropic.Float(s.Temperature)
		if s.Temperature > 0 && s.TopP != 0 {
			p.TopP = anthropic.Float(s.TopP)
		}
		if s.TopK != 0 {
			p.TopK = anthropic.Int(int64(s.TopK))
		}
	}
	for _, stop := range r.Stop {
		if !blank(stop) {
			p.StopSequences = append(p.StopSequences, stop)
		}
	}
	if schema := c.wireSchema(); schema != nil {
		// As it stands: a map would lose the order of its keys.
		p.OutputConfig.Format = param.Override[anthropic.JSONOutputFormatParam](map[string]any{"type": "json_schema", "schema": schema})
	}
	for i, t := range c.turns {
		blocks := contentBlocks(t)
		if len(blocks) == 0 {
			continue // the API takes no empty ones
		}
		if r.Hints.Reused && i == len(c.turns)-1 {
			markCached(&blocks[len(blocks)-1])
		}
		switch {
		case t.Role == backend.System && len(p.Messages) == 0:
			for _, b := range blocks {
				p.System = append(p.System, *b.OfText)
			}
		case t.Role == backend.Assistant:
			p.Messages = append(p.Messages, anthropic.NewAssistantMessage(blocks...))
		default:
			p.Messages = append(p.Messages, anthropic.NewUserMessage(blocks...))
		}
	}
	return p
}

// markCached asks the server to keep the prompt up to a block: a later request is known
// to begin with it. What is not read again is cheaper without.
func markCached(b *anthropic.ContentBlockParamUnion) {
	if c := b.GetCacheControl(); c != nil {
		*c = anthropic.NewCacheControlEphemeralParam()
	}
}

// contentBlocks writes a turn: texts that follow each other as one.
func contentBlocks(t backend.Turn) []anthropic.ContentBlockParamUnion {
	var out []anthropic.ContentBlockParamUnion
	var b strings.Builder
	flush := func() {
		if s := b.String(); !blank(s) {
			out = append(out, anthropic.NewTextBlock(s))
		}
		b.Reset()
	}
	if t.Role == backend.Tool {
		b.WriteString("Tool result:\n")
	}
	for _, p := range t.Parts {
		if p.Image == "" {
			b.WriteString(p.Text)
			continue
		}
		flush()
		if kind, data, ok := dataURL(p.Image); ok {
			out = append(out, anthropic.NewImageBlockBase64(kind, data))
		} else {
			out = append(out, anthropic.NewImageBlock(anthropic.URLImageSourceParam{URL: p.Image}))
		}
	}
	flush()
	return out
}

// dataURL returns the type and the base64 of a picture that is in its URL.
func dataURL(url string) (kind, data string, ok bool) {
	rest, ok := strings.CutPrefix(url, "data:")
	if !ok {
		return "", "", false
	}
	head, data, ok := strings.Cut(rest, ",")
	kind, ok64 := strings.CutSuffix(head, ";base64")
	return kind, data, ok && ok64
}

// outputFormat lists the keywords that structured outputs of the Messages API enforce.
// Schemas with others are refused there.
var outputFormat = []string{"$schema", "title", "description", "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "default", "format"}

// isOutputSchema reports whether a schema is one that the Messages API enforces: its
// keywords only, and no object with keys besides those named.
func isOutputSchema(schema []byte) bool {
	var root map[string]any
	if !depthOK(schema) || json.Unmarshal(schema, &root) != nil || root["type"] != "object" {
		return false
	}
	var fits func(v any) bool
	fits = func(v any) bool {
		node, ok := v.(map[string]any)
		if !ok {
			return false
		}
		for k, x := range node {
			if !slices.Contains(outputFormat, k) {
				return false
			}
			switch k {
			case "properties":
				props, ok := x.(map[string]any)
				if !ok {
					return false
				}
				for _, p := range props {
					if !fits(p) {
						return false
					}
				}
			case "items":
				if !fits(x) {
					return false
				}
			case "anyOf":
				list, ok := x.([]any)
				if !ok || slices.ContainsFunc(list, func(y any) bool { return !fits(y) }) {
					return false
				}
			}
		}
		_, isObject := node["properties"]
		return !isObject && node["type"] != "object" || node["additionalProperties"] == false
	}
	return fits(root)
}
