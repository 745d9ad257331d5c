package serve

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return errDraining
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, map[string]string{"version": s.cfg.Version})
	return nil
}

// load is how busy the server is, as vLLM says it.
func (s *Server) load(w http.ResponseWriter, r *http.Request) error {
	if !tenantOf(r.Context()).sees {
		return errNotOperator
	}
	s.mu.Lock()
	n := s.inFlight
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, map[string]int{"server_load": n})
	return nil
}

// modelCard is a model in /v1/models.
type modelCard struct {
	ID           string               `json:"id"`
	Object       string               `json:"object"`
	Created      int64                `json:"created"`
	OwnedBy      string               `json:"owned_by"`
	Root         string               `json:"root"`
	Parent       *string              `json:"parent"`
	MaxModelLen  int                  `json:"max_model_len,omitempty"`
	Capabilities backend.Capabilities `json:"capabilities"`
}

func (s *Server) card(name string) modelCard {
	return modelCard{
		ID: name, Object: "model", Created: s.started.Unix(), OwnedBy: "coppice", Root: s.cfg.Names[0],
		MaxModelLen: s.info.ContextLength, Capabilities: s.info.Capabilities,
	}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) error {
	list := []modelCard{}
	for _, n := range s.cfg.Names {
		list = append(list, s.card(n))
	}
	writeJSON(w, http.StatusOK, struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", list})
	return nil
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	for _, n := range s.cfg.Names {
		if n == name {
			writeJSON(w, http.StatusOK, s.card(n))
			return nil
		}
	}
	return notFound("model_not_found", "the model %q does not exist", clip(name))
}

// readIDs reads a list of token ids.
func readIDs(raw json.RawMessage) ([]backend.Token, bool) {
	var items []json.RawMessage
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &items) != nil {
		return nil, false
	}
	ids := make([]backend.Token, len(items))
	for i, item := range items {
		n, ok := jsonInt(bytes.TrimSpace(item))
		if !ok || n < math.MinInt32 || n > math.MaxInt32 {
			return nil, false
		}
		ids[i] = backend.Token(n)
	}
	return ids, true
}

// tokenize is POST /tokenize, for a prompt or for messages, as vLLM has it.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	if err := s.checkModel(f); err != nil {
		return err
	}
	v := s.cfg.Vocabulary
	var ids []backend.Token
	switch {
	case f.has("messages"):
		messages := readMessages(f)
		tools := readTools(f)
		named := f.flag("return_token_strs", false)
		if err := f.err(); err != nil {
			return err
		}
		tools.choice = min(tools.choice, toolsAuto)
		msgs, o, _ := tools.plan(messages, s.tools)
		o.closed = !f.flag("add_generation_prompt", true)
		if o.resume = f.flag("continue_final_message", false); o.resume {
			if len(msgs) == 0 || msgs[len(msgs)-1].Role != "assistant" {
				f.fail("continue_final_message", "needs an assistant's message at the end")
			}
			o.closed = false
		}
		o.extra = s.readTemplate(f)
		f.refuse("the template is the model's", "chat_template")
		if err := f.err(); err != nil {
			return err
		}
		if ids, err = s.chatIDs(msgs, o); err != nil {
			return err
		}
		return s.writeTokens(w, ids, named)
	case v == nil:
		return badRequest("", "this model shows no token ids")
	}
	text, name := f.text("prompt"), "prompt"
	if !f.has("prompt") {
		text, name = f.text("text"), "text"
	}
	if !f.has(name) {
		f.fail("prompt", "is missing; give prompt or messages")
	}
	bos := f.flag("add_special_tokens", true)
	named := f.flag("return_token_strs", false)
	if err := f.err(); err != nil {
		return err
	}
	ids = v.EncodePieces([]tokenizer.Piece{{Text: text, Special: true}})
	if bos {
		ids = v.WithBOS(ids)
	}
	return s.writeTokens(w, ids, named)
}

// chatIDs are the ids of a chat as a generation would feed them.
func (s *Server) chatIDs(messages []chat.Message, o chatOptions) ([]backend.Token, error) {
	p, err := s.fromChat(messages, o)
	if err != nil {
		return nil, err
	}
	return s.tokens(&p)
}

func (s *Server) writeTokens(w http.ResponseWriter, ids []backend.Token, named bool) error {
	var names []string
	if named && s.cfg.Vocabulary != nil {
		names = make([]string, len(ids))
		for i, id := range ids {
			names[i] = s.cfg.Vocabulary.Text(id)
		}
	}
	if ids == nil {
		ids = []backend.Token{}
	}
	writeJSON(w, http.StatusOK, struct {
		Count  int             `json:"count"`
		Max    int             `json:"max_model_len"`
		Tokens []backend.Token `json:"tokens"`
		Names  []string        `json:"token_strs"`
	}{len(ids), s.info.ContextLength, ids, names})
	return nil
}

// detokenize is POST /detokenize. Control tokens stand for no text.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	if err := s.checkModel(f); err != nil {
		return err
	}
	ids, ok := readIDs(f.raw("tokens"))
	if !ok {
		return badRequest("tokens", "tokens is to be a list of token ids")
	}
	v := s.cfg.Vocabulary
	if v == nil {
		return badRequest("", "this model shows no token ids")
	}
	var text bytes.Buffer
	for _, id := range ids {
		if id < 0 || int(id) >= v.Size() {
			return badRequest("tokens", "tokens holds %d; the vocabulary has %d", id, v.Size())
		}
		text.Write(v.Bytes(id))
	}
	writeJSON(w, http.StatusOK, map[string]string{"prompt": strings.ToValidUTF8(text.String(), "\ufffd")})
	return nil
}
