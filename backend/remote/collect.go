package remote

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"github.com/coppice-run/coppice/backend"
)

// Unlikely stands for a log-probability of minus infinity, which JSON cannot
// carry: servers send it as this number, as null, or not at all.
const Unlikely = -9999.0

// collector gathers what one generation streams and hands it on. It outlives a
// broken stream: after restart it expects what it has handed on to come again,
// and hands on only what is new.
//
//	text    |------ seen again ------|-- new --|
//	handed  |========================|
type collector struct {
	emit  func(backend.Delta) // nil: nobody listens
	stops []string            // a text's end that may become one is held back
	cuts  bool                // the text ends at the first stop string: the server does not look for all

	text    []byte          // of this attempt, valid UTF-8
	pending []byte          // the beginning of a character
	tokens  []backend.Token // of this attempt
	result  backend.Result  // without Part
	lps     []float64
	done    bool // the server said that it finished

	handed       []byte // text that emit got, over all attempts
	handedTokens int
}

// errDiverged is the cause of a restarted stream's failure.
var errDiverged = errors.New("the restarted stream differs from what was already handed out")

// add takes the next piece. text may begin or end inside a character.
func (c *collector) add(text string, tokens []backend.Token, logprobs []float64) error {
	before := len(c.text)
	c.pending = append(c.pending, text...)
	c.flush(false)
	if c.cuts {
		c.cut()
	}
	c.tokens = append(c.tokens, tokens...)
	c.lps = append(c.lps, logprobs...)
	return c.hand(before, len(c.text)-c.heldBack())
}

// flush moves the whole characters of pending to text, all of it if last is
// set. Bytes that begin no character become U+FFFD.
func (c *collector) flush(last bool) {
	b := c.pending
	for len(b) > 0 {
		if !last && !utf8.FullRune(b) {
			break
		}
		r, n := utf8.DecodeRune(b)
		if last && r == utf8.RuneError && n == 1 && !utf8.FullRune(b) {
			n = len(b) // half a character at the end: one U+FFFD, not one a byte
		}
		c.text = utf8.AppendRune(c.text, r)
		b = b[n:]
	}
	c.pending = append(c.pending[:0], b...)
}

// heldBack returns how many bytes at the text's end are the beginning of a stop
// string: some servers send them before they know.
func (c *collector) heldBack() int {
	held := 0
	for _, stop := range c.stops {
		for k := min(len(stop)-1, len(c.text)); k > held; k-- {
			if string(c.text[len(c.text)-k:]) == stop[:k] {
				held = k
				break
			}
		}
	}
	for held < len(c.text) && held > 0 && !utf8.RuneStart(c.text[len(c.text)-held]) {
		held++
	}
	return held
}

// takeBack removes n bytes from the text's end, which a server had sent and
// then found to be a stop string. It reports whether none was handed out.
func (c *collector) takeBack(n int) bool {
	c.text = c.text[:max(0, len(c.text)-n)]
	return len(c.text) >= len(c.handed)
}

// cut ends the text before the first stop string in it, and with it the generation.
func (c *collector) cut() {
	at := len(c.text)
	for _, s := range c.stops {
		if i := bytes.Index(c.text[:at], []byte(s)); i >= 0 {
			at, c.result.Matched = i, s
		}
	}
	if at < len(c.text) {
		c.text, c.result.Finish, c.done = c.text[:at], backend.FinishStop, true
	}
}

// hand gives the listener what the first safe bytes of the text and the tokens
// hold beyond what it got. from is where this attempt's text had ended before.
func (c *collector) hand(from, safe int) error {
	if from < len(c.handed) {
		again, want := c.text[from:], c.handed[from:]
		if n := min(len(again), len(want)); !bytes.Equal(again[:n], want[:n]) {
			return errDiverged
		}
	}
	var d backend.Delta
	if safe > len(c.handed) {
		d.Text = string(c.text[len(c.handed):safe])
		c.handed = append(c.handed, d.Text...)
	}
	if len(c.tokens) > c.handedTokens {
		d.Tokens = c.tokens[c.handedTokens:len(c.tokens):len(c.tokens)]
		c.handedTokens = len(c.tokens)
	}
	if c.emit != nil && (d.Text != "" || d.Tokens != nil) {
		c.emit(d)
	}
	return nil
}

// end closes the attempt that succeeded and returns its result.
func (c *collector) end() (*backend.Result, error) {
	before := len(c.text)
	c.flush(true)
	if err := c.hand(before, len(c.text)); err != nil {
		return nil, err
	}
	if len(c.text) < len(c.handed) {
		return nil, errDiverged
	}
	r := c.result
	r.Part.Text = string(c.text)
	if r.Matched == "" {
		r.Part.Tokens = c.tokens // else they hold the stop string, too
	}
	r.Logprobs = c.lps
	return &r, nil
}

// handedOut reports whether the listener has got anything.
func (c *collector) handedOut() bool {
	return c.emit != nil && (len(c.handed) > 0 || c.handedTokens > 0)
}

// restart readies c for another attempt.
func (c *collector) restart() {
	if c.emit == nil {
		c.handed, c.handedTokens = nil, 0
	}
	c.text = c.text[:0]
	c.pending = c.pending[:0]
	c.tokens, c.lps = nil, nil
	c.result = backend.Result{}
	c.done = false
}

// usage fills in what follows from three counts: prompt tokens, how many of
// them came from a cache, and generated tokens.
func usage(prompt, cached, generated int) backend.Usage {
	prompt, generated = max(prompt, 0), max(generated, 0)
	cached = min(max(cached, 0), prompt)
	return backend.Usage{
		PromptTokens:   prompt,
		CachedTokens:   cached,
		ComputedTokens: prompt - cached + generated,
		SampledTokens:  generated,
		Without: backend.Cost{
			ComputedTokens: prompt + generated,
			ForwardPasses:  max(generated, 1),
		},
	}
}

// addUsage sums the costs of calls that make up one result.
func addUsage(sum *backend.Usage, u *backend.Usage) {
	sum.PromptTokens += u.PromptTokens
	sum.CachedTokens += u.CachedTokens
	sum.ComputedTokens += u.ComputedTokens
	sum.ForcedTokens += u.ForcedTokens
	sum.SampledTokens += u.SampledTokens
	sum.Without.ComputedTokens += u.Without.ComputedTokens
	sum.Without.ForwardPasses += u.Without.ForwardPasses
}
