package serve

import "strings"

// Models that think before they answer write their thoughts between these.
const (
	openThink  = "<think>"
	closeThink = "</think>"
)

// thinking says what a prompt leaves to the model.
type thinking uint8

const (
	thinksNot  thinking = iota
	thinksMay           // an answer may begin with thoughts
	thinksOpen          // the prompt has begun them
)

// thinkingAfter is what the end of a rendered prompt says.
func thinkingAfter(text string) thinking {
	text = strings.TrimRight(text, blanks)
	switch {
	case strings.HasSuffix(text, openThink):
		return thinksOpen
	case strings.HasSuffix(text, closeThink):
		return thinksNot
	}
	return thinksMay
}

// thinkReader parts what a model thinks from what it says, as the text comes.
// What it hands out never changes, and is the same however the text is cut.
type thinkReader struct {
	state thinking
	held  string // not handed out yet
	read  int    // bytes of the text up to here
	ended int    // bytes of the text up to the end of the thoughts
	trim  bool   // blanks after the thoughts are still to be dropped
}

// push takes the next text.
func (r *thinkReader) push(text string) (thought, said string) {
	r.read += len(text)
	if r.state == thinksNot && !r.trim {
		return "", text
	}
	r.held += text
	if r.state == thinksMay {
		begun := strings.TrimLeft(r.held, blanks)
		switch {
		case strings.HasPrefix(begun, openThink):
			r.held, r.state = begun[len(openThink):], thinksOpen
		case strings.HasPrefix(openThink, begun):
			return "", ""
		default:
			r.state = thinksNot
		}
	}
	if r.state == thinksOpen {
		at := strings.Index(r.held, closeThink)
		if at < 0 {
			keep := overlap(r.held, closeThink)
			keep += len(r.held) - keep - len(strings.TrimRight(r.held[:len(r.held)-keep], blanks))
			thought = r.held[:len(r.held)-keep]
			r.held = r.held[len(r.held)-keep:]
			r.ended = r.read
			return thought, ""
		}
		thought = strings.TrimRight(r.held[:at], blanks)
		r.held = r.held[at+len(closeThink):]
		r.ended = r.read - len(r.held)
		r.state, r.trim = thinksNot, true
	}
	if r.trim {
		if r.held = strings.TrimLeft(r.held, blanks); r.held == "" {
			return thought, ""
		}
		r.trim = false
	}
	said, r.held = r.held, ""
	return thought, said
}

// finish hands out the rest: thoughts that were cut off are thoughts.
func (r *thinkReader) finish() (thought, said string) {
	said, r.held = r.held, ""
	if r.state == thinksOpen {
		return said, ""
	}
	return "", said
}

// overlap is the length of the longest end of text that tag begins with, tag
// itself excluded.
func overlap(text, tag string) int {
	for n := min(len(tag)-1, len(text)); n > 0; n-- {
		if strings.HasSuffix(text, tag[:n]) {
			return n
		}
	}
	return 0
}

// tokensOf is how many tokens of a choice the first bytes of its text took.
func (s *Server) tokensOf(control bool, c *choice, bytes int) int {
	v := s.cfg.Vocabulary
	if v == nil || bytes == 0 {
		return 0
	}
	for i, id := range c.result.Part.Tokens {
		if bytes -= len(s.shown(id, control)); bytes <= 0 {
			return i + 1
		}
	}
	return len(c.result.Part.Tokens)
}

// answerPart is a piece of an answer, or all of it.
type answerPart struct {
	thought string
	said    string
	calls   []call
}

// answerReader parts the text of a choice into thoughts, text and calls.
type answerReader struct {
	think thinkReader
	calls callReader
}

func (r *answerReader) push(text string) (p answerPart) {
	var said string
	p.thought, said = r.think.push(text)
	if said != "" {
		p.said, p.calls = r.calls.push(said)
	}
	return p
}

// held is the number of bytes at the end of the text of which it is not known yet
// what they are.
func (r *answerReader) held() int {
	n := len(r.think.held) + len(r.calls.held)
	if r.calls.in {
		n += len(r.calls.gap) + len(openTag)
	}
	return n
}

func (r *answerReader) finish() (p answerPart) {
	var said string
	p.thought, said = r.think.finish()
	if said != "" {
		p.said, p.calls = r.calls.push(said)
	}
	rest, more := r.calls.finish()
	p.said += rest
	p.calls = append(p.calls, more...)
	return p
}
