// Package hub fetches model files over HTTP: from a hub of models by repository
// and quantisation, or by URL.
//
// A [Client] lists the files of a [Ref] and fetches them. A download that was cut
// goes on where it ended, also in a later process, and a file gets its name only
// when all of it is there and its checksum is right.
package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend/gguf"
)

var (
	// ErrRef marks a name that says no model.
	ErrRef = errors.New("not a model's name")
	// ErrNotFound marks a repository or a file that is not there.
	ErrNotFound = errors.New("not found")
	// ErrDenied marks what needs another token.
	ErrDenied = errors.New("access denied")
	// ErrChecksum marks a file whose bytes are not those that were promised.
	ErrChecksum = errors.New("wrong checksum")
)

// Ref names a model: a repository of a hub and a quantisation, or a URL.
type Ref struct {
	Repo  string // org/name
	Quant string // part of the file's name, e.g. Q4_K_M; may be empty
	URL   string // instead
}

// ParseRef reads hf:org/repo, hf:org/repo:quant, or an http or https URL.
func ParseRef(s string) (Ref, error) {
	if strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://") {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || !isModel(u.Path) {
			return Ref{}, fmt.Errorf("%w: %q: a URL must end in a file name with .gguf", ErrRef, s)
		}
		return Ref{URL: s}, nil
	}
	rest, ok := strings.CutPrefix(s, "hf:")
	if !ok {
		return Ref{}, fmt.Errorf("%w: %q: give hf:org/repo:quant, e.g. hf:org/model-GGUF:Q4_K_M, or a URL", ErrRef, s)
	}
	repo, quant, _ := strings.Cut(rest, ":")
	org, name, ok := strings.Cut(repo, "/")
	if !ok || !plain(org) || !plain(name) || quant != "" && !plain(quant) {
		return Ref{}, fmt.Errorf("%w: %q: after hf: comes org/repo, and a quantisation after a colon", ErrRef, s)
	}
	return Ref{Repo: repo, Quant: quant}, nil
}

// plain tells whether a name has only letters, digits, dots, dashes and
// underscores, and is no path.
func plain(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._-", r))
	})
}

func isModel(name string) bool { return strings.HasSuffix(strings.ToLower(name), ".gguf") }

// File is one file to fetch.
type File struct {
	Name   string // without a folder
	URL    string
	Size   int64  // 0 if not known
	SHA256 string // hex; empty if not known
}

// Progress says how far a file is.
type Progress struct {
	File        string
	Done, Total int64 // bytes; Total is 0 if not known
}

// Client fetches files. Base must be set.
type Client struct {
	// Base is the address of the hub, e.g. a mirror.
	Base string
	// Token is sent to Base, and to nobody else.
	Token string
	HTTP  *http.Client // http.DefaultClient if nil
	// Progress is called now and then while a file is fetched. May be nil.
	Progress func(Progress)
	// Stall is for how long a server may send nothing before the connection is given
	// up and opened again; a minute if 0.
	Stall time.Duration
	// Tries is how often a connection that breaks is opened again, 5 if 0, after
	// Wait, which grows; one second if 0.
	Tries int
	Wait  time.Duration
}

// Files lists what a name stands for: one file, or all parts of a split one.
func (c *Client) Files(ctx context.Context, ref Ref) ([]File, error) {
	if ref.URL != "" {
		u, err := url.Parse(ref.URL)
		if err != nil {
			return nil, fmt.Errorf("%w: %q", ErrRef, ref.URL)
		}
		return []File{{Name: path.Base(u.Path), URL: ref.URL}}, nil
	}
	address := strings.TrimSuffix(c.Base, "/") + "/api/models/" + ref.Repo + "/tree/main?recursive=true"
	resp, err := c.get(ctx, address, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref.Repo, err)
	}
	defer resp.Body.Close()
	var list []struct {
		Type string
		Path string
		Size int64
		LFS  struct{ OID string }
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&list); err != nil {
		return nil, fmt.Errorf("%s: the list of its files cannot be read: %w", ref.Repo, err)
	}
	var files []File
	for _, f := range list {
		if f.Type != "file" || !isModel(f.Path) {
			continue
		}
		var parts []string
		for _, p := range strings.Split(f.Path, "/") {
			parts = append(parts, url.PathEscape(p))
		}
		files = append(files, File{
			Name: path.Base(f.Path), Size: f.Size, SHA256: strings.TrimPrefix(f.LFS.OID, "sha256:"),
			URL: strings.TrimSuffix(c.Base, "/") + "/" + ref.Repo + "/resolve/main/" + strings.Join(parts, "/"),
		})
	}
	return choose(files, ref)
}

// choose picks the files of one model.
func choose(files []File, ref Ref) ([]File, error) {
	models := map[string][]File{} // by name without the part's number
	for _, f := range files {
		if !plain(f.Name) {
			continue
		}
		name := strings.TrimSuffix(strings.ToLower(f.Name), ".gguf")
		if n, _, _, ok := gguf.SplitName(f.Name); ok {
			name = strings.ToLower(n)
		}
		models[name] = append(models[name], f)
	}
	var names []string
	for n := range models {
		if strings.HasPrefix(n, "mmproj") { // the eyes of a model, no model
			continue
		}
		names = append(names, n)
	}
	slices.Sort(names)
	wanted := []string{ref.Quant}
	if ref.Quant == "" {
		wanted = []string{"q4_k_m", "q8_0", ""}
	}
	for _, q := range wanted {
		var fit []string
		for _, n := range names {
			if hasQuant(n, strings.ToLower(q)) {
				fit = append(fit, n)
			}
		}
		switch {
		case len(fit) == 1:
			list := models[fit[0]]
			slices.SortFunc(list, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
			return list, nil
		case len(fit) > 1 && (ref.Quant != "" || q == ""):
			return nil, fmt.Errorf("%w: %s has several models for %q: %s", ErrRef, ref.Repo, ref.Quant, strings.Join(fit, ", "))
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: %s has no .gguf file", ErrNotFound, ref.Repo)
	}
	return nil, fmt.Errorf("%w: %s has no model for %q, only %s", ErrNotFound, ref.Repo, ref.Quant, strings.Join(names, ", "))
}

// hasQuant tells whether a quantisation is a part of the name, between marks:
// q4_k is not in model-q4_k_m.
func hasQuant(name, quant string) bool {
	for rest := name; quant != ""; {
		i := strings.Index(rest, quant)
		if i < 0 {
			return false
		}
		end := i + len(quant)
		before := i == 0 || strings.ContainsRune("-.", rune(rest[i-1]))
		after := end == len(rest) || strings.ContainsRune("-.", rune(rest[end]))
		if before && after {
			return true
		}
		rest = rest[end:]
	}
	return true
}

// get asks for an address from a byte on.
func (c *Client) get(ctx context.Context, address string, from int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	if base, err := url.Parse(c.Base); err == nil && c.Token != "" && req.URL.Host == base.Host && req.URL.Scheme == base.Scheme {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	switch code := resp.StatusCode; {
	case code == http.StatusOK || code == http.StatusPartialContent:
		return resp, nil
	case code == http.StatusRequestedRangeNotSatisfiable && from > 0:
		resp.Body.Close()
		// The server tells how long the file is, if it is polite.
		var size int64
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes */%d", &size); err == nil && size != from {
			return nil, errOther
		}
		return nil, errRange
	case code == http.StatusNotFound:
		err = ErrNotFound
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		err = fmt.Errorf("%w: it needs a token that may read it", ErrDenied)
	case code == http.StatusTooManyRequests || code >= 500:
		err = fmt.Errorf("%w: the server answers %s", errAgain, resp.Status)
	default:
		err = fmt.Errorf("the server answers %s", resp.Status)
	}
	resp.Body.Close()
	return nil, err
}

var (
	errRange = errors.New("the file has no such part")
	errOther = errors.New("the part that is there is another file's")
	errAgain = errors.New("try again")
	errStall = errors.New("the server has stopped sending")
)
