package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend"
)

const (
	maxAnswer    = 256 << 20 // bytes of an answer that is not a stream
	maxErrorBody = 64 << 10  // bytes read of an answer that reports a failure
)

// TimeoutError says that a server was silent for too long.
type TimeoutError struct {
	Waited time.Duration
	First  bool // no byte of the answer had come yet
}

func (e *TimeoutError) Error() string {
	if e.First {
		return fmt.Sprintf("no byte of an answer in %v", e.Waited)
	}
	return fmt.Sprintf("the answer stopped for %v", e.Waited)
}

// Timeout reports true, as net.Error asks.
func (e *TimeoutError) Timeout() bool { return true }

// patience is a RoundTripper that gives up on a silent server. The first byte
// of the answer's body must come within first of the request, and each Read
// after it within idle; time that the reader spends elsewhere does not count.
type patience struct {
	next        http.RoundTripper
	first, idle time.Duration
}

func (p *patience) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watched{cancel: cancel, ctx: ctx, idle: p.idle}
	w.timer = time.AfterFunc(p.first, func() { cancel(&TimeoutError{Waited: p.first, First: true}) })
	resp, err := p.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		w.timer.Stop()
		err = w.explain(err)
		cancel(nil)
		return nil, err
	}
	w.body = resp.Body
	resp.Body = w
	return resp, nil
}

// watched is the body of an answer under a patience's watch.
type watched struct {
	body    io.ReadCloser
	ctx     context.Context
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	idle    time.Duration
	started bool // the first byte has come
	ended   bool // Read has returned an error or the end
}

// lastWait bounds the wait for the end of a body whose reader knows that
// nothing more is to come. A connection whose body was read to its end can be
// used again.
const lastWait = 50 * time.Millisecond

func (w *watched) Read(p []byte) (int, error) {
	if w.started {
		w.timer.Reset(w.idle)
	}
	n, err := w.body.Read(p)
	if n > 0 && !w.started {
		w.started = true
		w.timer.Stop()
		// From here on the timer means silence in the middle of an answer.
		w.timer = time.AfterFunc(w.idle, func() { w.cancel(&TimeoutError{Waited: w.idle}) })
	}
	w.timer.Stop()
	w.ended = w.ended || err != nil
	if err != nil && err != io.EOF {
		err = w.explain(err)
	}
	return n, err
}

func (w *watched) Close() error {
	w.timer.Stop()
	if w.started && !w.ended && w.ctx.Err() == nil {
		t := time.AfterFunc(lastWait, func() { w.cancel(nil) })
		io.CopyN(io.Discard, w.body, 512) // what fails here fails again in Close
		t.Stop()
	}
	w.cancel(nil)
	return w.body.Close()
}

// explain puts the timeout in the place of the cancellation that it caused.
func (w *watched) explain(err error) error {
	var t *TimeoutError
	if errors.As(context.Cause(w.ctx), &t) {
		return t
	}
	return err
}

// newTransport returns the transport used unless the options bring one. It
// belongs to one Backend, which closes its idle connections.
func newTransport() *http.Transport {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           d.DialContext,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
	}
}

// server is one server and how to reach it. It holds no state of a call.
type server struct {
	*address
	key  string
	http *http.Client
}

func (s *server) url(base *url.URL, path string) string { return base.JoinPath(path).String() }

// op names a call for errors, without the host.
func op(method string, base *url.URL, path string) string {
	return method + " " + base.JoinPath(path).Path
}

// send makes one request and returns its answer if the status is 200. The
// caller closes the body.
func (s *server) send(ctx context.Context, method string, base *url.URL, path string, in any) (*http.Response, error) {
	name := op(method, base, path)
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, invalidf("%s: %v", name, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url(base, path), body)
	if err != nil {
		return nil, invalidf("%s: %s", name, s.clean(err.Error()))
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	s.authorize(req)
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, s.fault(ctx, name, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, s.failure(name, resp)
	}
	return resp, nil
}

// failure reads and closes an answer that reports a failure.
func (s *server) failure(name string, resp *http.Response) *Error {
	defer resp.Body.Close()
	// What can be read of the reason is read; a fault here leaves the status.
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	return s.errorFromBody(name, resp.StatusCode, resp.Header, b)
}

// get and post make one call with a JSON answer.
func (s *server) get(ctx context.Context, base *url.URL, path string, out any) error {
	return s.call(ctx, http.MethodGet, base, path, nil, out)
}

func (s *server) post(ctx context.Context, base *url.URL, path string, in, out any) error {
	return s.call(ctx, http.MethodPost, base, path, in, out)
}

func (s *server) call(ctx context.Context, method string, base *url.URL, path string, in, out any) error {
	resp, err := s.send(ctx, method, base, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	name := op(method, base, path)
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return s.fault(ctx, name, err)
	}
	if len(b) > maxAnswer {
		return s.garbled(name, fmt.Sprintf("the answer is longer than %d bytes", maxAnswer))
	}
	if err := json.Unmarshal(b, out); err != nil {
		return s.wrongType(name, resp.Header, b)
	}
	return nil
}

// wrongType is the error of an answer that is not what the API promises, most
// often a web page of something else that listens there.
func (s *server) wrongType(name string, h http.Header, start []byte) *Error {
	e := s.garbled(name, fmt.Sprintf("the answer is %q, not of this API: %.80q", h.Get("Content-Type"), start))
	e.final = true
	e.Hint = "check the URL's host and path"
	return e
}

// garbled is the error of an answer that cannot be understood.
func (s *server) garbled(name, what string) *Error {
	return &Error{Op: name, Host: s.base.Host, Kind: backend.ErrUnavailable, Message: s.clean(what)}
}

// mediaType returns an answer's type without parameters, in lower case.
func mediaType(h http.Header) string {
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		t, _, _ = strings.Cut(h.Get("Content-Type"), ";")
		t = strings.ToLower(strings.TrimSpace(t))
	}
	return t
}
