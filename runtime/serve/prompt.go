package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// prompt is what a generation goes on from.
type prompt struct {
	turns []backend.Turn
	ids   []backend.Token // nil without a vocabulary
	text  string          // of raw prompts, for echo
	think thinking
}

// tokens returns the ids exactly as the backend feeds them, which may begin with
// a BOS that the prompt has not.
func (s *Server) tokens(p *prompt) ([]backend.Token, error) {
	if t, ok := s.be.(backend.Tokenizer); ok {
		return t.Tokenize(p.turns, true)
	}
	if p.ids == nil {
		return nil, badRequest("", "this model shows no token ids")
	}
	return p.ids, nil
}

// fromIDs makes a prompt of ids.
func (s *Server) fromIDs(param string, ids []backend.Token) (prompt, error) {
	v := s.cfg.Vocabulary
	if v == nil {
		return prompt{}, badRequest(param, "this model takes no token ids")
	}
	var text bytes.Buffer
	for _, id := range ids {
		if id < 0 || int(id) >= v.Size() {
			return prompt{}, badRequest(param, "%s holds token %d; the vocabulary has %d", param, id, v.Size())
		}
		text.Write(v.Bytes(id))
	}
	if n := s.info.ContextLength; n > 0 && len(ids) >= n {
		e := toError(&backend.ContextLengthError{Prompt: len(ids), Context: n})
		e.Param = param
		return prompt{}, e
	}
	part := backend.Part{Text: text.String(), Tokens: ids, Model: s.info.Fingerprint}
	return prompt{turns: []backend.Turn{{Role: backend.Raw, Parts: []backend.Part{part}}}, ids: ids, text: part.Text}, nil
}

// fromText makes a prompt of text outside of any chat. Control tokens in it are
// meant: that is how clients of completion APIs write chats themselves.
func (s *Server) fromText(param, text string) (prompt, error) {
	if v := s.cfg.Vocabulary; v != nil && text != "" {
		ids := v.WithBOS(v.EncodePieces([]tokenizer.Piece{{Text: text, Special: true}}))
		p, err := s.fromIDs(param, ids)
		p.text = text
		return p, err
	}
	if !s.info.Capabilities.Raw {
		return prompt{}, badRequest(param, "this model takes chats only: use /v1/chat/completions")
	}
	turn := backend.Turn{Role: backend.Raw, Parts: []backend.Part{{Text: text}}}
	return prompt{turns: []backend.Turn{turn}, text: text}, nil
}

// chatOptions are the ways to render a chat.
type chatOptions struct {
	tools   json.RawMessage // for the template
	extra   map[string]any
	closed  bool   // no assistant turn is begun
	resume  bool   // the last message, an assistant's, goes on
	prefill string // what the assistant's turn begins with
	special bool   // control tokens in prefill are meant
}

// fromChat makes a prompt of messages.
func (s *Server) fromChat(messages []chat.Message, o chatOptions) (prompt, error) {
	if s.cfg.Template == nil {
		return s.chatTurns(messages, o)
	}
	if !s.tools.called {
		messages = callsInText(messages)
	}
	opts := chat.Options{AddGenerationPrompt: !o.closed, Tools: o.tools, Extra: o.extra}
	var open string
	if o.resume {
		open = messages[len(messages)-1].Content
		messages = messages[:len(messages)-1]
		opts.AddGenerationPrompt = true
	}
	pieces, err := s.cfg.Template.Render(messages, opts)
	if err != nil {
		if errors.Is(err, chat.ErrTemplate) {
			return prompt{}, badRequest("messages", "%v", err)
		}
		return prompt{}, err
	}
	if open != "" {
		pieces = append(pieces, tokenizer.Piece{Text: open})
	}
	if o.prefill != "" {
		pieces = append(pieces, tokenizer.Piece{Text: o.prefill, Special: o.special})
	}
	v := s.cfg.Vocabulary
	p, err := s.fromIDs("messages", v.WithBOS(v.EncodePieces(pieces)))
	if n := len(pieces); s.tools.thinks && n > 0 && open == "" && o.prefill == "" && !o.closed {
		p.think = thinkingAfter(pieces[n-1].Text)
	}
	return p, err
}

// chatTurns makes a prompt of messages for a backend that writes chats itself.
func (s *Server) chatTurns(messages []chat.Message, o chatOptions) (prompt, error) {
	if o.closed {
		return prompt{}, badRequest("add_generation_prompt", "this model always begins an assistant turn")
	}
	if len(o.extra) > 0 {
		return prompt{}, badRequest("chat_template_kwargs", "the chat template is not at hand here")
	}
	var turns []backend.Turn
	for _, m := range callsInText(messages) {
		turns = append(turns, backend.Turn{Role: backend.Role(m.Role), Parts: []backend.Part{{Text: m.Content}}})
	}
	switch {
	case o.resume:
		turns[len(turns)-1].Open = true
	case o.prefill != "":
		turns = append(turns, backend.Turn{Role: backend.Assistant, Open: true})
	}
	if o.prefill != "" {
		last := &turns[len(turns)-1]
		last.Parts = append(last.Parts, backend.Part{Text: o.prefill})
	}
	p := prompt{turns: turns}
	if t, ok := s.be.(backend.Tokenizer); ok {
		ids, err := t.Tokenize(turns, true)
		if err != nil {
			return p, err
		}
		if n := s.info.ContextLength; n > 0 && len(ids) >= n {
			e := toError(&backend.ContextLengthError{Prompt: len(ids), Context: n})
			e.Param = "messages"
			return p, e
		}
	}
	return p, nil
}

// callsInText puts the calls of messages into their texts, for models whose template
// does not print them: they would be lost.
func callsInText(messages []chat.Message) []chat.Message {
	out := slices.Clone(messages)
	for i := range out {
		m := &out[i]
		for _, c := range m.ToolCalls {
			if m.Content != "" {
				m.Content += "\n"
			}
			m.Content += callText(c.Name, c.Arguments)
		}
		m.ToolCalls = nil
	}
	return out
}

// readMessages reads the messages of a chat.
func readMessages(f *fields) []chat.Message {
	items, ok := f.list("messages")
	if !ok || len(items) == 0 {
		f.fail("messages", "is to be a list of at least one message")
		return nil
	}
	out := make([]chat.Message, 0, len(items))
	for i, item := range items {
		m := f.within(fmt.Sprintf("messages.%d", i), item)
		msg := chat.Message{Role: m.text("role"), Name: m.text("name"), ToolCallID: m.text("tool_call_id")}
		switch msg.Role {
		case "developer":
			msg.Role = "system"
		case "system", "user", "assistant", "tool":
		case "":
			m.fail("role", "is missing")
		default:
			m.fail("role", "is %q; it is to be system, developer, user, assistant or tool", clip(msg.Role))
		}
		msg.Content = readContent(m)
		msg.ToolCalls = readToolCalls(m)
		if msg.Role != "assistant" && len(msg.ToolCalls) > 0 {
			m.fail("tool_calls", "is for assistants")
		}
		if msg.Role != "assistant" && !m.has("content") {
			m.fail("content", "is missing")
		}
		m.refuse("use tool_calls", "function_call")
		m.refuse("the model takes text only", "audio")
		out = append(out, msg)
	}
	return out
}

// readContent reads content that is a string or a list of parts.
func readContent(m *fields) string { return readText(m, "content") }

func readToolCalls(m *fields) []chat.ToolCall {
	items, ok := m.list("tool_calls")
	if !ok {
		return nil
	}
	var out []chat.ToolCall
	for i, item := range items {
		c := m.within(fmt.Sprintf("tool_calls.%d", i), item)
		if kind := c.text("type"); kind != "" && kind != "function" {
			c.fail("type", "is %q; it is to be function", clip(kind))
		}
		fn := c.object("function")
		if fn == nil {
			c.fail("function", "is missing")
			continue
		}
		call := chat.ToolCall{ID: c.text("id"), Name: fn.text("name"), Arguments: fn.raw("arguments")}
		if call.Name == "" {
			fn.fail("name", "is missing")
		}
		out = append(out, call)
	}
	return out
}

// checkModel refuses requests for a model that is not here.
func (s *Server) checkModel(f *fields) error {
	name := f.text("model")
	if err := f.err(); err != nil {
		return err
	}
	if name == "" || name == "default" {
		return nil
	}
	for _, n := range s.cfg.Names {
		if n == name {
			return nil
		}
	}
	return &Error{Status: http.StatusNotFound, Type: typeNotFound, Param: "model", Code: "model_not_found", Message: fmt.Sprintf("the model %q does not exist; there is %s", clip(name), strings.Join(s.cfg.Names, ", "))}
}
