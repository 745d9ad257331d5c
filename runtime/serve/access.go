package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Key is an API key. Whoever has it is a tenant.
type Key struct {
	Name   string // of the tenant, for logs
	Secret string
	// Salt separates cache entries: keys of one salt share them. Without one a
	// key shares with no other.
	Salt string
	// Operator keys see what concerns all tenants: /metrics, /load, the counters
	// of /server_info, /v1/engine, and may flush the cache. The others do not; but
	// if there is one key only, it sees all but the cache.
	Operator bool
	Limits   KeyLimits
}

// LogValue implements slog.LogValuer: the secret is not for logs.
func (k Key) LogValue() slog.Value { return slog.StringValue("key " + k.Name) }

// String is LogValue for package fmt.
func (k Key) String() string { return "key " + k.Name }

// GoString is LogValue for package fmt.
func (k Key) GoString() string { return k.String() }

// ParseKeys reads a list of keys, one a line: a key alone, or a name, blanks and
// the key. After them come options: salt=TEXT, operator=true, generations=N,
// requests_per_minute=N, tokens_per_minute=N, runs=N, kept_bytes=N. Empty lines and lines that
// begin with # are skipped. Errors name the line and show no secret.
func ParseKeys(data []byte) ([]Key, error) {
	var keys []Key
	for i, line := range strings.Split(string(data), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		n := slices.IndexFunc(words, keyOption)
		if n < 0 {
			n = len(words)
		}
		var k Key
		switch n {
		case 1:
			k = Key{Name: fmt.Sprintf("key-%d", len(keys)+1), Secret: words[0]}
		case 2:
			k = Key{Name: words[0], Secret: words[1]}
		default:
			return nil, fmt.Errorf("serve: line %d of the keys has %d words before its options; write a key, or a name and a key", i+1, n)
		}
		for _, w := range words[n:] {
			if !keyOption(w) {
				return nil, fmt.Errorf("serve: line %d of the keys has an unknown option; there are salt, operator, generations, requests_per_minute, tokens_per_minute, runs and kept_bytes, each as name=value", i+1)
			}
			if err := k.set(w); err != nil {
				return nil, fmt.Errorf("serve: line %d of the keys: %w", i+1, err)
			}
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// ReadKeys is ParseKeys for a file.
func ReadKeys(path string) ([]Key, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ParseKeys(data)
}

// tenantKey is the context key of the tenant that a request is of.
type tenantKey struct{}

func tenantOf(ctx context.Context) *tenant { return ctx.Value(tenantKey{}).(*tenant) }

// find returns the tenant of a secret. All keys are compared, in a time that
// says nothing of them.
func (t *tenants) find(secret string) *tenant {
	sum := sha256.Sum256([]byte(secret))
	var found *tenant
	for _, candidate := range t.all {
		if subtle.ConstantTimeCompare(sum[:], candidate.hash[:]) == 1 {
			found = candidate
		}
	}
	return found
}

// salt is what a tenant's cache entries are tagged with, together with the salt
// of a request and SGLang's extra key. The parts cannot run into each other: the
// tenant's has one length, and with an extra key the salt's is told.
func (t *tenant) salt(asked, extra string) string {
	if extra != "" {
		asked = strconv.Itoa(len(asked)) + ":" + asked + extra
	}
	tag := func(kind string) string {
		if extra != "" {
			kind += "+"
		}
		return kind + ":"
	}
	if t.name == "" {
		if asked == "" {
			return ""
		}
		return tag("salt") + asked
	}
	own := append([]byte("cache salt of "), t.hash[:]...)
	if t.shared != "" {
		own = []byte("cache salt shared as " + t.shared)
	}
	h := sha256.Sum256(own)
	return tag("key") + hex.EncodeToString(h[:16]) + ":" + asked
}

// withKey lets requests through that carry a key, if keys are asked for.
func (s *Server) withKey(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := s.tenants.anyone
		if t == nil {
			scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			if !strings.EqualFold(scheme, "bearer") {
				secret = r.Header.Get("X-API-Key")
			}
			if secret == "" {
				secret = socketKey(r)
			}
			if t = s.tenants.find(strings.TrimSpace(secret)); t == nil {
				s.fail(w, r, &Error{Status: http.StatusUnauthorized, Type: typeAuth, Code: "invalid_api_key", Message: "a valid API key is needed: Authorization: Bearer KEY"})
				return
			}
		}
		t.quota.headers(w.Header())
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, t)))
	})
}

// operators refuses what concerns all tenants to those that may not see it.
func (s *Server) operators(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !tenantOf(r.Context()).sees {
			s.fail(w, r, errNotOperator)
			return
		}
		next.ServeHTTP(w, r)
	})
}

var errNotOperator = &Error{Status: http.StatusForbidden, Type: typePermission, Code: "not_allowed", Message: "this concerns all keys and needs the key of an operator"}

func checkOrigins(origins []string) error {
	for _, o := range origins {
		if o == "*" {
			continue
		}
		u, err := url.Parse(o)
		if err != nil || u.Scheme == "" || u.Host == "" || strings.TrimSuffix(u.Path, "/") != "" || u.RawQuery != "" {
			return fmt.Errorf("serve: %q is no origin; write it as https://host:port", o)
		}
	}
	return nil
}

// originAllowed tells whether the page that sent a request may use the server: a
// page that is listed, or the server's own. A request without an origin is not
// from a page.
func (s *Server) originAllowed(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || ownOrigin(r) {
		return true
	}
	return slices.ContainsFunc(s.cfg.Origins, func(o string) bool {
		return o == "*" || strings.EqualFold(strings.TrimSuffix(o, "/"), origin)
	})
}

// withOrigin refuses pages that are not listed and answers the preflight of
// those that are.
func (s *Server) withOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if !s.originAllowed(r) {
			s.fail(w, r, &Error{Status: http.StatusForbidden, Type: typePermission, Code: "origin_not_allowed", Message: "this origin may not use the server"})
			return
		}
		h := w.Header()
		if len(s.cfg.Origins) > 0 {
			h.Add("Vary", "Origin")
		}
		if origin != "" {
			h.Set("Access-Control-Allow-Origin", origin)
			h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After, Location")
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
				h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID, X-API-Key, X-Request-Id")
				h.Set("Access-Control-Max-Age", "600")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		h.Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

// recovered turns a panic of a handler into an answer; the process lives on.
func (s *Server) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// net/http reads what a handler leaves of a body before it answers: that must
		// come in time too.
		if r.ContentLength != 0 {
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.cfg.Limits.ReadTime))
		}
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v)
			}
			s.cfg.Log.Error("panic in a handler", "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
			// If the answer has begun this writes nothing of use, and net/http
			// closes the connection.
			writeJSON(w, http.StatusInternalServerError, toError(fmt.Errorf("panic: %v", v)).body())
		}()
		next.ServeHTTP(w, r)
	})
}

// jsonErrors answers unknown routes and wrong methods in the form of all other
// errors.
func (s *Server) jsonErrors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		p := &probe{header: http.Header{}}
		h.ServeHTTP(p, r)
		switch {
		case p.status == http.StatusMethodNotAllowed:
			w.Header().Set("Allow", p.header.Get("Allow"))
			s.fail(w, r, &Error{Status: p.status, Type: typeInvalid, Code: "method_not_allowed", Message: fmt.Sprintf("%s is not for %s", r.Method, r.URL.Path)})
		case p.status >= 300 && p.status < 400:
			h.ServeHTTP(w, r)
		default:
			s.fail(w, r, notFound("not_found", "there is no %s", r.URL.Path))
		}
		io.Copy(io.Discard, io.LimitReader(r.Body, 1<<16))
	})
}

// probe is a ResponseWriter that keeps the status only.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) WriteHeader(status int)      { p.status = status }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }
