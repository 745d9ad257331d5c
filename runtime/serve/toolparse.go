package serve

import (
	"encoding/json"
	"strings"
)

// call is a call that a model made, or a piece of one.
type call struct {
	index int    // among the calls of the choice
	name  string // set on the first piece only
	args  string // JSON text, or the next piece of it
}

// callReader finds the calls in the text of a choice as it comes. What it hands
// out never changes: text that may be the beginning of a call is held back. Its
// pieces are the same however the text is cut, up to where they are cut.
type callReader struct {
	tools *toolset
	style toolStyle
	held  string // text not handed out yet
	calls int
	text  bool   // some text was handed out
	in    bool   // held began with an open tag, which is taken off
	gap   string // blanks before that tag, which are dropped with a call
}

// push takes the next text and returns what is certain now.
func (r *callReader) push(text string) (content string, calls []call) {
	switch r.tools.choice {
	case toolsNone:
		return text, nil
	case toolsNamed:
		return "", r.piece(text)
	case toolsRequired:
		r.held += text
		return "", r.elements()
	}
	r.held += text
	var out strings.Builder
	for {
		if r.in {
			end := strings.Index(r.held, closeTag)
			if end < 0 {
				break
			}
			body := r.held[:end]
			r.held, r.in = r.held[end+len(closeTag):], false
			c, ok := r.parse(body)
			switch {
			case !ok:
				out.WriteString(r.gap + openTag + body + closeTag)
			case r.calls == 0 || r.tools.parallel:
				c.index = r.calls
				r.calls++
				calls = append(calls, c)
			}
			continue
		}
		if at := strings.Index(r.held, openTag); at >= 0 {
			before := strings.TrimRight(r.held[:at], blanks)
			out.WriteString(before)
			r.gap = r.held[len(before):at]
			r.held, r.in = r.held[at+len(openTag):], true
			continue
		}
		keep := r.keep()
		out.WriteString(r.between(r.held[:len(r.held)-keep]))
		r.held = r.held[len(r.held)-keep:]
		break
	}
	content = out.String()
	r.text = r.text || content != ""
	return content, calls
}

// blanks between text and calls are part of neither.
const blanks = " \r\n\t"

// between is the text between calls, without the blanks that only separate them.
func (r *callReader) between(text string) string {
	if r.calls > 0 && strings.TrimSpace(text) == "" {
		return ""
	}
	return text
}

// keep is the length of the end of held that may be the beginning of a call.
func (r *callReader) keep() int {
	if !r.text && !r.style.tagged && strings.HasPrefix(strings.TrimSpace(r.held), "{") {
		return len(r.held) // the whole answer may be a call
	}
	n := overlap(r.held, openTag)
	blank := len(r.held) - n - len(strings.TrimRight(r.held[:len(r.held)-n], blanks))
	return n + blank
}

// finish hands out the rest. A call that was cut off is text in a free answer;
// a required one is dropped, since half of it is of no use.
func (r *callReader) finish() (content string, calls []call) {
	held := r.held
	r.held = ""
	switch {
	case r.tools.choice != toolsAuto:
		return "", nil
	case r.in:
		r.in = false
		if c, ok := r.parse(held); ok && (r.calls == 0 || r.tools.parallel) {
			c.index = r.calls
			r.calls++
			return "", []call{c}
		}
		return r.gap + openTag + held, nil
	case !r.style.tagged && !r.text:
		if c, ok := r.parse(held); ok {
			r.calls++
			return "", []call{c}
		}
	}
	return r.between(held), nil
}

// piece is the next text of the one call whose name is known.
func (r *callReader) piece(text string) []call {
	if text == "" {
		return nil
	}
	c := call{args: text}
	if r.calls == 0 {
		r.calls, c.name = 1, r.tools.named.name
	}
	return []call{c}
}

// elements takes complete calls off held, which is one, or a list of them.
func (r *callReader) elements() (calls []call) {
	for {
		r.held = strings.TrimLeft(r.held, "[, \r\n\t]")
		end := objectEnd(r.held)
		if end < 0 {
			return calls
		}
		c, ok := r.parse(r.held[:end])
		r.held = r.held[end:]
		if ok {
			c.index = r.calls
			r.calls++
			calls = append(calls, c)
		}
	}
}

// objectEnd is the length of the JSON object that text begins with, -1 if it is
// not complete.
func objectEnd(text string) int {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// parse reads the JSON of a call of one of the tools.
func (r *callReader) parse(text string) (call, bool) {
	f, err := parseFields([]byte(text))
	if err != nil {
		return call{}, false
	}
	args := f.raw("arguments")
	if args == nil {
		args = f.raw("parameters")
	}
	c := call{name: f.text("name"), args: string(args)}
	if s, ok := jsonString(args); ok {
		c.args = s
	}
	if args == nil {
		c.args = "{}"
	}
	return c, f.err() == nil && r.tools.find(c.name) != nil && json.Valid([]byte(c.args))
}
