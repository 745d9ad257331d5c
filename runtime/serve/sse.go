package serve

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// encode writes v as JSON without a newline, keeping <, > and & as they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// writeJSON answers with a document.
func writeJSON(w http.ResponseWriter, status int, v any) {
	data, err := encode(v)
	if err != nil {
		status = http.StatusInternalServerError
		data = []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":null}}`)
	}
	writeDocument(w, status, "application/json", data)
}

// writeDocument answers with data. A client that does not take it in time is given
// up.
func writeDocument(w http.ResponseWriter, status int, kind string, data []byte) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	rc := http.NewResponseController(w)
	rc.SetWriteDeadline(time.Now().Add(documentTimeout))
	w.WriteHeader(status)
	w.Write(data)
	rc.Flush()
	rc.SetWriteDeadline(time.Time{})
}

// documentTimeout is the time in which a client must take an answer that is no
// stream.
const documentTimeout = time.Minute

// sse is a stream of server-sent events. Headers go out with the first event:
// until then the request can still be answered with an error. It is used from
// one goroutine.
type sse struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration // of one write
	buf     bytes.Buffer
	enc     *json.Encoder
	started bool
	err     error // of the connection; then nothing more is written
}

func (s *Server) newSSE(w http.ResponseWriter) *sse {
	e := &sse{w: w, rc: http.NewResponseController(w), timeout: s.cfg.Limits.WriteTimeout}
	e.enc = json.NewEncoder(&e.buf)
	e.enc.SetEscapeHTML(false)
	return e
}

// data adds an event; it goes out with the next flush.
func (e *sse) data(v any) error {
	if e.err != nil {
		return e.err
	}
	at := e.buf.Len()
	e.buf.WriteString("data: ")
	if err := e.enc.Encode(v); err != nil {
		e.buf.Truncate(at)
		return err
	}
	e.buf.WriteByte('\n')
	return nil
}

// numbered is data with an id, from which a client can go on.
func (e *sse) numbered(id uint64, v any) error {
	if e.err == nil {
		e.buf.WriteString("id: ")
		e.buf.WriteString(strconv.FormatUint(id, 10))
		e.buf.WriteByte('\n')
	}
	return e.data(v)
}

// event is data with a name.
func (e *sse) event(name string, v any) error {
	if e.err == nil {
		e.buf.WriteString("event: " + name + "\n")
	}
	return e.data(v)
}

// line adds an event that is not JSON.
func (e *sse) line(text string) { e.buf.WriteString("data: " + text + "\n\n") }

// comment adds what clients ignore.
func (e *sse) comment(text string) { e.buf.WriteString(": " + text + "\n\n") }

// flush sends what was added.
func (e *sse) flush() error {
	if e.err != nil || e.buf.Len() == 0 {
		return e.err
	}
	first := !e.started
	if first {
		e.started = true
		h := e.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		e.w.WriteHeader(http.StatusOK)
	}
	// Not all writers have a deadline. It must not stay for the next request on
	// the connection.
	e.rc.SetWriteDeadline(time.Now().Add(e.timeout))
	if _, e.err = e.w.Write(e.buf.Bytes()); e.err == nil {
		e.err = e.rc.Flush()
	}
	e.rc.SetWriteDeadline(time.Time{})
	if first { // that of a body which the handler has not read
		e.rc.SetReadDeadline(time.Time{})
	}
	e.buf.Reset()
	return e.err
}

// done ends a stream the OpenAI way.
func (e *sse) done() error {
	e.line("[DONE]")
	return e.flush()
}
