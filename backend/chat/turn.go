package chat

import (
	"fmt"
	"strings"

	"github.com/coppice-run/coppice/backend/chat/internal/jinja"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// placeholder stands for content that is not known yet. Letters only, so that neither
// trimming nor changing its case makes a difference.
const placeholder = "content"

// Turn gives what the template puts before and after the content of a next message of
// the given role: open follows the text of history (as Render gives it without a
// generation prompt), then comes the content, then close. With an empty history open
// holds all that starts a conversation: BOS, a default system prompt. For the role
// "assistant" open is the generation prompt.
//
// A runtime appends turns to a stream of tokens with it, without rendering or
// tokenising again what is there. Note that a template which trims content does so in
// Render but cannot do it here.
//
// The error matches ErrNotIncremental when the template prints the history otherwise
// once a message follows, or holds the content back (Gemma prints a system message
// inside the first user turn: see Append), and ErrTemplate when the template refuses
// the sequence of roles.
func (t *Template) Turn(history []Message, role string) (open, close []tokenizer.Piece, err error) {
	return t.TurnWith(history, role, Options{})
}

// TurnWith is Turn with the options that the conversation is rendered with.
// AddGenerationPrompt is not looked at.
func (t *Template) TurnWith(history []Message, role string, opts Options) (open, close []tokenizer.Piece, err error) {
	before, err := t.past(history, &opts)
	if err != nil {
		return nil, nil, err
	}
	next := append(history[:len(history):len(history)], Message{Role: role, Content: placeholder})
	opts.AddGenerationPrompt = false
	after, err := t.render(next, &opts, len(history))
	if err != nil {
		return nil, nil, err
	}
	rest, err := extend(before, after, next)
	if err != nil {
		return nil, nil, err
	}
	head, tail, err := around(rest, next)
	if err != nil {
		return nil, nil, err
	}
	if role == "assistant" {
		opts.AddGenerationPrompt = true
		prompt, err := t.render(history, &opts, -1)
		if err != nil {
			return nil, nil, err
		}
		if head, err = extend(before, prompt, history); err != nil {
			return nil, nil, err
		}
	}
	return pieces(head), pieces(tail), nil
}

// Append gives the text by which messages extend the text of history. Unlike Turn it
// knows their content, so it works for templates that hold a message back or trim it.
func (t *Template) Append(history []Message, messages []Message, opts Options) ([]tokenizer.Piece, error) {
	prompt := opts.AddGenerationPrompt
	before, err := t.past(history, &opts)
	if err != nil {
		return nil, err
	}
	opts.AddGenerationPrompt = prompt
	all := append(history[:len(history):len(history)], messages...)
	after, err := t.render(all, &opts, -1)
	if err != nil {
		return nil, err
	}
	rest, err := extend(before, after, all)
	if err != nil {
		return nil, err
	}
	return pieces(rest), nil
}

// past is the text of the history, without a generation prompt. Nothing comes before
// the first message, whatever a template would print for no messages at all.
func (t *Template) past(history []Message, opts *Options) (jinja.Text, error) {
	opts.AddGenerationPrompt = false
	if len(history) == 0 {
		return jinja.Text{}, nil
	}
	return t.render(history, opts, -1)
}

// extend returns what after adds to before.
func extend(before, after jinja.Text, messages []Message) ([]jinja.Run, error) {
	if !strings.HasPrefix(after.S, before.S) {
		return nil, fmt.Errorf("%w: with roles %s it prints the earlier turns differently from %d bytes on",
			ErrNotIncremental, roleList(messages), common(before.S, after.S))
	}
	skip := len(before.S)
	var out []jinja.Run
	for _, r := range after.Runs() {
		if skip >= len(r.Text) {
			skip -= len(r.Text)
			continue
		}
		out = append(out, jinja.Run{Text: r.Text[skip:], Flag: r.Flag})
		skip = 0
	}
	return out, nil
}

// common is the length of the common start of a and b.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// around splits runs into what comes before and after the placeholder.
func around(runs []jinja.Run, messages []Message) (head, tail []jinja.Run, err error) {
	at := -1
	for i, r := range runs {
		if r.Flag&jinja.Slot == 0 {
			continue
		}
		if at >= 0 || !strings.EqualFold(r.Text, placeholder) {
			return nil, nil, fmt.Errorf("%w: it prints the content of a %s message more than once or in parts",
				ErrNotIncremental, messages[len(messages)-1].Role)
		}
		at = i
	}
	if at < 0 {
		return nil, nil, fmt.Errorf("%w: after roles %s it does not print a %s message before the next one comes",
			ErrNotIncremental, roleList(messages[:len(messages)-1]), messages[len(messages)-1].Role)
	}
	return runs[:at], runs[at+1:], nil
}
