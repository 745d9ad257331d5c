package open

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/remote"
)

// Options adjust the backend. The zero value is usable.
type Options struct {
	// Embedded are the models that are part of the program, by name: functions
	// that return the bytes of a GGUF file, which are not changed.
	Embedded map[string]func() []byte
	// Engine and Model configure our engine. What they leave open comes from
	// the model file.
	Engine engine.Config
	Model  model.Options
	// Remote configures servers.
	Remote remote.Options
}

// Backend opens the model that rawURL names. The caller closes it.
//
// A URL that cannot be understood gives an error that matches
// backend.ErrInvalid. No error shows the URL's user info: it may be a key.
func Backend(ctx context.Context, rawURL string, opts Options) (backend.Backend, error) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	switch {
	case rawURL == "":
		return nil, invalid(opts, "the backend URL is empty")
	case !ok && isFile(rawURL):
		return openFile(rawURL, opts.Engine, opts.Model)
	case !ok && opts.Embedded[rawURL] != nil:
		return openEmbedded(rawURL, opts.Embedded[rawURL], opts.Engine, opts.Model)
	case !ok:
		return nil, invalid(opts, "the backend is neither a URL nor the path of a .gguf file nor the name of an embedded model")
	}
	scheme = strings.ToLower(scheme)
	if scheme == "engine" {
		return openEngine(rest, opts)
	}
	if !slices.Contains(remote.Schemes(), scheme) {
		return nil, invalid(opts, fmt.Sprintf("unknown scheme %q", scheme))
	}
	b, err := remote.Open(ctx, rawURL, opts.Remote)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// openEngine opens what follows engine:// in a URL: a path, or the name of an
// embedded model.
func openEngine(rest string, opts Options) (backend.Backend, error) {
	u, err := url.Parse("engine://" + rest)
	if err != nil {
		return nil, invalid(opts, "the backend URL cannot be parsed; escape special characters of the path as %XX")
	}
	if u.User != nil || u.Fragment != "" {
		return nil, invalid(opts, "an engine URL has no user info and no fragment")
	}
	cfg, mod, err := engineQuery(u.RawQuery, opts)
	if err != nil {
		return nil, err
	}
	switch {
	case u.Host == "" && u.Path != "":
		return openFile(u.Path, cfg, mod)
	case u.Path != "" && u.Path != "/":
		return nil, invalid(opts, "an engine URL with a path has no host: write three slashes, engine:///path/model.gguf, for an absolute path, and the path alone for a relative one")
	}
	data := opts.Embedded[u.Host]
	if data == nil {
		return nil, invalid(opts, fmt.Sprintf("there is no embedded model %q", u.Host))
	}
	return openEmbedded(u.Host, data, cfg, mod)
}

// isFile reports whether a text without a scheme is the path of a model.
func isFile(s string) bool { return strings.HasSuffix(strings.ToLower(s), ".gguf") }

// Schemes lists what a backend URL may begin with.
func Schemes() []string { return append([]string{"engine"}, remote.Schemes()...) }

// invalid is the error of a URL that names no backend; it lists what would.
func invalid(opts Options, what string) error {
	embedded := "none here"
	if len(opts.Embedded) > 0 {
		embedded = strings.Join(slices.Sorted(maps.Keys(opts.Embedded)), ", ")
	}
	return fmt.Errorf("open: %w: %s; known are engine:///PATH.gguf, engine://NAME (embedded: %s) and the schemes %s",
		backend.ErrInvalid, what, embedded, strings.Join(remote.Schemes(), ", "))
}
