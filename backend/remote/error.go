package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// Error is a failed call to a server. It matches one of the backend package's
// errors with errors.Is.
type Error struct {
	Kind       error         // backend.ErrInvalid, ErrUnavailable, ...
	ID         string        // Request.ID
	Op         string        // e.g. "POST /v1/chat/completions"
	Host       string        // host and port of the server
	Status     int           // HTTP status; 0 if there was no answer
	Type, Code string        // of the server's error object, if any
	Message    string        // the server's words, shortened, without the key
	RequestID  string        // the server's name for the request, if any
	RetryAfter time.Duration // what the server asked for; 0: nothing
	Attempts   int           // calls made in all
	Hint       string        // what to do
	Err        error         // the cause below, if any

	final bool // not retryable, whatever Kind says
}

// Error returns one line: where, what, and what to do.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("remote: ")
	if e.ID != "" {
		b.WriteString(e.ID + ": ")
	}
	fmt.Fprintf(&b, "%s at %s: %v", e.Op, e.Host, e.Kind)
	if e.Status != 0 {
		fmt.Fprintf(&b, ": %d %s", e.Status, http.StatusText(e.Status))
	}
	if e.Status != 0 && e.Message == http.StatusText(e.Status) {
		// Nothing is added.
	} else if e.Message != "" {
		b.WriteString(": " + e.Message)
	} else if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	var notes []string
	if e.Code != "" {
		notes = append(notes, "code "+e.Code)
	}
	if e.RequestID != "" {
		notes = append(notes, "request "+e.RequestID)
	}
	if e.RetryAfter > 0 {
		notes = append(notes, "the server asks to wait "+e.RetryAfter.String())
	}
	if e.Attempts > 1 {
		notes = append(notes, strconv.Itoa(e.Attempts)+" attempts")
	}
	if len(notes) > 0 {
		b.WriteString(" (" + strings.Join(notes, ", ") + ")")
	}
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Unwrap makes both the kind and the cause match.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Retryable reports whether the same call may succeed later.
func (e *Error) Retryable() bool {
	return !e.final && (errors.Is(e.Kind, backend.ErrOverloaded) || errors.Is(e.Kind, backend.ErrUnavailable))
}

// RetryDelay returns what the server asked for; backend.RetryDelay reads it.
func (e *Error) RetryDelay() time.Duration { return e.RetryAfter }

// rule is a row of the table that turns a server's answer into an error.
type rule struct {
	status int      // exact; 0: any
	words  []string // one of them is in the code, type or message; nil: any
	kind   error
	final  bool
	hint   string
}

// rules are tried in order; the first that fits decides.
var rules = []rule{
	{400, contextWords, backend.ErrContextLength, true, "shorten the prompt or use a model with a longer context"},
	{413, nil, backend.ErrContextLength, true, "shorten the prompt"},
	{422, contextWords, backend.ErrContextLength, true, "shorten the prompt or use a model with a longer context"},
	{500, contextWords, backend.ErrContextLength, true, "shorten the prompt or use a model with a longer context"},
	{401, nil, backend.ErrInvalid, true, "give the API key as https://KEY@host/v1 or in COPPICE_API_KEY"},
	{403, nil, backend.ErrInvalid, true, "the API key has no right to this model or route"},
	{404, []string{"model"}, backend.ErrInvalid, true, "name one of the server's models with ?model=NAME"},
	{404, nil, backend.ErrInvalid, true, "check the URL's path and scheme: the server does not have this route"},
	{405, nil, backend.ErrUnsupported, true, "the server does not have this route"},
	{408, nil, backend.ErrUnavailable, false, ""},
	{409, nil, backend.ErrUnavailable, false, ""},
	{425, nil, backend.ErrUnavailable, false, ""},
	{429, []string{"insufficient_quota", "billing"}, backend.ErrOverloaded, true, "the account's quota is used up"},
	{429, nil, backend.ErrOverloaded, false, "send less at a time or wait"},
	{501, nil, backend.ErrUnsupported, true, ""},
	{503, []string{"overloaded", "no slot", "queue"}, backend.ErrOverloaded, false, "send less at a time or wait"},
	{503, nil, backend.ErrUnavailable, false, "the server may still be loading its model"},
	{529, nil, backend.ErrOverloaded, false, "send less at a time or wait"},
}

var contextWords = []string{
	"context_length_exceeded", "exceed_context_size", "maximum context length", "context length",
	"context size", "context window", "context limit", "prompt is too long", "longer than the model",
}

// classify fills in what the table says of the answer in e.
func (e *Error) classify() {
	text := strings.ToLower(e.Code + " " + e.Type + " " + e.Message)
next:
	for _, r := range rules {
		if r.status != e.Status {
			continue
		}
		if r.words != nil {
			found := false
			for _, w := range r.words {
				found = found || strings.Contains(text, w)
			}
			if !found {
				continue next
			}
		}
		e.Kind, e.final, e.Hint = r.kind, r.final, r.hint
		if r.kind == backend.ErrContextLength {
			if c := contextCounts(e.Message); c != nil {
				e.Kind = c
				e.Hint = ""
			}
		}
		return
	}
	switch {
	case e.Status >= 500:
		e.Kind = backend.ErrUnavailable
	case e.Status >= 400:
		e.Kind, e.final = backend.ErrInvalid, true
	default: // 1xx and 3xx: nothing of ours
		e.Kind, e.final = backend.ErrInvalid, true
		e.Hint = "the server redirects or does not speak this API: check the URL"
	}
}

var (
	contextFirst  = regexp.MustCompile(`(?i)context (?:length|size|window)[^0-9]{0,40}([0-9]{2,9})[^0-9].*?([0-9]{2,9})`)
	contextPrompt = regexp.MustCompile(`(?i)prompt is too long: ([0-9]{2,9}) tokens > ([0-9]{2,9})`)
	contextLast   = regexp.MustCompile(`(?i)\(([0-9]{2,9})(?: tokens)?\)[^0-9]*context (?:length|size|window)[^0-9]{0,40}([0-9]{2,9})`)
)

// contextCounts reads both counts from a server's words, nil if they are not
// there: "maximum context length is 4096 tokens. However, you requested 5000"
// or "(5000 tokens) is longer than the model's context length (4096 tokens)".
func contextCounts(msg string) *backend.ContextLengthError {
	c := new(backend.ContextLengthError)
	if m := contextPrompt.FindStringSubmatch(msg); m != nil {
		c.Prompt, _ = strconv.Atoi(m[1])
		c.Context, _ = strconv.Atoi(m[2])
	} else if m := contextLast.FindStringSubmatch(msg); m != nil {
		c.Prompt, _ = strconv.Atoi(m[1])
		c.Context, _ = strconv.Atoi(m[2])
	} else if m := contextFirst.FindStringSubmatch(msg); m != nil {
		c.Context, _ = strconv.Atoi(m[1])
		c.Prompt, _ = strconv.Atoi(m[2])
	}
	if c.Prompt <= c.Context || c.Context == 0 {
		return nil
	}
	return c
}

// errorFromBody makes the error of an answer with a status of failure, or of an
// error event in a stream (status 0 then takes the event's own, or 500).
func (s *server) errorFromBody(op string, status int, h http.Header, body []byte) *Error {
	e := &Error{Op: op, Host: s.base.Host, Status: status}
	if h != nil {
		e.RetryAfter = retryAfter(h, time.Now())
		for _, k := range []string{"X-Request-Id", "X-Request-ID", "Request-Id", "Cf-Ray"} {
			if e.RequestID = h.Get(k); e.RequestID != "" {
				break
			}
		}
	}
	var num int
	e.Message, e.Type, e.Code, num = readErrorBody(body)
	if e.Status == 0 {
		e.Status = 500
		if num >= 400 && num <= 599 {
			e.Status = num
		}
	}
	e.Message = s.clean(e.Message)
	e.classify()
	return e
}

// readErrorBody understands the shapes that servers use:
// {"error":{"message","type","code"}}, {"error":"text"}, {"message":...},
// {"detail":...}, {"object":"error",...}, or any text.
func readErrorBody(body []byte) (msg, typ, code string, num int) {
	var top map[string]json.RawMessage
	if json.Unmarshal(body, &top) != nil {
		return string(body), "", "", 0
	}
	obj := top
	if raw, ok := top["error"]; ok {
		var inner map[string]json.RawMessage
		if json.Unmarshal(raw, &inner) == nil && inner != nil {
			obj = inner
		} else if msg = plain(raw); msg != "" {
			return msg, "", "", 0
		}
	}
	code = plain(obj["code"])
	num, _ = strconv.Atoi(code)
	if num != 0 {
		code = ""
	}
	for _, k := range []string{"message", "detail", "msg"} {
		if msg = plain(obj[k]); msg != "" {
			break
		}
	}
	if msg == "" {
		msg = string(body)
	}
	return msg, plain(obj["type"]), code, num
}

// plain returns a JSON string's value, other JSON as it stands, "" for null.
func plain(raw json.RawMessage) string {
	var s string
	if len(raw) == 0 || string(raw) == "null" {
		return ""
	}
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// clean makes a server's words fit for an error: one line, bounded, valid
// UTF-8, without the key.
func (s *server) clean(msg string) string {
	const limit = 600
	if len(msg) > 4*limit {
		msg = msg[:4*limit]
	}
	if s.key != "" {
		msg = strings.ReplaceAll(msg, s.key, "[key]")
	}
	msg = strings.Join(strings.Fields(strings.ToValidUTF8(msg, "\uFFFD")), " ")
	if len(msg) > limit {
		msg = strings.ToValidUTF8(msg[:limit], "") + "..."
	}
	return msg
}

// fault makes the error of a call that got no whole answer.
func (s *server) fault(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if ctx.Err() != nil {
		return s.cancelled(ctx, op)
	}
	e = &Error{Op: op, Host: s.base.Host, Kind: backend.ErrUnavailable, Err: redacted{s.clean(err.Error()), err}}
	var (
		t   *TimeoutError
		dns *net.DNSError
	)
	switch {
	case errors.As(err, &t):
		e.Err = t
		e.Hint = "the server hangs or is too slow; raise Options.FirstByte or Options.Idle if it is only slow"
	case errors.As(err, &dns) && dns.IsNotFound:
		e.final = true
		e.Hint = "the host name is unknown: check the URL"
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Hint = "nothing listens there: is the server running?"
	}
	return e
}

// cancelled is the error of a call whose context ended: it wraps ctx.Err(), or
// backend.ErrClosed if Close ended it.
func (s *server) cancelled(ctx context.Context, op string) error {
	if context.Cause(ctx) == backend.ErrClosed {
		return fmt.Errorf("remote: %s: %w", op, backend.ErrClosed)
	}
	if c := context.Cause(ctx); c != ctx.Err() {
		return fmt.Errorf("remote: %s: %w: %w", op, ctx.Err(), c)
	}
	return fmt.Errorf("remote: %s: %w", op, ctx.Err())
}

// redacted is an error whose words were cleaned of the key.
type redacted struct {
	msg string
	err error
}

func (r redacted) Error() string { return r.msg }
func (r redacted) Unwrap() error { return r.err }
