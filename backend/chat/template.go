package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/coppice-run/coppice/backend/chat/internal/jinja"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

var (
	// ErrNoTemplate says that a model file has no chat template. Pick one with Builtin.
	ErrNoTemplate = errors.New("the model file has no chat template")

	// ErrTemplate marks errors of a template: its text cannot be parsed, it raised an
	// exception, or it used a value in a way that is not possible.
	ErrTemplate = errors.New("chat template")

	// ErrNotIncremental says that a turn cannot be appended: the template prints the
	// turns before it in another way once it follows, or does not print its content
	// once and in one place.
	ErrNotIncremental = errors.New("the chat template is not incremental")

	// ErrLimit marks templates that take too many steps, too much memory or go too
	// deep. It comes together with ErrTemplate.
	ErrLimit = jinja.ErrLimit
)

// Template is a chat template. It is immutable and safe for concurrent use.
type Template struct {
	main     *jinja.Template
	toolUse  *jinja.Template // for conversations with tools, if the file has its own
	source   string
	bos, eos string

	endings func() bool // see settled
}

// Parse reads a template in the Jinja language. bos and eos are the texts of the
// tokens that it knows as bos_token and eos_token.
func Parse(src, bos, eos string) (*Template, error) {
	t, err := jinja.Parse(src)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	out := &Template{main: t, source: src, bos: bos, eos: eos}
	out.endings = sync.OnceValue(out.hasEndings)
	return out, nil
}

// FromGGUF reads the chat template of a model file. The error is ErrNoTemplate if
// there is none.
func FromGGUF(f *gguf.File) (*Template, error) {
	src, ok := f.String("tokenizer.chat_template")
	if !ok || strings.TrimSpace(src) == "" {
		return nil, ErrNoTemplate
	}
	t, err := Parse(src, tokenText(f, "bos"), tokenText(f, "eos"))
	if err != nil {
		return nil, err
	}
	if src, ok := f.String("tokenizer.chat_template.tool_use"); ok {
		if t.toolUse, err = jinja.Parse(src); err != nil {
			return nil, fmt.Errorf("%w: tool_use: %w", ErrTemplate, err)
		}
	}
	return t, nil
}

// tokenText is the text of a special token named in the metadata, or "".
func tokenText(f *gguf.File, name string) string {
	id, ok := f.Uint("tokenizer.ggml." + name + "_token_id")
	tokens, _ := f.Strings("tokenizer.ggml.tokens")
	if !ok || id >= uint64(len(tokens)) {
		return ""
	}
	return tokens[id]
}

// Source is the text of the template.
func (t *Template) Source() string { return t.source }

// Render is the text of a conversation, in pieces: what the template says is special,
// what messages and tools say is plain.
func (t *Template) Render(messages []Message, opts Options) ([]tokenizer.Piece, error) {
	text, err := t.render(messages, &opts, -1)
	if err != nil {
		return nil, err
	}
	return pieces(text.Runs()), nil
}

// render runs the template. The content of the message at index slot is marked.
func (t *Template) render(messages []Message, opts *Options, slot int) (jinja.Text, error) {
	vars, err := t.vars(messages, opts, slot)
	if err != nil {
		return jinja.Text{}, err
	}
	tmpl := t.main
	if tools, _ := vars.Get("tools"); tools != nil && t.toolUse != nil {
		tmpl = t.toolUse
	}
	text, err := tmpl.Execute(vars, opts.Now)
	if err != nil {
		return jinja.Text{}, fmt.Errorf("%w: for messages of roles %s: %w", ErrTemplate, roleList(messages), err)
	}
	return text, nil
}

// roleList names the roles of a conversation, the middle of a long one left out.
func roleList(messages []Message) string {
	if len(messages) == 0 {
		return "(none)"
	}
	var names []string
	for _, m := range messages {
		names = append(names, m.Role)
	}
	if len(names) > 8 {
		names = slices.Concat(names[:3], []string{fmt.Sprintf("(%d more)", len(names)-6)}, names[len(names)-3:])
	}
	return strings.Join(names, ", ")
}

// pieces turns runs into pieces, joining those that are alike.
func pieces(runs []jinja.Run) (out []tokenizer.Piece) {
	for _, r := range runs {
		special := r.Flag == jinja.Trusted
		if n := len(out); n > 0 && out[n-1].Special == special {
			out[n-1].Text += r.Text
		} else {
			out = append(out, tokenizer.Piece{Text: r.Text, Special: special})
		}
	}
	return out
}
