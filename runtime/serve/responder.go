package serve

import (
	"net/http"
	"strings"
)

// The JSON of the items of a response.
type (
	outputMessage struct {
		Type    string       `json:"type"`
		ID      string       `json:"id"`
		Status  string       `json:"status"`
		Role    string       `json:"role"`
		Content []outputText `json:"content"`
	}
	outputText struct {
		Type        string        `json:"type"`
		Text        string        `json:"text"`
		Annotations []any         `json:"annotations"`
		Logprobs    []chatLogprob `json:"logprobs"`
	}
	outputCall struct {
		Type      string `json:"type"`
		ID        string `json:"id"`
		CallID    string `json:"call_id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
		Status    string `json:"status"`
	}
	outputThought struct {
		Type    string        `json:"type"`
		ID      string        `json:"id"`
		Status  string        `json:"status"`
		Summary []any         `json:"summary"`
		Content []thoughtText `json:"content"`
	}
	thoughtText struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}

	// responseEvent is an event of a streamed response; which fields it has
	// depends on its type.
	responseEvent struct {
		Type         string         `json:"type"`
		Sequence     int            `json:"sequence_number"`
		Response     *response      `json:"response,omitempty"`
		ItemID       string         `json:"item_id,omitempty"`
		OutputIndex  *int           `json:"output_index,omitempty"`
		ContentIndex *int           `json:"content_index,omitempty"`
		Item         any            `json:"item,omitempty"`
		Part         any            `json:"part,omitempty"`
		Delta        *string        `json:"delta,omitempty"`
		Text         *string        `json:"text,omitempty"`
		Name         string         `json:"name,omitempty"`
		Arguments    *string        `json:"arguments,omitempty"`
		Logprobs     *[]chatLogprob `json:"logprobs,omitempty"`
	}
)

// responder puts a response together from the text of its one choice, and tells
// of each step if it is streamed. At most one item is open at a time.
type responder struct {
	s      *Server
	q      *responseRequest
	out    *sse // nil if the answer is not streamed
	seq    int
	answer answerReader
	shown  shownTokens
	items  []any // finished

	message *outputMessage
	call    *outputCall
	thought *outputThought

	end    *choice
	status string
}

func (s *Server) newResponder(q *responseRequest) *responder {
	return &responder{s: s, q: q, answer: answerReader{think: thinkReader{state: q.think}, calls: callReader{tools: q.tools, style: q.style}}}
}

// emit adds an event, which gets its number.
func (b *responder) emit(e responseEvent) {
	if b.out == nil {
		return
	}
	e.Sequence = b.seq
	b.seq++
	b.out.event(e.Type, e)
}

// of is an event about the item that is open, or about its only part.
func (b *responder) of(kind, id string, part bool) responseEvent {
	at, zero := len(b.items), 0
	e := responseEvent{Type: kind, ItemID: id, OutputIndex: &at}
	if part {
		e.ContentIndex = &zero
	}
	return e
}

// whole is an answer that comes at once.
func (b *responder) whole(c *choice) {
	if b.q.logprobs {
		b.tokens(c.result.Part.Text, scoredOf(c.result))
	} else {
		b.text(c.result.Part.Text)
	}
	b.finish(c)
}

// text adds the next text. It goes in pieces that end where a call may end, so
// that what comes after a call is told after it.
func (b *responder) text(text string) {
	for piece := range strings.SplitAfterSeq(text, ">") {
		p := b.answer.push(piece)
		b.shown.read += len(piece)
		b.take(p, b.shown.take(b.answer.held(), p.said != ""))
	}
}

// shownTokens are the log-probabilities of tokens whose text is held back: until
// it is known whether it is said, thought or part of a call. Those of what is
// said are shown with it, the others are not.
type shownTokens struct {
	read  int // bytes of the text up to here
	queue []shownToken
}

type shownToken struct {
	at int // its first byte in the text
	lp chatLogprob
}

// take returns those of the text up to the bytes that are held back. They are
// dropped unless that was said.
func (t *shownTokens) take(held int, said bool) (out []chatLogprob) {
	n := 0
	for n < len(t.queue) && t.queue[n].at < t.read-held {
		if said {
			out = append(out, t.queue[n].lp)
		}
		n++
	}
	t.queue = t.queue[n:]
	return out
}

// take adds a piece of the answer.
func (b *responder) take(p answerPart, lp []chatLogprob) {
	if p.thought != "" {
		b.openThought()
		b.thought.Content[0].Text += p.thought
		e := b.of("response.reasoning_text.delta", b.thought.ID, true)
		e.Delta = &p.thought
		b.emit(e)
	}
	if p.said != "" || len(lp) > 0 {
		b.openMessage()
		part := &b.message.Content[0]
		part.Text += p.said
		part.Logprobs = append(part.Logprobs, lp...)
		e := b.of("response.output_text.delta", b.message.ID, true)
		if lp == nil {
			lp = []chatLogprob{}
		}
		e.Delta, e.Logprobs = &p.said, &lp
		b.emit(e)
	}
	for _, c := range p.calls {
		if c.name != "" {
			b.openCall(c.name)
		}
		if c.args == "" || b.call == nil {
			continue
		}
		b.call.Arguments += c.args
		e := b.of("response.function_call_arguments.delta", b.call.ID, false)
		e.Delta = &c.args
		b.emit(e)
	}
}

func (b *responder) opened(item any) {
	e := b.of("response.output_item.added", "", false)
	e.Item = item
	b.emit(e)
}

func (b *responder) openMessage() {
	if b.message != nil {
		return
	}
	b.close("completed")
	m := &outputMessage{Type: "message", ID: "msg_" + randomID(), Status: "in_progress", Role: "assistant", Content: []outputText{}}
	b.opened(*m)
	part := outputText{Type: "output_text", Annotations: []any{}, Logprobs: []chatLogprob{}}
	e := b.of("response.content_part.added", m.ID, true)
	e.Part = part
	b.emit(e)
	m.Content = append(m.Content, part)
	b.message = m
}

func (b *responder) openThought() {
	if b.thought != nil {
		return
	}
	b.close("completed")
	t := &outputThought{Type: "reasoning", ID: "rs_" + randomID(), Status: "in_progress", Summary: []any{}, Content: []thoughtText{}}
	b.opened(*t)
	t.Content = append(t.Content, thoughtText{Type: "reasoning_text"})
	b.thought = t
}

func (b *responder) openCall(name string) {
	b.close("completed")
	c := &outputCall{Type: "function_call", ID: "fc_" + randomID(), CallID: "call_" + randomID()[:24], Name: name, Status: "in_progress"}
	b.opened(*c)
	b.call = c
}

// close ends the item that is open, if one is.
func (b *responder) close(status string) {
	var item any
	switch {
	case b.thought != nil:
		t := b.thought
		e := b.of("response.reasoning_text.done", t.ID, true)
		e.Text = &t.Content[0].Text
		b.emit(e)
		t.Status, item = status, t
	case b.message != nil:
		m := b.message
		part := m.Content[0]
		e := b.of("response.output_text.done", m.ID, true)
		e.Text, e.Logprobs = &part.Text, &part.Logprobs
		b.emit(e)
		e = b.of("response.content_part.done", m.ID, true)
		e.Part = part
		b.emit(e)
		m.Status, item = status, m
	case b.call != nil:
		c := b.call
		e := b.of("response.function_call_arguments.done", c.ID, false)
		e.Name, e.Arguments = c.Name, &c.Arguments
		b.emit(e)
		c.Status, item = status, c
	default:
		return
	}
	e := b.of("response.output_item.done", "", false)
	e.Item = item
	b.emit(e)
	b.items = append(b.items, item)
	b.thought, b.message, b.call = nil, nil, nil
}

// finish ends the response.
func (b *responder) finish(c *choice) {
	p := b.answer.finish()
	// A last token may be a part of a character, and have no text.
	b.take(p, b.shown.take(-1, p.said != "" || b.message != nil))
	c.thought = b.s.tokensOf(b.q.base.ShowControl, c, b.answer.think.ended)
	b.end, b.status = c, "completed"
	if finishReason(c.result, b.q.tools, 0) == "length" {
		b.status = "incomplete"
	}
	if b.message == nil && b.call == nil && b.thought == nil && len(b.items) == 0 {
		b.openMessage() // an answer of nothing is an answer
	}
	b.close(b.status)
}

// begin says that the response is on its way.
func (b *responder) begin() {
	if b.seq > 0 {
		return
	}
	b.emit(responseEvent{Type: "response.created", Response: b.response("in_progress")})
	b.emit(responseEvent{Type: "response.in_progress", Response: b.response("in_progress")})
}

// streamResponse writes a response as it is generated.
func (s *Server) streamResponse(w http.ResponseWriter, r *http.Request, b *responder) error {
	b.out = s.newSSE(w)
	var told scoredStream
	err := s.run(r.Context(), &b.q.job, func(steps []step) error {
		for _, x := range steps {
			switch {
			case x.err != nil:
				return x.err
			case x.end == nil:
				b.begin()
				if !b.q.logprobs {
					b.text(x.delta.Text)
				} else if k, ok := told.piece(&x.delta); ok {
					b.tokens(x.delta.Text, k)
				}
			default:
				b.begin()
				if b.q.logprobs {
					b.tokens(told.rest(x.end.result))
				}
				b.finish(x.end)
				b.emit(responseEvent{Type: "response." + b.status, Response: b.response(b.status)})
			}
		}
		return b.out.flush()
	})
	if err == nil || !b.out.started && b.out.err == nil {
		return err
	}
	e := toError(err)
	if b.out.err != nil || r.Context().Err() != nil {
		e = &Error{Status: statusClientGone, Message: "the client is gone"}
	} else {
		failed := b.response("failed")
		code := e.Code
		if code == "" {
			code = e.Type
		}
		failed.Error = &responseError{Code: code, Message: e.Message}
		b.emit(responseEvent{Type: "response.failed", Response: failed})
		b.out.flush()
	}
	s.note(r, e, err)
	return nil
}

// tokens adds text token by token with log-probabilities.
func (b *responder) tokens(text string, k scored) {
	all := b.s.chatLogprobs(k, false, b.q.base.ShowControl).Content
	for i, text := range b.s.pieces(text, k.tokens, b.q.base.ShowControl) {
		if i < len(all) {
			b.shown.queue = append(b.shown.queue, shownToken{b.shown.read, all[i]})
		}
		b.text(text)
	}
}
