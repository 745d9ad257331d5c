package serve

import (
	"context"
	"net/http"

	"github.com/gorilla/websocket"
)

// chatFrame is what a WebSocketChatTransport of the AI SDK is sent.
type chatFrame struct {
	Type      string  `json:"type"` // start, chunk, end, error, no-active
	RequestID string  `json:"requestId"`
	Sequence  *int    `json:"sequence,omitempty"` // of chunks, from 0 without a gap
	Chunk     uiChunk `json:"chunk,omitempty"`
	ErrorText string  `json:"errorText,omitempty"`
}

// programChat is GET /v1/programs/{name}/chat: a websocket on which each message
// sent starts a run, whose events come back as the chunks of the answer. After a
// drop the client asks to resume its chat and gets the answer from its beginning.
func (s *Server) programChat(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if _, _, err := s.program(tenantOf(r.Context()), name); err != nil {
		return err
	}
	return s.serveSocket(w, r, func(c *socket) func([]byte) bool {
		return func(data []byte) bool { return c.chat(name, data) }
	})
}

// chat takes a frame: send, resume or abort.
func (c *socket) chat(program string, data []byte) bool {
	f, err := parseFields(data)
	if err != nil {
		c.end(websocket.CloseUnsupportedData, "a frame is to be a JSON object")
		return false
	}
	id, kind := f.text("requestId"), f.text("type")
	fail := func(err error) bool {
		return c.send(c.ctx, chatFrame{Type: "error", RequestID: id, ErrorText: toError(err).Message})
	}
	if err := f.err(); err != nil {
		return fail(err)
	}
	var (
		x    *run
		from uint64 // the event behind which it is told
	)
	switch kind {
	case "send":
		if body := f.object("body"); body != nil && body.has("inputs") {
			f.members["inputs"] = body.raw("inputs")
		}
		if x, from, err = c.s.startChat(c.ctx, c.tenant, program, f); err != nil {
			return fail(err)
		}
	case "resume":
		if x = c.tenant.chatOf(c.ctx, f.text("id")); x == nil || f.err() != nil {
			return c.send(c.ctx, chatFrame{Type: "no-active", RequestID: id})
		}
	case "abort":
		c.mu.Lock()
		w := c.watches[id]
		c.mu.Unlock()
		if w != nil {
			w.stop()
			<-w.done // the name is free again
			w.run.cancel(errCancelled)
		}
		return true
	default:
		return fail(badRequest("type", "type is %q; it is to be send, resume or abort", clip(kind)))
	}
	err = c.follow(x, id, chatFrame{Type: "start", RequestID: id}, func(ctx context.Context) {
		n := 0
		for chunks := range tell(ctx, x, from, newUIMessage(x.id)) {
			for _, chunk := range chunks {
				seq := n
				if !c.send(ctx, chatFrame{Type: "chunk", RequestID: id, Sequence: &seq, Chunk: chunk}) {
					return
				}
				n++
			}
		}
		if x.broke(ctx) && x.suspended() { // the client comes back for the rest
			return
		}
		c.send(ctx, chatFrame{Type: "end", RequestID: id})
	})
	if err != nil {
		if kind == "send" && from == 0 { // nobody would ever watch it
			x.cancel(errCancelled)
		}
		return fail(err)
	}
	return true
}

// chatOf returns the newest run of a chat that goes on, nil if there is none.
func (t *tenant) chatOf(ctx context.Context, id string) *run {
	x := t.lastOf(id)
	if x != nil && x.taken(ctx) != nil {
		return nil
	}
	return x
}

func (t *tenant) lastOf(chat string) *run {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.order) - 1; i >= 0 && chat != ""; i-- {
		if x := t.order[i]; x.chat == chat && !x.over() {
			return x
		}
	}
	return nil
}
