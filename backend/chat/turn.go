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
// generation prompt, and without what it prints at the end of a conversation only),
// then comes the content, then close. With an empty history open
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
	before, err := t.settled(history, opts)
	if err != nil {
		return nil, nil, err
	}
	next := append(history[:len(history):len(history)], Message{Role: role, Content: placeholder})
	after, err := t.settled(next, opts)
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
	before, err := t.settled(history, opts)
	if err != nil {
		return nil, err
	}
	all := append(history[:len(history):len(history)], messages...)
	var after jinja.Text
	if opts.AddGenerationPrompt {
		after, err = t.render(all, &opts, -1)
	} else {
		after, err = t.settled(all, opts)
	}
	if err != nil {
		return nil, err
	}
	rest, err := extend(before, after, all)
	if err != nil {
		return nil, err
	}
	return pieces(rest), nil
}

// settled is the text of messages without a generation prompt, the content of the last
// one marked. Nothing comes before the first message, whatever a template would print
// for no messages at all.
//
// Some templates end a conversation with a text that is not there once a message
// follows (Phi-3.5 prints EOS). Such an ending is left out.
func (t *Template) settled(messages []Message, opts Options) (jinja.Text, error) {
	opts.AddGenerationPrompt = false
	if len(messages) == 0 {
		return jinja.Text{}, nil
	}
	text, err := t.render(messages, &opts, len(messages)-1)
	if err != nil || !t.endings() {
		return text, err
	}
	return text.Prefix(t.ending(text, messages, opts)), nil
}

// ending returns where the ending of a conversation begins in its text, which is the
// length of the text if there is none.
func (t *Template) ending(text jinja.Text, messages []Message, opts Options) int {
	follow := "assistant"
	if messages[len(messages)-1].Role == follow {
		follow = "user"
	}
	longer, err := t.render(append(messages[:len(messages):len(messages)], Message{Role: follow, Content: placeholder}), &opts, -1)
	if err != nil || strings.HasPrefix(longer.S, text.S) {
		return len(text.S)
	}
	content, at := -1, 0 // where the content of the last message ends
	for _, r := range text.Runs() {
		at += len(r.Text)
		if r.Flag&jinja.Slot != 0 {
			content = at
		}
	}
	n := common(text.S, longer.S)
	// The two may differ inside control tokens that begin alike.
	if i := strings.LastIndexAny(text.S[:n], "<["); i >= 0 && !strings.ContainsAny(text.S[i:n], ">]") {
		n = i
	}
	if content < 0 || n < content {
		return len(text.S) // more than the end changes
	}
	return n
}

// hasEndings tells whether the template is of the kind with endings.
func (t *Template) hasEndings() bool {
	user, reply := Message{Role: "user", Content: "question"}, Message{Role: "assistant", Content: placeholder}
	for _, messages := range [][]Message{{user}, {user, reply}} {
		text, err := t.render(messages, &Options{}, len(messages)-1)
		if err == nil && t.ending(text, messages, Options{}) < len(text.S) {
			return true
		}
	}
	return false
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
