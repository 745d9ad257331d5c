package remote

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/coppice-run/coppice/backend"
)

// sglangRequest is the body of SGLang's /generate. Text and InputIDs exclude
// each other.
type sglangRequest struct {
	Text            any            `json:"text,omitempty"`      // string or []string
	InputIDs        any            `json:"input_ids,omitempty"` // []Token
	Sampling        map[string]any `json:"sampling_params"`
	Stream          bool           `json:"stream"`
	ReturnLogprob   bool           `json:"return_logprob,omitempty"`
	LogprobStartLen *int           `json:"logprob_start_len,omitempty"`
	CacheSalt       string         `json:"cache_salt,omitempty"`
	RID             string         `json:"rid,omitempty"`
}

// sglangAnswer is an answer of /generate, or one event of its stream.
type sglangAnswer struct {
	Text      string          `json:"text"`
	OutputIDs []backend.Token `json:"output_ids"`
	Meta      struct {
		ID               string          `json:"id"`
		FinishReason     json.RawMessage `json:"finish_reason"`
		PromptTokens     int             `json:"prompt_tokens"`
		CompletionTokens int             `json:"completion_tokens"`
		CachedTokens     int             `json:"cached_tokens"`
		Input            []sglangLogprob `json:"input_token_logprobs"`
		Output           []sglangLogprob `json:"output_token_logprobs"`
	} `json:"meta_info"`
	Error json.RawMessage `json:"error"`
}

// sglangLogprob is [logprob or null, id, text or null].
type sglangLogprob struct {
	Logprob float64
	ID      backend.Token
}

func (l *sglangLogprob) UnmarshalJSON(b []byte) error {
	var p *float64
	rest := []any{&p, &l.ID}
	if err := json.Unmarshal(b, &rest); err != nil {
		return err
	}
	l.Logprob = Unlikely
	if p != nil {
		l.Logprob = max(*p, Unlikely)
	}
	return nil
}

// sglangFinish is meta_info.finish_reason of a finished generation.
type sglangFinish struct {
	Type       string          `json:"type"`
	Matched    json.RawMessage `json:"matched"`
	Message    string          `json:"message"`
	StatusCode int             `json:"status_code"`
}

// sglangSampling writes the limits, sampling and constraint of c.
func (c *call) sglangSampling() map[string]any {
	r, s := c.req, &c.req.Sampling
	p := map[string]any{"temperature": s.Temperature}
	set := func(name string, used bool, v any) {
		if used {
			p[name] = v
		}
	}
	if s.Temperature > 0 {
		set("top_p", s.TopP != 0, s.TopP)
		set("top_k", s.TopK != 0, s.TopK)
		set("min_p", s.MinP != 0, s.MinP)
		set("sampling_seed", c.d.seed, int64(s.Seed&^(1<<63)))
	}
	set("max_new_tokens", r.MaxTokens > 0, r.MaxTokens)
	set("min_new_tokens", r.MinTokens != 0, r.MinTokens)
	set("stop", len(r.Stop) > 0, r.Stop)
	set("ignore_eos", r.IgnoreEOS, true)
	set("repetition_penalty", s.RepetitionPenalty != 0, s.RepetitionPenalty)
	set("frequency_penalty", s.FrequencyPenalty != 0, s.FrequencyPenalty)
	set("presence_penalty", s.PresencePenalty != 0, s.PresencePenalty)
	if len(s.LogitBias) > 0 {
		p["logit_bias"] = biasByString(s.LogitBias)
	}
	if k := &r.Constraint; len(k.JSONSchema) > 0 {
		p["json_schema"] = string(k.JSONSchema)
	}
	c.constrain(p)
	return p
}

// generateSGLang runs a raw prompt on /generate.
func (b *Backend) generateSGLang(ctx context.Context, c *call, col *collector) error {
	name := op(http.MethodPost, b.srv.root, "generate")
	in := sglangRequest{Sampling: c.sglangSampling(), Stream: true, ReturnLogprob: c.req.Logprobs, CacheSalt: c.req.Salt}
	ids, err := b.sglangPrompt(ctx, c.turns, c.req.MaxTokens == 0)
	if err != nil {
		return err
	}
	if c.req.MaxTokens == 0 {
		// The server refuses more than is left, and has a limit of 128 if it is
		// given none.
		in.Sampling["max_new_tokens"] = max(1, b.info.ContextLength-len(ids)-1)
	}
	if ids != nil {
		in.InputIDs = ids
	} else {
		in.Text = rawText(c.turns)
	}
	resp, err := b.srv.send(ctx, http.MethodPost, b.srv.root, "generate", in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()

	var seen sglangSeen
	take := func(data []byte) error {
		var a sglangAnswer
		if err := json.Unmarshal(data, &a); err != nil {
			return b.srv.garbled(name, "an event of the stream is not the JSON it should be: "+err.Error())
		}
		if len(a.Error) > 0 && string(a.Error) != "null" {
			return b.srv.errorFromBody(name, 0, nil, data)
		}
		return b.takeSGLang(name, c, &a, &seen, col)
	}
	if mediaType(resp.Header) == "application/json" {
		data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return b.srv.fault(ctx, name, err)
		}
		if err := take(data); err != nil {
			return err
		}
	} else if mediaType(resp.Header) != "text/event-stream" {
		start, _ := io.ReadAll(io.LimitReader(resp.Body, 256)) // what can be shown of it
		return b.srv.wrongType(name, resp.Header, start)
	} else if err := b.srv.events(ctx, name, resp.Body, col, take); err != nil {
		return err
	}
	if !col.done {
		return b.srv.cut(name)
	}
	return nil
}

// events feeds the events of a stream to take until [DONE], the end, or an
// error. A stream that breaks after the generation's end is whole.
func (s *server) events(ctx context.Context, name string, body io.Reader, col *collector, take func([]byte) error) error {
	r := newSSEReader(body)
	for {
		ev, err := r.next()
		switch {
		case err == io.EOF || err != nil && col.done:
			return nil
		case err != nil:
			return s.broken(ctx, name, err)
		case ev.failed:
			return s.errorFromBody(name, 0, nil, ev.data)
		case strings.HasPrefix(string(ev.data), "[DONE]"):
			return nil
		}
		if err := take(ev.data); err != nil {
			return err
		}
	}
}

// sglangSeen is what a stream has shown so far. By default each event repeats
// all before it; a flag of the server makes them deltas. Which it is shows in
// the number of ids against the count of generated tokens.
type sglangSeen struct {
	text   string
	tokens int
	lps    int
}

// takeSGLang adds one event to col.
func (b *Backend) takeSGLang(name string, c *call, a *sglangAnswer, seen *sglangSeen, col *collector) error {
	cumulative := strings.HasPrefix(a.Text, seen.text) || strings.HasPrefix(seen.text, a.Text) && a.Text != ""
	if len(a.OutputIDs) > 0 {
		cumulative = len(a.OutputIDs) == a.Meta.CompletionTokens
	}
	text, ids, out := a.Text, a.OutputIDs, a.Meta.Output
	if cumulative {
		if strings.HasPrefix(a.Text, seen.text) {
			text = a.Text[len(seen.text):]
		} else if strings.HasPrefix(seen.text, a.Text) && col.takeBack(len(seen.text)-len(a.Text)) {
			text = ""
		} else {
			return b.srv.garbled(name, "the stream took back text that it had sent")
		}
		ids = ids[min(seen.tokens, len(ids)):]
		seen.text = a.Text
	} else {
		seen.text += a.Text
	}
	if len(out) > 0 && len(out) == a.Meta.CompletionTokens {
		out = out[min(seen.lps, len(out)):]
	}
	seen.tokens += len(ids)
	seen.lps += len(out)

	var fin sglangFinish
	finished := len(a.Meta.FinishReason) > 0 && string(a.Meta.FinishReason) != "null"
	if finished {
		if err := json.Unmarshal(a.Meta.FinishReason, &fin); err != nil {
			fin.Type = plainString(string(a.Meta.FinishReason)) // older servers: a string
		}
		if fin.Type == "abort" {
			body, _ := json.Marshal(map[string]any{"message": fin.Message, "code": fin.StatusCode}) // strings and numbers
			return b.srv.errorFromBody(name, fin.StatusCode, nil, body)
		}
		// The token that ended the text is not part of it.
		var end backend.Token
		if n := len(ids); n > 0 && json.Unmarshal(fin.Matched, &end) == nil && ids[n-1] == end {
			ids = ids[:n-1]
			if len(out) > 0 {
				out = out[:len(out)-1]
			}
		}
	}
	if b.info.Fingerprint == "" {
		ids = nil
	}
	var lps []float64
	if c.req.Logprobs {
		for _, l := range out {
			lps = append(lps, l.Logprob)
		}
	}
	col.result.Usage = usage(a.Meta.PromptTokens, a.Meta.CachedTokens, a.Meta.CompletionTokens)
	if err := col.add(text, ids, lps); err != nil {
		return b.srv.diverged(name, err)
	}
	if !finished {
		return nil
	}
	return b.srv.finish(name, col, fin.Type, string(fin.Matched))
}

// sglangPrompt returns the ids of a raw prompt if they are needed or if it holds
// text that this model generated, and the server can tokenise the rest; nil
// sends it as text.
func (b *Backend) sglangPrompt(ctx context.Context, turns []backend.Turn, needed bool) ([]backend.Token, error) {
	pieces := runs(turns, b.info.Fingerprint)
	for _, p := range pieces {
		needed = needed || p.Tokens != nil
	}
	if !needed || !b.canTokenize {
		return nil, nil
	}
	var ids []backend.Token
	for i, p := range pieces {
		if p.Tokens == nil {
			var err error
			if p.Tokens, err = b.sglangTokenize(ctx, p.Text, i == 0); err != nil {
				return nil, err
			}
		}
		ids = append(ids, p.Tokens...)
	}
	return ids, nil
}

func (b *Backend) sglangTokenize(ctx context.Context, text string, start bool) ([]backend.Token, error) {
	var out struct {
		Tokens []backend.Token `json:"tokens"`
	}
	in := map[string]any{"prompt": text, "add_special_tokens": start}
	if b.info.Model != "" {
		in["model"] = b.info.Model
	}
	err := b.srv.post(ctx, b.srv.root, "tokenize", in, &out)
	return out.Tokens, err
}
