package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// Error is what a client is told. Its JSON is that of OpenAI's API.
type Error struct {
	Status  int    // of HTTP
	Message string // for people
	Type    string // class, e.g. "invalid_request_error"
	Param   string // the field that is wrong, if one is
	Code    string // for programs, e.g. "context_length_exceeded"
	// RetryAfter is when to try again; 0 says nothing.
	RetryAfter time.Duration
}

func (e *Error) Error() string { return e.Message }

// Types of errors.
const (
	typeInvalid    = "invalid_request_error"
	typeAuth       = "authentication_error"
	typePermission = "permission_error"
	typeNotFound   = "not_found_error"
	typeRate       = "rate_limit_error"
	typeTimeout    = "timeout_error"
	typeServer     = "server_error"
)

// statusClientGone is logged, never sent: nobody is there to read it.
const statusClientGone = 499

// errTimeout is the cause of a request that took longer than it may.
var errTimeout = errors.New("the request took longer than the server allows")

// errDraining answers requests that come while the server shuts down.
var errDraining = &Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "draining", Message: "the server is shutting down", RetryAfter: 5 * time.Second}

func badRequest(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: typeInvalid, Param: param, Message: fmt.Sprintf(format, args...)}
}

func notFound(code, format string, args ...any) *Error {
	return &Error{Status: http.StatusNotFound, Type: typeNotFound, Code: code, Message: fmt.Sprintf(format, args...)}
}

func tooLarge(limit int64) *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Type: typeInvalid, Code: "request_too_large", Message: fmt.Sprintf("the body is larger than %d bytes", limit)}
}

// errorBody is the JSON of an Error.
type errorBody struct {
	Error errorObject `json:"error"`
}

type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *Error) body() errorBody {
	o := errorObject{Message: e.Message, Type: e.Type}
	if e.Param != "" {
		o.Param = &e.Param
	}
	if e.Code != "" {
		o.Code = &e.Code
	}
	return errorBody{o}
}

// toError says what to tell a client of err. What went wrong inside is told in
// general terms only.
func toError(err error) *Error {
	var (
		e    *Error
		long *backend.ContextLengthError
		gram *grammar.Error
		list lang.Errors
		cant *runtime.UnsupportedError
	)
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return &Error{Status: http.StatusGatewayTimeout, Type: typeTimeout, Code: "timeout", Message: errTimeout.Error()}
	case errors.Is(err, context.Canceled):
		return &Error{Status: statusClientGone, Type: typeInvalid, Code: "cancelled", Message: "the request was cancelled"}
	case errors.As(err, &long), errors.Is(err, backend.ErrContextLength):
		e := badRequest("", "%v", err)
		e.Code = "context_length_exceeded"
		return e
	case errors.As(err, &gram):
		e := badRequest("", "%v", gram)
		e.Code = "invalid_constraint"
		return e
	case errors.As(err, &list), errors.As(err, &cant), errors.Is(err, backend.ErrInvalid), errors.Is(err, backend.ErrUnsupported):
		return badRequest("", "%v", err)
	case errors.Is(err, backend.ErrOverloaded):
		return &Error{Status: http.StatusTooManyRequests, Type: typeRate, Code: "overloaded", Message: "too many requests wait already", RetryAfter: time.Second}
	case errors.Is(err, backend.ErrUnavailable), errors.Is(err, backend.ErrClosed):
		return &Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "unavailable", Message: "the model cannot be reached or failed", RetryAfter: time.Second}
	}
	return &Error{Status: http.StatusInternalServerError, Type: typeServer, Code: "internal_error", Message: "internal error"}
}

// fail answers a request with an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := toError(err)
	s.note(r, e, err)
	if e.Status == statusClientGone {
		return
	}
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(max(1, (e.RetryAfter+time.Second-1)/time.Second))))
	}
	if e.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	writeJSON(w, e.Status, e.body())
}

// note logs what a client was told and why.
func (s *Server) note(r *http.Request, e *Error, cause error) {
	attrs := []any{"method", r.Method, "path", r.URL.Path, "status", e.Status, "error", cause}
	if e.Status >= 500 {
		s.cfg.Log.Error("request failed", attrs...)
	} else {
		s.cfg.Log.Debug("request refused", attrs...)
	}
}
