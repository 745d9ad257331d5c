package serve

import (
	"net/http"

	"github.com/coppice-run/coppice/backend"
)

// The JSON of a chunk of a streamed chat.
type (
	chatChunk struct {
		ID          string          `json:"id"`
		Object      string          `json:"object"`
		Created     int64           `json:"created"`
		Model       string          `json:"model"`
		Fingerprint *string         `json:"system_fingerprint"`
		Choices     []chunkChoice   `json:"choices"`
		Usage       *usage          `json:"usage,omitempty"`
		PromptIDs   []backend.Token `json:"prompt_token_ids,omitempty"`
	}
	chunkChoice struct {
		Index    int             `json:"index"`
		Delta    chunkDelta      `json:"delta"`
		Logprobs *chatLogprobs   `json:"logprobs"`
		Finish   *string         `json:"finish_reason"`
		Matched  any             `json:"stop_reason,omitempty"`
		IDs      []backend.Token `json:"token_ids,omitempty"`
	}
	chunkDelta struct {
		Role      string     `json:"role,omitempty"`
		Content   *string    `json:"content,omitempty"`
		Reasoning string     `json:"reasoning_content,omitempty"`
		ToolCalls []toolCall `json:"tool_calls,omitempty"`
	}
	// nullUsage is a chunk with "usage": null, as those before the last are when
	// usage was asked for.
	nullUsage struct {
		*chatChunk
		Usage *usage `json:"usage"`
	}
)

// chatStream writes a chat as it is generated.
type chatStream struct {
	s       *Server
	q       *chatRequest
	out     *sse
	readers []*answerReader
	begun   []bool
	scored  []scoredStream
	ends    []*choice
}

func (s *Server) streamChat(w http.ResponseWriter, r *http.Request, q *chatRequest) error {
	st := &chatStream{
		s: s, q: q, out: s.newSSE(w),
		readers: make([]*answerReader, q.n), begun: make([]bool, q.n), scored: make([]scoredStream, q.n), ends: make([]*choice, q.n),
	}
	for i := range st.readers {
		st.readers[i] = &answerReader{think: thinkReader{state: q.think}, calls: callReader{tools: q.tools, style: q.style}}
	}
	err := s.run(r.Context(), &q.job, st.take)
	if err == nil && q.usage {
		u := usageOf(st.ends)
		err = st.out.data(st.chunk(&u, []chunkChoice{}))
	}
	if err == nil {
		err = st.out.done()
	}
	return s.endStream(r, st.out, err)
}

// endStream tells the client of an error that came after the stream began.
func (s *Server) endStream(r *http.Request, out *sse, err error) error {
	if err == nil || !out.started && out.err == nil {
		return err
	}
	e := toError(err)
	if out.err != nil || r.Context().Err() != nil {
		e = &Error{Status: statusClientGone, Message: "the client is gone"}
	} else {
		out.data(e.body())
		out.done()
	}
	s.note(r, e, err)
	return nil
}

func (st *chatStream) chunk(u *usage, choices []chunkChoice) *chatChunk {
	return &chatChunk{
		ID: st.q.id, Object: "chat.completion.chunk", Created: st.q.created, Model: st.q.model,
		Fingerprint: st.s.fingerprint(), Choices: choices, Usage: u,
	}
}

// send adds a chunk of one choice.
func (st *chatStream) send(c chunkChoice) error {
	chunk := st.chunk(nil, []chunkChoice{c})
	switch {
	case st.q.always:
		u := usageOf(st.ends)
		chunk.Usage = &u
	case st.q.usage:
		return st.out.data(nullUsage{chatChunk: chunk})
	}
	return st.out.data(chunk)
}

// take writes what came.
func (st *chatStream) take(steps []step) error {
	for _, x := range steps {
		if x.err != nil {
			return x.err
		}
		if err := st.begin(x.index); err != nil {
			return err
		}
		if x.end == nil {
			var err error
			if !st.q.logprobs {
				err = st.text(x.index, x.delta.Text, x.delta.Tokens, nil)
			} else if k, ok := st.scored[x.index].piece(&x.delta); ok {
				err = st.text(x.index, x.delta.Text, k.tokens, &k)
			}
			if err != nil {
				return err
			}
			continue
		}
		st.ends[x.index] = x.end
		if st.q.logprobs {
			if text, k := st.scored[x.index].rest(x.end.result); text != "" || len(k.tokens) > 0 {
				if err := st.text(x.index, text, k.tokens, &k); err != nil {
					return err
				}
			}
		}
		if err := st.end(x.index, x.end); err != nil {
			return err
		}
	}
	return st.out.flush()
}

// begin writes the first chunk of a choice, which says who speaks.
func (st *chatStream) begin(index int) error {
	if st.begun[index] {
		return nil
	}
	st.begun[index] = true
	empty := ""
	d := chunkDelta{Role: "assistant", Content: &empty}
	return st.send(chunkChoice{Index: index, Delta: d})
}

// text writes the next text of a choice, with the log-probabilities of its tokens
// if those are wanted.
func (st *chatStream) text(index int, text string, ids []backend.Token, k *scored) error {
	var lp *chatLogprobs
	if k != nil && len(k.logprobs) > 0 {
		lp = st.s.chatLogprobs(*k, st.q.asIDs, st.q.base.ShowControl)
	}
	return st.part(index, st.readers[index].push(text), ids, lp)
}

func (st *chatStream) part(index int, p answerPart, ids []backend.Token, lp *chatLogprobs) error {
	if !st.q.ids {
		ids = nil
	}
	if st.q.silent {
		p.thought = ""
	}
	if p.thought != "" {
		if err := st.send(chunkChoice{Index: index, Delta: chunkDelta{Reasoning: p.thought}, Logprobs: lp, IDs: ids}); err != nil {
			return err
		}
		ids, lp = nil, nil
	}
	if p.said != "" || lp != nil || len(ids) > 0 {
		if err := st.send(chunkChoice{Index: index, Delta: chunkDelta{Content: &p.said}, Logprobs: lp, IDs: ids}); err != nil {
			return err
		}
	}
	for _, c := range p.calls {
		d := chunkDelta{ToolCalls: []toolCall{newCall(c, &c.index)}}
		if err := st.send(chunkChoice{Index: index, Delta: d}); err != nil {
			return err
		}
	}
	return nil
}

func (st *chatStream) end(index int, c *choice) error {
	r := st.readers[index]
	rest := r.finish()
	c.thought = st.s.tokensOf(st.q.base.ShowControl, c, r.think.ended)
	if err := st.part(index, rest, nil, nil); err != nil {
		return err
	}
	reason := finishReason(c.result, st.q.tools, r.calls.calls)
	return st.send(chunkChoice{Index: index, Finish: &reason, Matched: matched(c.result)})
}

// pieces cuts a text into what each of its tokens completes, so that they joined
// are the text. Text beyond the tokens goes with the last.
func (s *Server) pieces(text string, tokens []backend.Token, control bool) []string {
	out := make([]string, 0, len(tokens)+1)
	at, bytes := 0, 0
	for _, id := range tokens {
		bytes += len(s.shown(id, control))
		end := min(bytes, len(text))
		for end > at && end < len(text) && text[end]&0xC0 == 0x80 {
			end--
		}
		end = max(end, at)
		out = append(out, text[at:end])
		at = end
	}
	if at < len(text) {
		if n := len(out); n > 0 {
			out[n-1] += text[at:]
		} else {
			out = append(out, text[at:])
		}
	}
	return out
}
