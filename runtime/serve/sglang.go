package serve

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// sglangRequest is a request of SGLang's /generate after reading.
type sglangRequest struct {
	job
	started  time.Time
	single   bool // one prompt and one choice: the answer is no list
	stream   bool
	logprobs bool
	start    int  // logprob_start_len
	top      int  // top_logprobs_num
	texts    bool // return_text_in_logprobs
	promptID bool // return_prompt_token_ids
}

// The JSON of SGLang's answers.
type (
	sglangAnswer struct {
		Index     *int            `json:"index,omitempty"`
		Text      string          `json:"text"`
		OutputIDs []backend.Token `json:"output_ids"`
		PromptIDs []backend.Token `json:"prompt_token_ids,omitempty"`
		Meta      sglangMeta      `json:"meta_info"`
	}
	sglangMeta struct {
		ID               string         `json:"id"`
		FinishReason     *sglangFinish  `json:"finish_reason"`
		PromptTokens     int            `json:"prompt_tokens"`
		CompletionTokens int            `json:"completion_tokens"`
		CachedTokens     int            `json:"cached_tokens"`
		WeightVersion    string         `json:"weight_version"`
		Latency          *float64       `json:"e2e_latency,omitempty"`
		Input            *[]sglangEntry `json:"input_token_logprobs,omitempty"`
		Output           *[]sglangEntry `json:"output_token_logprobs,omitempty"`
		OutputLength     *int           `json:"output_token_logprobs_length,omitempty"`
		InputTop         *[]sglangTop   `json:"input_top_logprobs,omitempty"`
		OutputTop        *[]sglangTop   `json:"output_top_logprobs,omitempty"`
		Coppice          *sglangCost    `json:"coppice,omitempty"`
	}
	sglangFinish struct {
		Type    string `json:"type"`
		Matched any    `json:"matched,omitempty"`
		Length  *int   `json:"length,omitempty"`
	}
	sglangCost struct {
		ForcedTokens   int `json:"forced_tokens"`
		ForwardPasses  int `json:"forward_passes"`
		ComputedTokens int `json:"computed_tokens"`
		ClosedTokens   int `json:"closed_tokens"`
	}
	// sglangEntry is [logprob or null, id, text or null].
	sglangEntry [3]any
	// sglangTop is the likeliest tokens at a place; null where nothing precedes.
	sglangTop []sglangEntry
)

// samplingNames are the fields of sampling_params; others are refused, as
// SGLang's own contract has it.
var samplingNames = map[string]bool{}

func init() {
	for _, n := range strings.Fields(`max_new_tokens min_new_tokens n stop stop_token_ids stop_regex temperature top_p top_k
		min_p frequency_penalty presence_penalty repetition_penalty ignore_eos regex json_schema ebnf structural_tag
		skip_special_tokens spaces_between_special_tokens no_stop_trim stream_interval logit_bias sampling_seed
		beam_width custom_params close_at_limit`) {
		samplingNames[n] = true
	}
}

// sglangGenerate is POST /generate.
func (s *Server) sglangGenerate(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	q, err := s.readSGLang(r, f)
	if err != nil {
		return err
	}
	ends := make([]*choice, q.choices())
	if q.stream {
		return s.streamSGLang(w, r, q, ends)
	}
	err = s.run(r.Context(), &q.job, func(steps []step) error {
		for _, x := range steps {
			if x.end != nil {
				ends[x.index] = x.end
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if q.single {
		writeJSON(w, http.StatusOK, s.sglangEnd(q, 0, ends[0]))
		return nil
	}
	list := make([]sglangAnswer, len(ends))
	for i, c := range ends {
		list[i] = s.sglangEnd(q, i, c)
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s *Server) readSGLang(r *http.Request, f *fields) (*sglangRequest, error) {
	t := tenantOf(r.Context())
	q := &sglangRequest{started: time.Now()}
	q.job = job{id: f.text("rid"), tenant: t, readFrom: -1, promptAt: "text"}
	switch {
	case q.id == "":
		q.id = randomID()
	case !idPattern.MatchString(q.id):
		f.fail("rid", "is to be 1 to 128 letters, digits, or any of _ . : -")
	}
	q.stream = f.flag("stream", false)
	q.logprobs = f.flag("return_logprob", false)
	q.start = int(f.whole("logprob_start_len", -1, -1, math.MaxInt32))
	q.top = int(f.whole("top_logprobs_num", 0, 0, maxTopLogprobs))
	q.texts = f.flag("return_text_in_logprobs", false)
	q.promptID = f.flag("return_prompt_token_ids", false)
	q.base.Salt = t.salt(readSalt(f, "cache_salt"), readSalt(f, "extra_key"))
	q.base.Priority = int(f.whole("priority", 0, math.MinInt32, math.MaxInt32)) // higher is earlier, as there
	f.refuse("the model reads text only", "image_data", "video_data", "audio_data", "input_embeds")
	f.refuse("there are no adapters", "lora_path")
	f.refuse("only log-probabilities of the likeliest tokens are shown", "token_ids_logprob")
	f.refuse("the model's inner state is not shown", "return_hidden_states", "return_routed_experts")
	f.refuse("every request carries its whole prompt, and the cache finds what is known", "session_id", "session_params")
	f.refuse("use regex, json_schema, ebnf or logit_bias", "custom_logit_processor")
	f.refuse("thoughts are neither demanded nor bounded here", "require_reasoning", "max_thinking_tokens")
	s.readSGLangSampling(f, q)
	if q.logprobs {
		s.canLogprobs(f, "return_logprob", 0)
		if q.top > 0 || q.start >= 0 {
			s.canLogprobs(f, "top_logprobs_num", 1)
		}
		q.base.Logprobs, q.job.top = true, q.top
		if q.start >= 0 {
			q.readFrom, q.readTop = q.start, q.top
		}
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	var err error
	if f.has("input_ids") {
		q.promptAt = "input_ids"
	}
	q.prompts, q.single, err = s.sglangPrompts(f)
	if err == nil && len(q.prompts)*q.n > s.cfg.Limits.Choices {
		err = badRequest(q.promptAt, "prompts times n is %d, at most %d are allowed", len(q.prompts)*q.n, s.cfg.Limits.Choices)
	}
	q.single = q.single && q.n == 1
	return q, err
}

func (s *Server) readSGLangSampling(f *fields, q *sglangRequest) {
	q.n = 1
	p := f.object("sampling_params")
	if p == nil {
		p = &fields{path: "sampling_params.", first: f.first}
	}
	for name := range p.members {
		if !samplingNames[name] {
			p.fail(name, "is not known")
		}
	}
	b := &q.base
	b.Sampling = backend.Sampling{
		Temperature:       p.number("temperature", 1, 0, maxTemperature, false),
		TopP:              p.number("top_p", 1, 0, 1, true),
		MinP:              p.number("min_p", 0, 0, 1, false),
		TopK:              readTopK(p),
		RepetitionPenalty: p.number("repetition_penalty", 1, minRepetitionPenalty, 2, false),
		FrequencyPenalty:  p.number("frequency_penalty", 0, -2, 2, false),
		PresencePenalty:   p.number("presence_penalty", 0, -2, 2, false),
		Seed:              readSeed(p, "sampling_seed"),
		LogitBias:         s.readBias(p),
	}
	if b.Sampling.TopK >= 1<<30 { // how SGLang's client says that it is off
		b.Sampling.TopK = 0
	}
	b.MaxTokens = int(p.whole("max_new_tokens", 128, 0, math.MaxInt32))
	q.nothing = b.MaxTokens == 0
	b.MinTokens = int(p.whole("min_new_tokens", 0, 0, math.MaxInt32))
	if b.MinTokens > b.MaxTokens {
		p.fail("min_new_tokens", "is more than max_new_tokens")
	}
	b.CloseAtLimit = s.readClosing(p)
	b.ShowControl = s.readControl(p)
	q.keepStop = p.flag("no_stop_trim", false)
	q.n, q.countAt = int(p.whole("n", 1, 1, int64(s.cfg.Limits.Choices))), "sampling_params.n"
	b.Constraint, q.constraintAt = readConstraint(&fields{members: pick(p, "regex", "json_schema", "ebnf", "structural_tag"), path: p.path, first: p.first})
	if q.constraintAt != "" {
		s.canTag(p, b.Constraint, q.constraintAt)
		q.constraintAt = "sampling_params." + q.constraintAt
	}
	b.IgnoreEOS = p.flag("ignore_eos", false) && q.constraintAt == ""
	b.Stop = s.readStop(p, "stop", 32, &b.Tokens, b.IgnoreEOS)
	p.refuse("sampling is the only way to generate", "beam_width", "custom_params")
}

// pick returns some of the members of an object; empty strings are left out,
// since SGLang's client sends them for nothing.
func pick(f *fields, names ...string) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, n := range names {
		if raw := f.raw(n); raw != nil && string(raw) != `""` {
			out[n] = raw
		}
	}
	return out
}

// sglangPrompts reads text or input_ids, one or a list.
func (s *Server) sglangPrompts(f *fields) (list []prompt, single bool, err error) {
	if f.has("text") == f.has("input_ids") {
		return nil, false, badRequest("text", "one of text and input_ids is needed")
	}
	one := func(p prompt, err error) error {
		list = append(list, p)
		return err
	}
	if raw := f.raw("input_ids"); raw != nil {
		if ids, ok := readIDs(raw); ok && len(ids) > 0 {
			err := one(s.fromIDs("input_ids", ids))
			return list, true, err
		}
		items, _ := f.list("input_ids")
		for _, item := range items {
			ids, ok := readIDs(bytes.TrimSpace(item))
			if !ok || len(ids) == 0 {
				return nil, false, badRequest("input_ids", "input_ids is to be a list of token ids, or a list of such lists")
			}
			if err := one(s.fromIDs("input_ids", ids)); err != nil {
				return nil, false, err
			}
		}
	} else if text, ok := jsonString(f.raw("text")); ok {
		err := one(s.fromText("text", text))
		return list, true, err
	} else {
		items, _ := f.listOr("text", "a string or a list of strings")
		for _, item := range items {
			text, ok := jsonString(item)
			if !ok {
				return nil, false, badRequest("text", "text is to be a string or a list of strings")
			}
			if err := one(s.fromText("text", text)); err != nil {
				return nil, false, err
			}
		}
	}
	if err := f.err(); err != nil {
		return nil, false, err
	}
	if len(list) == 0 {
		return nil, false, badRequest("text", "there is no prompt")
	}
	return list, false, nil
}

func (s *Server) sglangEntry(id backend.Token, lp *float64, texts bool) sglangEntry {
	e := sglangEntry{nil, id, nil}
	if lp != nil {
		e[0] = finite(*lp)
	}
	if texts {
		e[2] = s.tokenText(id)
	}
	return e
}

func (s *Server) sglangTop(list []backend.TokenLogprob, texts bool) sglangTop {
	out := sglangTop{}
	for _, t := range list {
		out = append(out, s.sglangEntry(t.Token, &t.Logprob, texts))
	}
	return out
}

// sglangEnd is the answer of a finished choice.
func (s *Server) sglangEnd(q *sglangRequest, i int, c *choice) sglangAnswer {
	r := c.result
	u := usageOf([]*choice{c})
	latency := since(q.started)
	out := sglangAnswer{Text: r.Part.Text, OutputIDs: r.Part.Tokens}
	if out.OutputIDs == nil {
		out.OutputIDs = []backend.Token{}
	}
	if !q.single {
		out.Index = &i
	}
	if q.promptID {
		out.PromptIDs = c.prompt.ids
	}
	out.Meta = sglangMeta{
		ID: q.id, PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens,
		CachedTokens: u.PromptDetails.CachedTokens, WeightVersion: "default", Latency: &latency,
		Coppice: &sglangCost{u.Coppice.ForcedTokens, u.Coppice.ForwardPasses, u.Coppice.ComputedTokens, u.Coppice.ClosedTokens},
	}
	switch {
	case r.Finish == backend.FinishLength:
		out.Meta.FinishReason = &sglangFinish{Type: "length", Length: &out.Meta.CompletionTokens}
	case r.StopToken != nil:
		out.Meta.FinishReason = &sglangFinish{Type: "stop", Matched: *r.StopToken}
	case r.Matched != "":
		out.Meta.FinishReason = &sglangFinish{Type: "stop", Matched: r.Matched}
	default:
		f := &sglangFinish{Type: "stop"}
		if v := s.cfg.Vocabulary; v != nil && len(v.EndTokens()) > 0 {
			f.Matched = v.EndTokens()[0]
		}
		out.Meta.FinishReason = f
	}
	if q.logprobs {
		s.sglangLogprobs(q, c, &out.Meta)
	}
	return out
}

// sglangLogprobs adds those of the prompt from logprob_start_len on, where the
// first token of all has none, and those of the output.
func (s *Server) sglangLogprobs(q *sglangRequest, c *choice, m *sglangMeta) {
	input, inputTop := []sglangEntry{}, []sglangTop{}
	if q.start >= 0 {
		from := max(1, q.start)
		for i := q.start; i < len(c.ids); i++ {
			var lp *float64
			var top sglangTop
			if c.read != nil && i >= from && i-from < len(c.read.Logprobs) {
				lp = &c.read.Logprobs[i-from]
				if i-from < len(c.read.Top) {
					top = s.sglangTop(c.read.Top[i-from], q.texts)
				}
			}
			input = append(input, s.sglangEntry(c.ids[i], lp, q.texts))
			inputTop = append(inputTop, top)
		}
	}
	m.Input = &input
	if q.top > 0 {
		m.InputTop = &inputTop
	}
	s.sglangOutput(q, scoredOf(c.result), m)
}

// sglangOutput adds the log-probabilities of generated tokens to those that are
// there.
func (s *Server) sglangOutput(q *sglangRequest, k scored, m *sglangMeta) {
	if m.Output == nil {
		m.Output, m.OutputTop = &[]sglangEntry{}, &[]sglangTop{}
	}
	for i := range k.logprobs {
		*m.Output = append(*m.Output, s.sglangEntry(k.tokens[i], &k.logprobs[i], q.texts))
		if q.top > 0 {
			*m.OutputTop = append(*m.OutputTop, s.sglangTop(k.likeliest(i), q.texts))
		}
	}
	n := len(*m.Output)
	m.OutputLength = &n
	if q.top == 0 {
		m.OutputTop = nil
	}
}

// streamSGLang writes choices as they grow: each event holds all of the text so
// far, as SGLang's own client wants it.
func (s *Server) streamSGLang(w http.ResponseWriter, r *http.Request, q *sglangRequest, ends []*choice) error {
	out := s.newSSE(w)
	type so struct {
		text strings.Builder
		ids  []backend.Token
		new  bool
		told scoredStream
		meta sglangMeta // with log-probabilities, if they are wanted
	}
	far := make([]so, q.choices())
	err := s.run(r.Context(), &q.job, func(steps []step) error {
		for _, x := range steps {
			switch {
			case x.err != nil:
				return x.err
			case x.end != nil:
				ends[x.index] = x.end
				far[x.index].new = false
				if err := out.data(s.sglangEnd(q, x.index, x.end)); err != nil {
					return err
				}
			default:
				f := &far[x.index]
				if q.logprobs {
					k, ok := f.told.piece(&x.delta)
					if !ok {
						continue
					}
					s.sglangOutput(q, k, &f.meta)
				}
				f.text.WriteString(x.delta.Text)
				f.ids = append(f.ids, x.delta.Tokens...)
				f.new = f.new || x.delta.Text != ""
			}
		}
		for i := range far {
			f := &far[i]
			if !f.new {
				continue
			}
			f.new = false
			a := sglangAnswer{Text: f.text.String(), OutputIDs: f.ids, Meta: f.meta}
			a.Meta.ID, a.Meta.CompletionTokens, a.Meta.WeightVersion = q.id, len(f.ids), "default"
			a.Meta.PromptTokens = len(q.prompts[i/q.n].ids)
			if a.OutputIDs == nil {
				a.OutputIDs = []backend.Token{}
			}
			if !q.single {
				a.Index = &i
			}
			if err := out.data(a); err != nil {
				return err
			}
		}
		return out.flush()
	})
	if err == nil {
		err = out.done()
	}
	return s.endStream(r, out, err)
}

// sglangModelInfo is GET /get_model_info. SGLang's frontend picks a chat
// template by model_path.
func (s *Server) sglangModelInfo(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, map[string]any{
		"model_path": s.cfg.Names[0], "tokenizer_path": s.cfg.Names[0], "is_generation": true,
		"preferred_sampling_params": nil, "weight_version": "default",
	})
	return nil
}

func (s *Server) sglangServerInfo(w http.ResponseWriter, r *http.Request) error {
	out := map[string]any{
		"version": s.cfg.Version, "model_path": s.cfg.Names[0], "served_model_name": s.cfg.Names[0],
		"context_length": s.info.ContextLength, "capabilities": s.info.Capabilities,
	}
	if b, ok := s.be.(statser); ok && tenantOf(r.Context()).sees {
		out["stats"] = b.Stats()
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// flushCache is POST /flush_cache. With keys it is for operators: a flush of one
// tenant would tell on the others.
func (s *Server) flushCache(w http.ResponseWriter, r *http.Request) error {
	if !tenantOf(r.Context()).flush {
		return &Error{Status: http.StatusForbidden, Type: typePermission, Code: "not_allowed", Message: "the cache is shared by several keys and cannot be flushed by one"}
	}
	b, ok := s.be.(interface{ Flush() })
	if !ok {
		return badRequest("", "this model's cache cannot be flushed from here")
	}
	b.Flush()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Write([]byte("Cache flushed.\n"))
	return nil
}

// sglangAbort is POST /abort_request {rid, abort_all}.
func (s *Server) sglangAbort(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	id, all := f.text("rid"), f.flag("abort_all", false)
	if id == "" && !all {
		f.fail("rid", "is missing")
	}
	if err := f.err(); err != nil {
		return err
	}
	s.aborts.abort(jobName{tenantOf(r.Context()), id}, all)
	w.WriteHeader(http.StatusOK)
	return nil
}
