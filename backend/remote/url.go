package remote

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-run/coppice/backend"
)

// Schemes lists the URL schemes that [Open] knows, sorted.
func Schemes() []string {
	s := []string{"http", "https"}
	for name := range dialects {
		s = append(s, name+"+http", name+"+https")
	}
	slices.Sort(s)
	return s
}

// address is a parsed backend URL. Neither URL in it holds the key.
type address struct {
	dialect *dialect
	// base ends in "/" and is where the OpenAI routes are, e.g. http://h/v1/.
	base *url.URL
	// root ends in "/" and is where the native routes are, e.g. http://h/.
	root  *url.URL
	model string
	key   string
	// context, attempts and probe come from the query; zero values: not given.
	context  int
	attempts int
	noProbe  bool
}

// parseAddress reads a backend URL. Its errors never show the URL's user info,
// and show nothing of a text that is not a URL: it may hold a key.
func parseAddress(raw string) (*address, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, invalidf("the backend URL cannot be parsed (it is not shown, since it may hold a key); write it as openai+http://host:port/v1?model=NAME and escape special characters of the key")
	}
	name, transport, ok := strings.Cut(u.Scheme, "+")
	if !ok {
		name, transport = "openai", u.Scheme
	}
	d := dialects[name]
	if d == nil || transport != "http" && transport != "https" {
		return nil, invalidf("unknown scheme %q; known are %s", u.Scheme, strings.Join(Schemes(), ", "))
	}
	a := &address{dialect: d}
	if u.Hostname() == "" {
		return nil, invalidf("the backend URL names no host; write it as %s://host:port/v1?model=NAME", u.Scheme)
	}
	if u.Fragment != "" {
		return nil, invalidf("the backend URL has a fragment (#...); escape # as %%23 if it belongs to the key or the model")
	}
	if u.User != nil {
		a.key = u.User.Username()
		if p, ok := u.User.Password(); ok && p != "" {
			a.key = p
		}
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, invalidf("the query of the backend URL cannot be parsed; known parameters are model, context, attempts, probe")
	}
	for k, v := range q {
		last := v[len(v)-1]
		var bad bool
		switch k {
		case "model":
			a.model = last
		case "context":
			a.context, err = strconv.Atoi(last)
			bad = err != nil || a.context < 1
		case "attempts":
			a.attempts, err = strconv.Atoi(last)
			bad = err != nil || a.attempts < 1
		case "probe":
			var on bool
			on, err = strconv.ParseBool(last)
			bad, a.noProbe = err != nil, !on
		default:
			return nil, invalidf("unknown parameter %q in the backend URL; known are model, context, attempts, probe", k)
		}
		if bad {
			return nil, invalidf("parameter %s of the backend URL has a bad value; context and attempts are counts from 1, probe is true or false", k)
		}
	}
	path := strings.TrimRight(u.Path, "/")
	root := strings.TrimSuffix(path, "/v1")
	if path == "" {
		path = "/v1"
	}
	a.base = &url.URL{Scheme: transport, Host: u.Host, Path: path + "/"}
	a.root = &url.URL{Scheme: transport, Host: u.Host, Path: root + "/"}
	return a, nil
}

// isOpenAI reports whether the address is OpenAI's own service, which has rules
// that compatible servers do not.
func (a *address) isOpenAI() bool {
	h := strings.ToLower(a.base.Hostname())
	return h == "api.openai.com" || strings.HasSuffix(h, ".api.openai.com")
}

// isAnthropic reports whether the address is Anthropic's own service.
func (a *address) isAnthropic() bool {
	h := strings.ToLower(a.base.Hostname())
	return a.dialect.name == "anthropic" && (h == "api.anthropic.com" || strings.HasSuffix(h, ".api.anthropic.com"))
}

// apiKey returns the key to send: of the URL, the options, or the environment.
func (a *address) apiKey(opts *Options) string {
	switch {
	case a.key != "":
		return a.key
	case opts.APIKey != "":
		return opts.APIKey
	}
	if k := os.Getenv("COPPICE_API_KEY"); k != "" {
		return k
	}
	switch {
	case a.isOpenAI():
		return os.Getenv("OPENAI_API_KEY")
	case a.isAnthropic():
		return os.Getenv("ANTHROPIC_API_KEY")
	}
	return ""
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("remote: %w: %s", backend.ErrInvalid, fmt.Sprintf(format, args...))
}

func unsupportedf(format string, args ...any) error {
	return fmt.Errorf("remote: %w: %s", backend.ErrUnsupported, fmt.Sprintf(format, args...))
}
