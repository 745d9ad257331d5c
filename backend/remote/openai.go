package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/shared"

	"github.com/coppice-run/coppice/backend"
)

// openAI makes calls on the two OpenAI routes through the client library. The
// services are made one by one, since the library's client reads keys and
// addresses from the environment, whatever host the key is for.
type openAI struct {
	*server
	chat       openai.ChatCompletionService
	completion openai.CompletionService
}

func newOpenAI(s *server) *openAI {
	o := &openAI{server: s}
	opts := []option.RequestOption{
		option.WithBaseURL(s.base.String()),
		option.WithHTTPClient(s.http),
		option.WithMaxRetries(0), // Retry is the one owner of retries
		option.WithMiddleware(func(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			return s.admit(req, next, asStream)
		}),
	}
	if s.key != "" {
		opts = append(opts, option.WithAPIKey(s.key))
	}
	o.chat = openai.NewChatCompletionService(opts...)
	o.completion = openai.NewCompletionService(opts...)
	return o
}

// admit lets only answers pass that a library's stream can read: it turns a
// failure into an [Error], a whole JSON answer into a stream if whole, which may
// be nil, can, and refuses everything else.
func (s *server) admit(req *http.Request, next func(*http.Request) (*http.Response, error), whole func([]byte) ([]byte, error)) (*http.Response, error) {
	resp, err := next(req)
	if err != nil {
		return nil, err
	}
	name := req.Method + " " + req.URL.Path
	if resp.StatusCode != http.StatusOK {
		return nil, s.failure(name, resp)
	}
	switch t := mediaType(resp.Header); {
	case t == "text/event-stream":
		return resp, nil
	case t == "application/json" && whole != nil:
		defer resp.Body.Close()
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return nil, s.fault(req.Context(), name, err)
		}
		stream, err := whole(b)
		if err != nil {
			return nil, s.wrongType(name, resp.Header, b)
		}
		resp.Header.Set("Content-Type", "text/event-stream")
		resp.Body = io.NopCloser(bytes.NewReader(stream))
		return resp, nil
	default:
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 256)) // what can be shown of it
		return nil, s.wrongType(name, resp.Header, b)
	}
}

// asStream rewrites the answer of a server that does not stream: each choice's
// message becomes a delta.
func asStream(b []byte) ([]byte, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(b, &top); err != nil {
		return nil, err
	}
	if raw, ok := top["choices"]; ok {
		var choices []map[string]json.RawMessage
		if err := json.Unmarshal(raw, &choices); err != nil {
			return nil, err
		}
		for _, c := range choices {
			if m, ok := c["message"]; ok {
				c["delta"] = m
				delete(c, "message")
			}
		}
		var err error
		if top["choices"], err = json.Marshal(choices); err != nil {
			return nil, err
		}
	} else if _, ok := top["error"]; !ok {
		return nil, errors.New("neither choices nor an error")
	}
	line, err := json.Marshal(top)
	if err != nil {
		return nil, err
	}
	return []byte("data: " + string(line) + "\n\ndata: [DONE]\n\n"), nil
}

// generateChat runs c on /chat/completions.
func (o *openAI) generateChat(ctx context.Context, c *call, col *collector) error {
	name := op(http.MethodPost, o.base, "chat/completions")
	stream := o.chat.NewStreaming(ctx, c.chatParams())
	defer stream.Close()
	for stream.Next() {
		chunk := stream.Current()
		if chunk.JSON.Usage.Valid() {
			setUsage(col, &chunk.Usage)
		}
		for i := range chunk.Choices {
			ch := &chunk.Choices[i]
			if ch.Index != 0 {
				continue
			}
			if ch.Delta.Refusal != "" {
				return o.refused(name, "the model refused: "+ch.Delta.Refusal)
			}
			var lps []float64
			for j := range ch.Logprobs.Content {
				lp := &ch.Logprobs.Content[j]
				if lp.JSON.Logprob.Valid() {
					lps = append(lps, max(lp.Logprob, Unlikely))
				} else {
					lps = append(lps, Unlikely)
				}
			}
			if !c.req.Logprobs {
				lps = nil
			}
			if err := col.add(ch.Delta.Content, nil, lps); err != nil {
				return o.diverged(name, err)
			}
			if ch.FinishReason != "" {
				if err := o.finish(name, col, ch.FinishReason, ch.JSON.ExtraFields["stop_reason"].Raw()); err != nil {
					return err
				}
			}
		}
	}
	return o.closeStream(ctx, name, stream.Err(), col)
}

// generateRaw runs c on /completions.
func (o *openAI) generateRaw(ctx context.Context, c *call, col *collector) error {
	name := op(http.MethodPost, o.base, "completions")
	stream := o.completion.NewStreaming(ctx, c.completionParams())
	defer stream.Close()
	for stream.Next() {
		chunk := stream.Current()
		if chunk.JSON.Usage.Valid() {
			setUsage(col, &chunk.Usage)
		}
		for i := range chunk.Choices {
			ch := &chunk.Choices[i]
			if ch.Index != 0 {
				continue
			}
			var lps []float64
			if c.req.Logprobs {
				lps = nullable(ch.Logprobs.JSON.TokenLogprobs.Raw())
			}
			if err := col.add(ch.Text, nil, lps); err != nil {
				return o.diverged(name, err)
			}
			if ch.FinishReason != "" {
				if err := o.finish(name, col, string(ch.FinishReason), ch.JSON.ExtraFields["stop_reason"].Raw()); err != nil {
					return err
				}
			}
		}
	}
	return o.closeStream(ctx, name, stream.Err(), col)
}

// closeStream judges how a stream ended. One that broke after the generation's
// end has lost nothing but perhaps the usage.
func (o *openAI) closeStream(ctx context.Context, name string, err error, col *collector) error {
	if col.done {
		return nil
	}
	var se *ssestream.StreamError
	switch {
	case errors.As(err, &se):
		return o.errorFromBody(name, 0, nil, se.Event.Data)
	case err != nil:
		return o.broken(ctx, name, err)
	case ctx.Err() != nil:
		return o.cancelled(ctx, name)
	}
	return o.cut(name)
}

// broken is the error of a stream that could not be read on.
func (s *server) broken(ctx context.Context, name string, err error) error {
	var (
		syn *json.SyntaxError
		typ *json.UnmarshalTypeError
	)
	if errors.As(err, &syn) || errors.As(err, &typ) {
		return s.garbled(name, "an event of the stream is not the JSON it should be: "+err.Error())
	}
	if errors.Is(err, errEventTooLong) || strings.Contains(err.Error(), "token too long") {
		e := s.garbled(name, errEventTooLong.Error())
		e.final = true
		return e
	}
	return s.fault(ctx, name, err)
}

// cut is the error of a stream that ended before the generation did.
func (s *server) cut(name string) *Error {
	return s.garbled(name, "the stream ended before the generation did")
}

func (s *server) refused(name, what string) *Error {
	return &Error{Op: name, Host: s.base.Host, Kind: backend.ErrInvalid, Message: s.clean(what), final: true,
		Hint: "change the prompt or use another model"}
}

func (s *server) diverged(name string, err error) *Error {
	return &Error{Op: name, Host: s.base.Host, Kind: backend.ErrUnavailable, Err: err, final: true}
}

// finish notes why the generation ended. matched is the server's stop_reason:
// a JSON string if a stop string ended it.
func (s *server) finish(name string, col *collector, reason, matched string) error {
	switch reason {
	case "length", "max_tokens":
		col.result.Finish = backend.FinishLength
	case "content_filter":
		return s.refused(name, "the server's content filter cut the answer")
	case "abort", "error":
		return s.garbled(name, "the server gave up on the generation")
	default: // stop, eos_token, tool_calls
		col.result.Finish = backend.FinishStop
		col.result.Matched = plainString(matched)
	}
	col.done = true
	return nil
}

// plainString returns raw if it is a JSON string, else "".
func plainString(raw string) string {
	var s string
	if json.Unmarshal([]byte(raw), &s) != nil {
		return ""
	}
	return s
}

// nullable reads a list of log-probabilities, null meaning minus infinity.
func nullable(raw string) []float64 {
	var list []*float64
	if json.Unmarshal([]byte(raw), &list) != nil {
		return nil
	}
	out := make([]float64, len(list))
	for i, p := range list {
		out[i] = Unlikely
		if p != nil {
			out[i] = max(*p, Unlikely)
		}
	}
	return out
}

func setUsage(col *collector, u *openai.CompletionUsage) {
	col.result.Usage = usage(int(u.PromptTokens), int(u.PromptTokensDetails.CachedTokens), int(u.CompletionTokens))
}

// chatParams writes c for /chat/completions.
func (c *call) chatParams() openai.ChatCompletionNewParams {
	r, s := c.req, &c.req.Sampling
	p := openai.ChatCompletionNewParams{
		Model:         c.model,
		Messages:      c.messages(),
		Temperature:   openai.Float(s.Temperature),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	if s.Temperature > 0 {
		p.Seed = openai.Int(int64(s.Seed &^ (1 << 63)))
		if s.TopP != 0 {
			p.TopP = openai.Float(s.TopP)
		}
	}
	if n := c.maxTokens(); n > 0 {
		if c.d.completionField {
			p.MaxCompletionTokens = openai.Int(int64(n))
		} else {
			p.MaxTokens = openai.Int(int64(n))
		}
	}
	if len(r.Stop) > 0 {
		p.Stop.OfStringArray = r.Stop
	}
	if r.Logprobs {
		p.Logprobs = openai.Bool(true)
	}
	if s.FrequencyPenalty != 0 {
		p.FrequencyPenalty = openai.Float(s.FrequencyPenalty)
	}
	if s.PresencePenalty != 0 {
		p.PresencePenalty = openai.Float(s.PresencePenalty)
	}
	if schema := c.wireSchema(); schema != nil {
		p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
			JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
				Name: "answer", Strict: openai.Bool(c.strict), Schema: schema,
			},
		}
	}
	x := c.extras()
	if open(c.turns) {
		x["continue_final_message"] = true
		x["add_generation_prompt"] = false
	}
	if len(x) > 0 {
		p.SetExtraFields(x)
	}
	return p
}

// completionParams writes c for /completions.
func (c *call) completionParams() openai.CompletionNewParams {
	r, s := c.req, &c.req.Sampling
	p := openai.CompletionNewParams{
		Model:         openai.CompletionNewParamsModel(c.model),
		Temperature:   openai.Float(s.Temperature),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	p.Prompt.OfString = openai.String(rawText(c.turns))
	if s.Temperature > 0 {
		p.Seed = openai.Int(int64(s.Seed &^ (1 << 63)))
		if s.TopP != 0 {
			p.TopP = openai.Float(s.TopP)
		}
	}
	if n := c.maxTokens(); n > 0 {
		p.MaxTokens = openai.Int(int64(n))
	}
	if len(r.Stop) > 0 {
		p.Stop.OfStringArray = r.Stop
	}
	if r.Logprobs {
		p.Logprobs = openai.Int(1)
	}
	if s.FrequencyPenalty != 0 {
		p.FrequencyPenalty = openai.Float(s.FrequencyPenalty)
	}
	if s.PresencePenalty != 0 {
		p.PresencePenalty = openai.Float(s.PresencePenalty)
	}
	x := c.extras()
	if c.maxTokens() == 0 {
		x["max_tokens"] = nil // vLLM: what is left; without the field it is 16
	}
	if schema := c.wireSchema(); schema != nil {
		x["response_format"] = map[string]any{
			"type":        "json_schema",
			"json_schema": map[string]any{"name": "answer", "strict": true, "schema": schema},
		}
	}
	if len(x) > 0 {
		p.SetExtraFields(x)
	}
	return p
}

// messages writes the turns as chat messages.
func (c *call) messages() []openai.ChatCompletionMessageParamUnion {
	out := make([]openai.ChatCompletionMessageParamUnion, 0, len(c.turns))
	for i, t := range c.turns {
		switch t.Role {
		case backend.System:
			out = append(out, openai.SystemMessage(t.Text()))
		case backend.Assistant:
			out = append(out, openai.AssistantMessage(t.Text()))
		case backend.Tool:
			if c.d.toolRole {
				out = append(out, openai.ToolMessage(t.Text(), "call_"+strconv.Itoa(i)))
			} else {
				out = append(out, openai.UserMessage("Tool result:\n"+t.Text()))
			}
		default:
			out = append(out, userMessage(t))
		}
	}
	return out
}

// userMessage writes a user's turn: one text, or parts where there are pictures.
func userMessage(t backend.Turn) openai.ChatCompletionMessageParamUnion {
	if !backend.HasImages([]backend.Turn{t}) {
		return openai.UserMessage(t.Text())
	}
	var parts []openai.ChatCompletionContentPartUnionParam
	for _, p := range t.Parts {
		switch n := len(parts); {
		case p.Image != "":
			parts = append(parts, openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: p.Image}))
		case n > 0 && parts[n-1].OfText != nil:
			parts[n-1].OfText.Text += p.Text
		default:
			parts = append(parts, openai.TextContentPart(p.Text))
		}
	}
	return openai.UserMessage(parts)
}

// extras writes what OpenAI's API does not have, under the dialect's names.
func (c *call) extras() map[string]any {
	r, s := c.req, &c.req.Sampling
	x := map[string]any{}
	if len(s.LogitBias) > 0 {
		x["logit_bias"] = biasByString(s.LogitBias)
	}
	if s.TopK != 0 {
		x["top_k"] = s.TopK
	}
	if s.MinP != 0 {
		x["min_p"] = s.MinP
	}
	if s.RepetitionPenalty != 0 && s.RepetitionPenalty != 1 {
		x["repetition_penalty"] = s.RepetitionPenalty
	}
	if r.MinTokens != 0 {
		x["min_tokens"] = r.MinTokens
	}
	if r.IgnoreEOS {
		x["ignore_eos"] = true
	}
	if r.Salt != "" {
		x["cache_salt"] = r.Salt
	}
	c.constrain(x)
	return x
}

// constrain adds the constraints that have a field of their own in the dialect.
func (c *call) constrain(x map[string]any) {
	k := &c.req.Constraint
	switch c.d.name {
	case "vllm":
		field, old, value := "", "", any(nil)
		switch {
		case k.Regex != "":
			field, old, value = "regex", "guided_regex", k.Regex
		case k.EBNF != "":
			field, old, value = "grammar", "guided_grammar", k.EBNF
		case len(k.Choices) > 0:
			field, old, value = "choice", "guided_choice", k.Choices
		default:
			return
		}
		if c.guided {
			x[old] = value
		} else {
			x["structured_outputs"] = map[string]any{field: value}
		}
	case "sglang":
		switch {
		case k.Regex != "":
			x["regex"] = k.Regex
		case k.EBNF != "":
			x["ebnf"] = k.EBNF
		case len(k.Choices) > 0:
			x["regex"] = choiceRegex(k.Choices)
		}
	}
}

func biasByString(bias map[backend.Token]float64) map[string]float64 {
	out := make(map[string]float64, len(bias))
	for id, v := range bias {
		out[strconv.Itoa(int(id))] = v
	}
	return out
}
