package engine

import (
	"errors"
	"slices"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// Template writes turns.
type Template interface {
	// Turn returns what stands around the content of a turn of role that
	// follows history. It is asked for every turn in order, and what it said of
	// earlier turns is in the prompt already.
	Turn(history []backend.Turn, role backend.Role) (Around, error)
}

// Around is what stands around the content of a turn. Control tokens are
// recognised in it where a piece is special, and never in the content.
type Around struct {
	Open, Close []tokenizer.Piece
	// Held says that the template does not print the content here, only Open:
	// the content is part of what opens the next turn.
	Held bool
}

// PlainTemplate is the template of models that have none: each turn on a line
// of its own, after its role and a colon. No blank follows the assistant's
// colon: models write it with the first word.
func PlainTemplate() Template { return plainTurns{} }

type plainTurns struct{}

func (plainTurns) Turn(_ []backend.Turn, role backend.Role) (Around, error) {
	open := string(role) + ": "
	if role == backend.Assistant {
		open = string(role) + ":"
	}
	return Around{Open: []tokenizer.Piece{{Text: open}}, Close: []tokenizer.Piece{{Text: "\n"}}}, nil
}

// ChatTemplate makes a chat template usable by an engine.
//
// The template is asked turn by turn, so a prompt is what it prints for the
// same messages, but for blanks that it trims off contents. Where it refuses,
// because roles do not alternate or because it would print earlier turns in
// another way, the turn is written with the marks that it puts around such a
// turn in an ordinary conversation: so two user turns in a row are two user
// turns, and a prompt never changes behind what is computed already.
func ChatTemplate(t *chat.Template) Template {
	c := &chatTurns{t: t, marks: make(map[backend.Role]Around)}
	u := chat.Message{Role: string(backend.User), Content: "question"}
	a := chat.Message{Role: string(backend.Assistant), Content: "answer"}
	s := chat.Message{Role: string(backend.System), Content: "instruction"}
	learn := func(role backend.Role, histories ...[]chat.Message) {
		for _, h := range histories {
			if open, close, err := t.Turn(h, string(role)); err == nil {
				c.marks[role] = Around{Open: open, Close: close}
				return
			}
		}
	}
	learn(backend.User, []chat.Message{u, a}, []chat.Message{s}, nil)
	learn(backend.Assistant, []chat.Message{u}, []chat.Message{s, u})
	learn(backend.Tool, []chat.Message{u, a})
	learn(backend.System, []chat.Message{u, a}, []chat.Message{u})
	if open, _, err := t.Turn(nil, string(backend.User)); err == nil {
		c.first = open
	}
	return c
}

type chatTurns struct {
	t     *chat.Template
	marks map[backend.Role]Around // of turns in the middle of a conversation
	first []tokenizer.Piece       // what opens a first user turn
}

// toolFormat says how the models of a template write tool calls, "" if it is not
// known.
func toolFormat(t Template) string {
	if c, ok := t.(*chatTurns); ok {
		return c.t.ToolFormat()
	}
	return ""
}

// messages are the turns as the template sees them; raw text is none.
func messages(turns []backend.Turn) []chat.Message {
	out := make([]chat.Message, 0, len(turns))
	for _, t := range turns {
		if t.Role != backend.Raw {
			out = append(out, chat.Message{Role: string(t.Role), Content: t.Text()})
		}
	}
	return out
}

func (c *chatTurns) Turn(history []backend.Turn, role backend.Role) (Around, error) {
	h := messages(history)
	held := len(h) > 0 && c.holds(h[:len(h)-1], h[len(h)-1].Role)
	// A conversation after raw text does not begin a text: no BOS, no default
	// system prompt.
	inside := len(h) == 0 && slices.ContainsFunc(history, func(t backend.Turn) bool { return t.Text() != "" })
	if !inside && (!held || role == backend.User) {
		open, close, err := c.t.Turn(h, string(role))
		if err == nil {
			return Around{Open: open, Close: close}, nil
		}
		if c.holds(h, string(role)) {
			open, err := c.t.Append(nil, []chat.Message{{Role: string(role)}}, chat.Options{})
			return Around{Open: open, Held: true}, err
		}
		if _, ok := c.marks[backend.User]; !ok {
			return Around{}, err
		}
	}
	if inside && len(c.marks) == 0 {
		return Around{}, errors.New("the template writes no turn in the middle of a text")
	}
	a, ok := c.marks[role]
	if !ok { // a role that the template does not know speaks as the user
		a = c.marks[backend.User]
	}
	switch {
	case held:
		// What was held back becomes a user's turn of its own.
		u := c.marks[backend.User]
		open := u.Open
		a.Open = concatPieces(open, []tokenizer.Piece{{Text: h[len(h)-1].Content}}, u.Close, a.Open)
	case len(h) == 0 && !inside && role != backend.Assistant:
		a.Open = c.first
	}
	return a, nil
}

// holds reports whether the template prints a turn of role only with the next.
// Only a first system message is treated so.
func (c *chatTurns) holds(history []chat.Message, role string) bool {
	if len(history) > 0 || role != string(backend.System) {
		return false
	}
	_, _, err := c.t.Turn(nil, role)
	return errors.Is(err, chat.ErrNotIncremental)
}

func concatPieces(lists ...[]tokenizer.Piece) (out []tokenizer.Piece) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// FileTemplate returns what an engine writes the chats of a model file with: the
// file's own template; ChatML if it has none but knows ChatML's control tokens;
// else PlainTemplate, for which t is nil.
func FileTemplate(f *gguf.File, tok *tokenizer.Tokenizer) (t *chat.Template, which backend.Template, err error) {
	t, err = chat.FromGGUF(f)
	if !errors.Is(err, chat.ErrNoTemplate) {
		return t, backend.OwnTemplate, err
	}
	start, ok := tok.Lookup("<|im_start|>")
	end, ok2 := tok.Lookup("<|im_end|>")
	if !ok || !ok2 || !tok.IsControl(start) || !tok.IsControl(end) {
		return nil, backend.PlainTemplate, nil
	}
	t, err = chat.Builtin(chat.ChatML)
	return t, backend.ChatMLTemplate, err
}

// templateOf is FileTemplate for an engine.
func templateOf(f *gguf.File, tok *tokenizer.Tokenizer) (Template, backend.Template, error) {
	t, which, err := FileTemplate(f, tok)
	if err != nil || t == nil {
		return plainTurns{}, which, err
	}
	return ChatTemplate(t), which, nil
}
