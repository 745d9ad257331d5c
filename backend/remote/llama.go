package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"

	"github.com/coppice-run/coppice/backend"
)

// llamaAnswer is an answer of llama-server's /completion, or one event of its
// stream.
type llamaAnswer struct {
	Content      string             `json:"content"`
	Tokens       []backend.Token    `json:"tokens"`
	Stop         bool               `json:"stop"`
	StopType     string             `json:"stop_type"` // eos, limit, word
	StoppingWord string             `json:"stopping_word"`
	Predicted    int                `json:"tokens_predicted"`
	Evaluated    int                `json:"tokens_evaluated"` // of the prompt, cached ones too
	Probs        []llamaProbability `json:"completion_probabilities"`
	Timings      struct {
		PromptN *int `json:"prompt_n"` // prompt tokens computed
		CacheN  *int `json:"cache_n"`
	} `json:"timings"`
	Error json.RawMessage `json:"error"`
}

// llamaProbability is one generated token's, or one candidate's.
type llamaProbability struct {
	ID      backend.Token      `json:"id"`
	Logprob *float64           `json:"logprob"` // null: minus infinity
	Top     []llamaProbability `json:"top_logprobs"`
}

func (p *llamaProbability) value() float64 {
	if p.Logprob == nil {
		return Unlikely
	}
	return max(*p.Logprob, Unlikely)
}

// llamaRequest writes c for /completion, all but the prompt. window is the length of
// its context, 0 if it is not known.
func (c *call) llamaRequest(window int) (map[string]any, error) {
	r, s := c.req, &c.req.Sampling
	n := c.maxTokens()
	if n == 0 {
		n = -1
	}
	// How far back penalties look: over the whole context. A length that is not known
	// is taken to be a long one; -1, which older servers took, others refuse.
	back := 0
	if s.FrequencyPenalty != 0 || s.PresencePenalty != 0 || orOne(s.RepetitionPenalty) != 1 {
		back = cmp.Or(window, 1<<17)
	}
	// Every sampler that the server has by default and the request does not
	// ask for is switched off: 0 and 1 mean that on the wire, too.
	x := map[string]any{
		"stream": true, "cache_prompt": true, "return_tokens": true,
		"n_predict":         n,
		"temperature":       s.Temperature,
		"top_k":             s.TopK,
		"top_p":             orOne(s.TopP),
		"min_p":             s.MinP,
		"repeat_penalty":    orOne(s.RepetitionPenalty),
		"repeat_last_n":     back,
		"frequency_penalty": s.FrequencyPenalty,
		"presence_penalty":  s.PresencePenalty,
		"seed":              seed32(s.Seed),
	}
	if len(r.Stop) > 0 {
		x["stop"] = r.Stop
	}
	if r.IgnoreEOS {
		x["ignore_eos"] = true
	}
	if r.Logprobs {
		x["n_probs"] = 1
	}
	if len(s.LogitBias) > 0 {
		bias := make([][2]any, 0, len(s.LogitBias))
		for id, v := range s.LogitBias {
			bias = append(bias, [2]any{id, v})
		}
		slices.SortFunc(bias, func(a, b [2]any) int { return int(a[0].(backend.Token) - b[0].(backend.Token)) })
		x["logit_bias"] = bias
	}
	switch k := &r.Constraint; {
	case len(k.JSONSchema) > 0:
		x["json_schema"] = json.RawMessage(k.JSONSchema)
	case k.EBNF != "":
		x["grammar"] = k.EBNF
	case len(k.Choices) > 0:
		x["grammar"] = choiceGrammar(k.Choices)
	case k.Regex != "":
		g, err := regexGrammar(k.Regex)
		if err != nil {
			return nil, err
		}
		x["grammar"] = g
	}
	return x, nil
}

func orOne(v float64) float64 {
	if v == 0 {
		return 1
	}
	return v
}

// seed32 folds a seed into the 32 bits that llama-server has; its largest value
// means a random one there.
func seed32(seed uint64) uint32 {
	s := uint32(seed) ^ uint32(seed>>32)
	if s == 1<<32-1 {
		s--
	}
	return s
}

// generateLlama runs c on /completion, chat turns through the server's own
// template.
func (b *Backend) generateLlama(ctx context.Context, c *call, col *collector) error {
	name := op(http.MethodPost, b.srv.root, "completion")
	in, err := c.llamaRequest(b.info.ContextLength)
	if err != nil {
		return err
	}
	if in["prompt"], err = b.llamaPrompt(ctx, c.turns, c.raw); err != nil {
		return err
	}
	resp, err := b.srv.send(ctx, http.MethodPost, b.srv.root, "completion", in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	take := func(data []byte) error {
		var a llamaAnswer
		if err := json.Unmarshal(data, &a); err != nil {
			return b.srv.garbled(name, "an event of the stream is not the JSON it should be: "+err.Error())
		}
		if len(a.Error) > 0 && string(a.Error) != "null" {
			return b.srv.errorFromBody(name, 0, nil, data)
		}
		return b.takeLlama(name, c, &a, col)
	}
	switch mediaType(resp.Header) {
	case "text/event-stream":
		err = b.srv.events(ctx, name, resp.Body, col, take)
	case "application/json":
		var data []byte
		if data, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
			return b.srv.fault(ctx, name, err)
		}
		err = take(data)
	default:
		start, _ := io.ReadAll(io.LimitReader(resp.Body, 256)) // what can be shown of it
		err = b.srv.wrongType(name, resp.Header, start)
	}
	if err != nil {
		return err
	}
	if !col.done {
		return b.srv.cut(name)
	}
	return b.checkIDs(ctx, col)
}

// takeLlama adds one event to col.
func (b *Backend) takeLlama(name string, c *call, a *llamaAnswer, col *collector) error {
	var lps []float64
	if c.req.Logprobs {
		for i := range a.Probs {
			lps = append(lps, a.Probs[i].value())
		}
	}
	// The last event of a stream repeats nothing, but its lists may.
	ids := a.Tokens
	if a.Stop && len(col.tokens) > 0 {
		ids, lps = nil, nil
	}
	if err := col.add(a.Content, ids, lps); err != nil {
		return b.srv.diverged(name, err)
	}
	if !a.Stop {
		return nil
	}
	cached := 0
	switch {
	case a.Timings.CacheN != nil:
		cached = *a.Timings.CacheN
	case a.Timings.PromptN != nil:
		cached = a.Evaluated - *a.Timings.PromptN
	}
	col.result.Usage = usage(a.Evaluated, cached, a.Predicted)
	reason, matched := "stop", ""
	switch a.StopType {
	case "limit":
		reason = "length"
	case "word":
		word, err := json.Marshal(a.StoppingWord)
		if err != nil {
			return err
		}
		matched = string(word)
	}
	return b.srv.finish(name, col, reason, matched)
}

// checkIDs keeps the ids of a finished generation only if the server turns them
// back into its text: the end of the text may be among them, or a character
// that they end inside.
func (b *Backend) checkIDs(ctx context.Context, col *collector) error {
	if len(col.tokens) == 0 || col.result.Matched != "" {
		return nil
	}
	want := string(col.text)
	for drop := 0; drop <= 1 && drop < len(col.tokens); drop++ {
		ids := col.tokens[:len(col.tokens)-drop]
		text, err := b.llamaDetokenize(ctx, ids)
		if ctx.Err() != nil {
			return err
		}
		if err == nil && text == want {
			col.tokens = ids
			if len(col.lps) > len(ids) {
				col.lps = col.lps[:len(ids)]
			}
			return nil
		}
	}
	col.tokens = nil
	return nil
}
