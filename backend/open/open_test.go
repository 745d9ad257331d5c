package open

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/remote"
)

func open(t *testing.T, rawURL string, opts Options) backend.Backend {
	t.Helper()
	b, err := Backend(t.Context(), rawURL, opts)
	if err != nil {
		t.Fatalf("%s: %v", rawURL, err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestAModelFileByPathOrURLOrName(t *testing.T) {
	file := tiny(t)
	path := filepath.Join(t.TempDir(), "a model.gguf")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	opts := Options{
		Embedded: map[string]func() []byte{"sapling": func() []byte { return file }},
		Engine:   engine.Config{MemoryBytes: 8 << 20},
	}
	opts.Model.Threads = 1
	var fingerprint string
	for _, u := range []string{
		path,
		(&url.URL{Scheme: "engine", Path: path, RawQuery: "threads=1&memory=4MiB"}).String(),
		"engine://sapling",
		"engine://sapling?memory=4194304",
		"sapling",
	} {
		b := open(t, u, opts)
		if _, ok := b.(*engine.Engine); !ok {
			t.Errorf("%s: %T", u, b)
		}
		info := b.Info()
		if info.Fingerprint == "" || fingerprint != "" && info.Fingerprint != fingerprint {
			t.Errorf("%s: fingerprint %q, before %q", u, info.Fingerprint, fingerprint)
		}
		fingerprint = info.Fingerprint
		r, err := b.Generate(t.Context(), &backend.Request{Turns: []backend.Turn{{Parts: []backend.Part{{Text: "a"}}}}, MaxTokens: 2, IgnoreEOS: true}, nil)
		if err != nil || r.Usage.SampledTokens != 2 {
			t.Errorf("%s: %+v, %v", u, r, err)
		}
	}
}

// TestKeysAndValuesByURL: another way to hold keys and values is another model to
// journals.
func TestKeysAndValuesByURL(t *testing.T) {
	file := tiny(t)
	opts := Options{Embedded: map[string]func() []byte{"sapling": func() []byte { return file }}, Engine: engine.Config{MemoryBytes: 1 << 20}}
	opts.Model.Threads = 1
	seen := map[string]string{}
	for _, q := range []string{"", "?kv=bf16", "?kv=q8"} {
		e := open(t, "engine://sapling"+q, opts).(*engine.Engine)
		seen[q] = e.Info().Fingerprint
		if st := e.Stats(); q == "?kv=q8" && (st.KVType != "q8") || st.PageBytes == 0 {
			t.Errorf("%s: %+v", q, st)
		}
	}
	if seen[""] != seen["?kv=bf16"] || seen["?kv=q8"] != "q8-"+seen[""] {
		t.Error(seen)
	}
	for q, want := range map[string]string{"?weights=file": seen[""], "?weights=f32": "f32-" + seen[""], "?weights=f32&kv=q8": "q8-f32-" + seen[""], "?weights=f32&attention=f32": "f32-a32-" + seen[""],
		"?arithmetic=fast": seen[""], "?arithmetic=ggml": "f16-ggml-" + seen[""]} {
		if got := open(t, "engine://sapling"+q, opts).(*engine.Engine).Info().Fingerprint; got != want {
			t.Errorf("%s: %s, want %s", q, got, want)
		}
	}
	// The URL goes before the options.
	opts.Model.KV = "q8"
	if e := open(t, "engine://sapling?kv=bf16", opts).(*engine.Engine); e.Info().Fingerprint != seen[""] {
		t.Error(e.Info().Fingerprint)
	}
}

// TestOneBoundOfMemory: a bound for keys and values in the URL and one for all in
// the options cannot both hold; neither overrides the other in silence.
func TestOneBoundOfMemory(t *testing.T) {
	file := tiny(t)
	opts := Options{Embedded: map[string]func() []byte{"sapling": func() []byte { return file }}, Engine: engine.Config{TotalBytes: 1 << 30}}
	opts.Model.Threads = 1
	if b, err := Backend(t.Context(), "engine://sapling?memory=1MiB", opts); b != nil || !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "memory") {
		t.Error(b, err)
	}
	open(t, "engine://sapling?threads=1", opts)
	opts.Engine.MemoryBytes = 1 << 20
	if b, err := Backend(t.Context(), "sapling", opts); b != nil || !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "TotalBytes") {
		t.Error(b, err)
	}
}

func TestServersByScheme(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"data":[{"id":"m"}],"model_path":"m","default_generation_settings":{"n_ctx":64}}`))
	}))
	defer srv.Close()
	for scheme, dialect := range map[string]string{"http": "openai", "openai+http": "openai", "VLLM+http": "vllm", "sglang+http": "sglang", "llama+http": "llama", "ollama+http": "ollama"} {
		b, ok := open(t, scheme+strings.TrimPrefix(srv.URL, "http"), Options{}).(*remote.Backend)
		if !ok || b.Dialect() != dialect || b.Info().Model != "m" {
			t.Errorf("%s: %v", scheme, b)
		}
	}
}

func TestErrorsSayWhatIsKnown(t *testing.T) {
	opts := Options{Embedded: map[string]func() []byte{"sapling": func() []byte { return nil }, "acorn": func() []byte { return nil }}}
	for _, u := range []string{
		"", "gpt-4", "ftp://s3cr3t@h/", "grpc+http://s3cr3t@h", "engine://oak", "engine://", "engine://sapling/x.gguf",
		"engine://s3cr3t@sapling", "engine:///m.gguf?treads=1", "engine://sapling?threads=0", "engine://sapling?memory=1TB", "engine://sapling?kv=q4", "engine://sapling?weights=f16", "engine://sapling?attention=bf16", "engine://sapling?arithmetic=exact", "engine://sapling?memory=99999999999GiB", "engine:///%zz",
		"engine:///m.gguf?arithmetic=ggml&kv=q8", "engine://sapling?arithmetic=ggml&weights=f32", "engine://sapling?attention=f32&kv=q8", "engine://sapling?tier=0", "engine://sapling?tier=many",
	} {
		b, err := Backend(t.Context(), u, opts)
		if b != nil || !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%q: %v, %v", u, b, err)
			continue
		}
		for _, s := range []string{"engine:///PATH.gguf", "acorn, sapling", "vllm+https"} {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%q: error without %s: %v", u, s, err)
			}
		}
		if strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%q: key shown: %v", u, err)
		}
	}
	if _, err := Backend(t.Context(), "no/such.gguf", opts); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if b, err := Backend(t.Context(), "engine://acorn", opts); err == nil || b != nil || !strings.Contains(err.Error(), "acorn") {
		t.Error(b, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if b, err := Backend(ctx, "http://127.0.0.1:1/v1", opts); !errors.Is(err, context.Canceled) || b != nil {
		t.Error(b, err)
	}
}

func TestEverySchemeIsListed(t *testing.T) {
	for _, s := range []string{"engine", "http", "https", "openai+http", "vllm+https", "sglang+http", "llama+http", "ollama+https"} {
		found := false
		for _, k := range Schemes() {
			found = found || k == s
		}
		if !found {
			t.Errorf("%s is not listed", s)
		}
	}
}
