package serve

import (
	"crypto/rand"
	"encoding/hex"
	"math"
	"net/http"
	"regexp"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// chatRequest is a request of /v1/chat/completions after reading.
type chatRequest struct {
	job
	model    string
	created  int64
	tools    *toolset
	style    toolStyle
	logprobs bool
	topShown int
	stream   bool
	usage    bool // at the end of a stream
	always   bool // in every chunk
	ids      bool // return_token_ids
	asIDs    bool // return_tokens_as_token_ids
	think    thinking
	silent   bool // thoughts are not shown

	promptTop int // for prompt_logprobs; -1 without
}

// chatCompletions is POST /v1/chat/completions.
func (s *Server) chatCompletions(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	q, err := s.readChat(r, f)
	if err != nil {
		return err
	}
	w.Header().Set("X-Request-Id", q.id)
	if q.stream {
		return s.streamChat(w, r, q)
	}
	choices := make([]*choice, q.choices())
	err = s.run(r.Context(), &q.job, func(steps []step) error {
		for _, st := range steps {
			if st.end != nil {
				choices[st.index] = st.end
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.chatAnswer(q, choices))
	return nil
}

func (s *Server) readChat(r *http.Request, f *fields) (*chatRequest, error) {
	if err := s.checkModel(f); err != nil {
		return nil, err
	}
	t := tenantOf(r.Context())
	q := &chatRequest{model: s.cfg.Names[0], created: time.Now().Unix(), style: s.tools}
	q.job = job{id: s.requestID(r, f, "chatcmpl-"), op: opChat, tenant: t, readFrom: -1, promptAt: "messages"}
	s.readCommon(f, t, &q.job)
	messages := readMessages(f)
	q.tools = readTools(f)
	q.base.MaxTokens = int(f.whole("max_tokens", 0, 1, math.MaxInt32))
	if f.has("max_completion_tokens") {
		q.base.MaxTokens = int(f.whole("max_completion_tokens", 0, 1, math.MaxInt32))
	}
	if n := q.base.MaxTokens; n > 0 && q.base.MinTokens > n {
		f.fail("min_tokens", "is more than the limit of %d tokens", n)
	}
	q.logprobs = f.flag("logprobs", false)
	q.topShown = int(f.whole("top_logprobs", 0, 0, maxTopLogprobs))
	if f.has("top_logprobs") && !q.logprobs && q.topShown > 0 {
		f.fail("top_logprobs", "needs logprobs to be true")
	}
	if q.logprobs {
		s.canLogprobs(f, "logprobs", 0)
		if q.topShown > 0 {
			s.canLogprobs(f, "top_logprobs", q.topShown)
		}
		q.base.Logprobs, q.top = true, q.topShown
	}
	q.ids = f.flag("return_token_ids", false)
	q.asIDs = f.flag("return_tokens_as_token_ids", false)
	split := f.flag("separate_reasoning", true)
	q.silent = !f.flag("include_reasoning", true)
	q.readStream(f)
	if q.promptTop = s.readPromptLogprobs(f, &q.job, q.stream); q.promptTop >= 0 {
		q.readFrom, q.readTop = 0, q.promptTop
	}
	f.refuse("the model writes text only", "audio", "web_search_options", "prediction")
	f.refuse("the template is the model's", "chat_template")
	f.refuse("an answer does not repeat what was asked", "echo")

	if err := f.err(); err != nil {
		return nil, err
	}
	msgs, opts, c := q.tools.plan(messages, q.style)
	s.limitByTools(f, &q.job, q.tools, q.style, c)
	opts.closed = !f.flag("add_generation_prompt", true)
	if opts.resume = f.flag("continue_final_message", false); opts.resume {
		switch {
		case len(msgs) > 0 && msgs[len(msgs)-1].Role != "assistant":
			f.fail("continue_final_message", "needs an assistant's message at the end")
		case f.has("add_generation_prompt") && !opts.closed:
			f.fail("continue_final_message", "and add_generation_prompt exclude each other")
		}
		opts.closed = false
	}
	opts.extra = s.readTemplate(f)
	if err := f.err(); err != nil {
		return nil, err
	}
	p, err := s.fromChat(msgs, opts)
	if err != nil {
		return nil, err
	}
	q.prompts = []prompt{p}
	if split && free(q.base.Constraint) {
		q.think = p.think
	}
	return q, nil
}

// readPromptLogprobs reads how many of the likeliest tokens are wanted beside
// each of the prompt; -1 if none.
func (s *Server) readPromptLogprobs(f *fields, j *job, stream bool) int {
	n := int(f.whole("prompt_logprobs", -1, -1, maxTopLogprobs))
	if n >= 0 {
		s.canLogprobs(f, "prompt_logprobs", 1)
		if stream {
			f.fail("prompt_logprobs", "is not for streams")
		}
	}
	return n
}

// readStream reads stream and stream_options.
func (q *chatRequest) readStream(f *fields) { q.stream, q.usage, q.always = readStream(f) }

func readStream(f *fields) (stream, usage, always bool) {
	stream = f.flag("stream", false)
	if o := f.object("stream_options"); o != nil {
		if !stream {
			f.fail("stream_options", "is only for streams")
		}
		usage = o.flag("include_usage", false)
		always = o.flag("continuous_usage_stats", false)
	}
	return stream, usage, always
}

var idPattern = regexp.MustCompile(`^[a-zA-Z0-9_.:\-]{1,128}$`)

// requestID is the id of a request: the client's, if it gave one.
func (s *Server) requestID(r *http.Request, f *fields, prefix string) string {
	id, at := f.text("request_id"), "request_id"
	if rid := f.text("rid"); id == "" && rid != "" { // as SGLang calls it
		id, at = rid, "rid"
	}
	if id == "" {
		id, at = r.Header.Get("X-Request-Id"), "X-Request-Id"
	}
	if id == "" {
		return prefix + randomID()
	}
	if !idPattern.MatchString(id) {
		f.fail(at, "is to be 1 to 128 letters, digits, or any of _ . : -")
	}
	return prefix + id
}

func randomID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// The JSON of chat answers.
type (
	chatCompletion struct {
		ID          string       `json:"id"`
		Object      string       `json:"object"`
		Created     int64        `json:"created"`
		Model       string       `json:"model"`
		Fingerprint *string      `json:"system_fingerprint"`
		Choices     []chatChoice `json:"choices"`
		Usage       usage        `json:"usage"`
		// Emulated names what the backend could not do itself.
		Emulated  []string        `json:"coppice_emulated,omitempty"`
		PromptIDs []backend.Token `json:"prompt_token_ids,omitempty"`
		// Prompt is as in completionChoice.
		Prompt []map[string]promptLogprob `json:"prompt_logprobs,omitempty"`
	}
	chatChoice struct {
		Index    int             `json:"index"`
		Message  chatMessage     `json:"message"`
		Logprobs *chatLogprobs   `json:"logprobs"`
		Finish   string          `json:"finish_reason"`
		Matched  any             `json:"stop_reason"` // a stop string, a token id or null
		IDs      []backend.Token `json:"token_ids,omitempty"`
	}
	chatMessage struct {
		Role      string     `json:"role"`
		Content   *string    `json:"content"`
		Refusal   *string    `json:"refusal"`
		Reasoning string     `json:"reasoning_content,omitempty"`
		ToolCalls []toolCall `json:"tool_calls,omitempty"`
	}
	toolCall struct {
		Index    *int     `json:"index,omitempty"` // in streams
		ID       string   `json:"id,omitempty"`
		Type     string   `json:"type,omitempty"`
		Function function `json:"function"`
	}
	function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	}
)

func (s *Server) fingerprint() *string {
	if s.info.Fingerprint == "" {
		return nil
	}
	fp := "fp_" + s.info.Fingerprint[:min(12, len(s.info.Fingerprint))]
	return &fp
}

// chatAnswer is the answer to a request that is not streamed.
func (s *Server) chatAnswer(q *chatRequest, choices []*choice) *chatCompletion {
	out := &chatCompletion{
		ID: q.id, Object: "chat.completion", Created: q.created, Model: q.model,
		Fingerprint: s.fingerprint(), Emulated: choices[0].result.Emulated,
	}
	for i, c := range choices {
		r := &answerReader{think: thinkReader{state: q.think}, calls: callReader{tools: q.tools, style: q.style}}
		first, last := r.push(c.result.Part.Text), r.finish()
		c.thought = s.tokensOf(q.base.ShowControl, c, r.think.ended)
		content, calls, more := first.said+last.said, first.calls, last.calls
		var msg chatMessage
		if !q.silent {
			msg.Reasoning = first.thought + last.thought
		}
		msg.Role = "assistant"
		for _, k := range append(calls, more...) {
			msg.ToolCalls = append(msg.ToolCalls, newCall(k, nil))
		}
		if content != "" || len(msg.ToolCalls) == 0 {
			msg.Content = &content
		}
		ch := chatChoice{Index: i, Message: msg, Finish: finishReason(c.result, q.tools, r.calls.calls), Matched: matched(c.result)}
		if q.logprobs {
			ch.Logprobs = s.chatLogprobs(scoredOf(c.result), q.asIDs, q.base.ShowControl)
		}
		if q.promptTop >= 0 {
			out.Prompt = s.promptLogprobs(c, q.promptTop)
		}
		if q.ids {
			ch.IDs = c.result.Part.Tokens
			out.PromptIDs = c.prompt.ids
		}
		out.Choices = append(out.Choices, ch)
	}
	out.Usage = usageOf(choices)
	return out
}

// newCall is a call, or the next piece of one in a stream.
func newCall(c call, index *int) toolCall {
	t := toolCall{Index: index, Function: function{Name: c.name, Arguments: c.args}}
	if c.name != "" {
		t.ID, t.Type = "call_"+randomID()[:24], "function"
	}
	return t
}

// matched is what ended a text: a stop string, the id of a stop token, or nil.
func matched(r *backend.Result) any {
	switch {
	case r.StopToken != nil:
		return *r.StopToken
	case r.Matched != "":
		return r.Matched
	}
	return nil
}

// finishReason is the same whether an answer is streamed or not: what was cut is
// "length"; calls that the model or the request decided on are "tool_calls"; a
// call of a named function is "stop".
func finishReason(r *backend.Result, tools *toolset, calls int) string {
	switch {
	case r.Finish == backend.FinishLength:
		return "length"
	case calls > 0 && tools != nil && tools.choice != toolsNamed:
		return "tool_calls"
	}
	return "stop"
}
