package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// fields are the members of a JSON object, each still as it was written. Reading
// one of a wrong type or out of range notes the error; the first one counts, so
// that callers read all they need and then look at err once. A member that is
// null is one that is not there.
type fields struct {
	members map[string]json.RawMessage
	path    string // before the names in errors, e.g. "stream_options."
	first   *error // shared with the objects inside
}

// parseFields reads a JSON object strictly.
func parseFields(data []byte) (*fields, error) {
	f := &fields{first: new(error)}
	if !utf8.Valid(data) {
		return nil, badRequest("", "the body is not valid UTF-8")
	}
	if err := f.read(data); err != nil {
		return nil, badRequest("", "the body is not a JSON object: %v", err)
	}
	return f, *f.first
}

func (f *fields) read(data []byte) error {
	if !json.Valid(data) {
		var v any
		err := json.Unmarshal(data, &v)
		if err == nil {
			err = errors.New("invalid JSON")
		}
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if open, err := dec.Token(); err != nil {
		return err
	} else if open != json.Delim('{') {
		return fmt.Errorf("it begins with %v", open)
	}
	f.members = map[string]json.RawMessage{}
	for dec.More() {
		k, err := dec.Token()
		if err != nil {
			return err
		}
		name, _ := k.(string)
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		if _, twice := f.members[name]; twice {
			f.fail(name, "is there twice")
		}
		f.members[name] = raw
	}
	return nil
}

func (f *fields) err() error { return *f.first }

// fail notes that a member is wrong.
func (f *fields) fail(name, format string, args ...any) {
	if *f.first == nil {
		*f.first = badRequest(f.path+name, "%s %s", f.path+name, fmt.Sprintf(format, args...))
	}
}

// raw returns a member as it was written, nil if it is not there.
func (f *fields) raw(name string) json.RawMessage {
	raw := bytes.TrimSpace(f.members[name])
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return raw
}

func (f *fields) has(name string) bool { return f.raw(name) != nil }

// refuse notes members that would change the result and are not supported,
// unless they are off: null, false, 0, "" or empty.
func (f *fields) refuse(why string, names ...string) {
	for _, name := range names {
		switch raw := f.raw(name); string(raw) {
		case "", "false", "0", `""`, "[]", "{}":
		default:
			f.fail(name, "is not supported: %s", why)
		}
	}
}

func (f *fields) text(name string) string {
	raw := f.raw(name)
	if raw == nil {
		return ""
	}
	s, ok := jsonString(raw)
	if !ok {
		f.fail(name, "is to be a string")
	}
	return s
}

func jsonString(raw json.RawMessage) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}

func (f *fields) flag(name string, otherwise bool) bool {
	switch raw := f.raw(name); string(raw) {
	case "":
		return otherwise
	case "true":
		return true
	case "false":
		return false
	}
	f.fail(name, "is to be true or false")
	return otherwise
}

// whole reads an integer from lo to hi.
func (f *fields) whole(name string, otherwise, lo, hi int64) int64 {
	raw := f.raw(name)
	if raw == nil {
		return otherwise
	}
	n, ok := jsonInt(raw)
	if !ok || n < lo || n > hi {
		f.fail(name, "is %s; it is to be an integer from %d to %d", clip(string(raw)), lo, hi)
		return otherwise
	}
	return n
}

// jsonInt reads a JSON number that is an integer, also one written as 3.0.
func jsonInt(raw json.RawMessage) (int64, bool) {
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return n, true
	}
	if raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return 0, false
	}
	x, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return 0, false
	}
	return int64(x), true
}

// number reads a number from lo to hi; without lo if open.
func (f *fields) number(name string, otherwise, lo, hi float64, open bool) float64 {
	raw := f.raw(name)
	if raw == nil {
		return otherwise
	}
	var x float64
	if json.Unmarshal(raw, &x) != nil || x < lo || x > hi || open && x == lo {
		from := "from"
		if open {
			from = "above"
		}
		f.fail(name, "is %s; it is to be a number %s %v, to %v", clip(string(raw)), from, lo, hi)
		return otherwise
	}
	return x
}

// object reads a member that is an object, nil if it is not there.
func (f *fields) object(name string) *fields {
	raw := f.raw(name)
	if raw == nil {
		return nil
	}
	return f.within(name, raw)
}

// within reads raw, which stands at name, as an object. It is empty on error.
func (f *fields) within(name string, raw json.RawMessage) *fields {
	o := &fields{path: f.path + name + ".", first: f.first}
	if err := o.read(raw); err != nil {
		f.fail(name, "is to be an object")
	}
	return o
}

// list reads a member that is a list.
func (f *fields) list(name string) (items []json.RawMessage, ok bool) {
	return f.listOr(name, "a list")
}

// listOr is list for a member that may be something else too, which has been looked
// for; want says what it may be.
func (f *fields) listOr(name, want string) (items []json.RawMessage, ok bool) {
	raw := f.raw(name)
	if raw == nil {
		return nil, false
	}
	if json.Unmarshal(raw, &items) != nil {
		f.fail(name, "is to be %s", want)
		return nil, false
	}
	return items, true
}

// texts reads a string or a list of at most limit strings.
func (f *fields) texts(name string, limit int) []string {
	raw := f.raw(name)
	if raw == nil {
		return nil
	}
	if s, ok := jsonString(raw); ok {
		return []string{s}
	}
	items, ok := f.list(name)
	if !ok {
		return nil
	}
	if len(items) > limit {
		f.fail(name, "has %d entries, at most %d are allowed", len(items), limit)
		return nil
	}
	out := make([]string, len(items))
	for i, item := range items {
		if out[i], ok = jsonString(item); !ok {
			f.fail(name, "is to be a string or a list of strings")
		}
	}
	return out
}

// clip shortens what a client sent for an error message.
func clip(s string) string {
	if len(s) <= 64 {
		return s
	}
	return strings.ToValidUTF8(s[:60], "") + "..."
}

// readBody reads the whole body of a request, up to the limit.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") { // what is inflated has no bound
		return nil, badRequest("Content-Encoding", "Content-Encoding is %q; bodies are to be sent as they are", clip(e))
	}
	limit := s.cfg.Limits.BodyBytes
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		var over *http.MaxBytesError
		if errors.As(err, &over) {
			return nil, tooLarge(limit)
		}
		return nil, badRequest("", "the body could not be read: %v", err)
	}
	// The deadline is for the body only: when it passes later on, the request
	// would be taken for one whose client is gone.
	http.NewResponseController(w).SetReadDeadline(time.Time{})
	return buf.Bytes(), nil
}

// readFields is readBody for a JSON object.
func (s *Server) readFields(w http.ResponseWriter, r *http.Request) (*fields, error) {
	data, err := s.readBody(w, r)
	if err != nil {
		return nil, err
	}
	return parseFields(data)
}
