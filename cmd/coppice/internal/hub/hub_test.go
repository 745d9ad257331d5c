package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// server is a hub with one repository.
type server struct {
	*httptest.Server
	files  map[string][]byte
	sums   map[string]string // said instead of the right ones
	cut    atomic.Int64      // connections that end after 1000 bytes
	ranges atomic.Int64      // requests for a part
	sent   atomic.Int64      // bytes of files
	whole  bool              // ignores ranges
	token  string
}

func newServer(t *testing.T, files map[string][]byte) *server {
	s := &server{files: files, sums: map[string]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	if s.token != "" && r.Header.Get("Authorization") != "Bearer "+s.token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/api/models/org/repo/tree/main" {
		var list []map[string]any
		for name, data := range s.files {
			said := s.sums[name]
			if said == "" {
				said = sum(data)
			}
			list = append(list, map[string]any{"type": "file", "path": name, "size": len(data), "lfs": map[string]any{"oid": said}})
		}
		json.NewEncoder(w).Encode(list)
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/org/repo/resolve/main/")
	data, there := s.files[name]
	if !ok || !there {
		http.NotFound(w, r)
		return
	}
	if h := r.Header.Get("Range"); h != "" && !s.whole {
		s.ranges.Add(1)
		var from int
		fmt.Sscanf(h, "bytes=%d-", &from)
		if from >= len(data) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)-from))
		w.WriteHeader(http.StatusPartialContent)
		data = data[from:]
	} else {
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	}
	if s.cut.Add(-1) >= 0 {
		data = data[:min(len(data), 1000)]
	}
	s.sent.Add(int64(len(data)))
	w.Write(data)
}

func (s *server) client() *Client {
	return &Client{Base: s.URL, Token: s.token, Tries: 3, Wait: time.Microsecond}
}

func (s *server) pull(t *testing.T, folder, name string) ([]string, error) {
	t.Helper()
	ref, err := ParseRef(name)
	if err != nil {
		return nil, err
	}
	c := s.client()
	files, err := c.Files(context.Background(), ref)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, f := range files {
		p, err := c.Fetch(context.Background(), f, folder)
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}

func bytesOf(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ seed
	}
	return b
}

func TestPull(t *testing.T) {
	files := map[string][]byte{
		"README.md":                   []byte("read me"),
		"m-Q8_0.gguf":                 bytesOf(9000, 1),
		"m-Q4_K_M.gguf":               bytesOf(5000, 2),
		"mmproj-m.gguf":               bytesOf(10, 3),
		"b/m-F16-00001-of-00002.gguf": bytesOf(3000, 4),
		"b/m-F16-00002-of-00002.gguf": bytesOf(2000, 5),
	}
	s := newServer(t, files)
	s.token = "secret"
	for name, want := range map[string][]string{
		"hf:org/repo": {"m-Q4_K_M.gguf"}, "hf:org/repo:q8_0": {"m-Q8_0.gguf"},
		"hf:org/repo:F16": {"b/m-F16-00001-of-00002.gguf", "b/m-F16-00002-of-00002.gguf"},
	} {
		dir := t.TempDir()
		paths, err := s.pull(t, dir, name)
		if err != nil || len(paths) != len(want) {
			t.Fatalf("%s: %v %v", name, paths, err)
		}
		for i, p := range paths {
			data, err := os.ReadFile(p)
			if err != nil || !bytes.Equal(data, files[want[i]]) || filepath.Dir(p) != dir {
				t.Errorf("%s: %s is not %s (%v)", name, p, want[i], err)
			}
		}
		sent := s.sent.Load()
		if _, err := s.pull(t, dir, name); err != nil || s.sent.Load() != sent {
			t.Errorf("%s: fetched again: %v", name, err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*.part")); len(left) > 0 {
			t.Errorf("%s: %v is left", name, left)
		}
	}
}

func TestPullGoesOn(t *testing.T) {
	data := bytesOf(4500, 9)
	s := newServer(t, map[string][]byte{"m-Q8_0.gguf": data})
	dir := t.TempDir()
	s.cut.Store(100)
	_, err := s.pull(t, dir, "hf:org/repo") // each connection brings some, so it gets there
	if err != nil {
		t.Fatal(err)
	}
	if s.ranges.Load() < 4 || s.sent.Load() != 4500 {
		t.Errorf("%d parts, %d bytes sent", s.ranges.Load(), s.sent.Load())
	}
	// In a later process, from what an earlier one left.
	dir = t.TempDir()
	s.cut.Store(0)
	if err := os.WriteFile(filepath.Join(dir, "m-Q8_0.gguf.part"), data[:4000], 0o600); err != nil {
		t.Fatal(err)
	}
	s.sent.Store(0)
	paths, err := s.pull(t, dir, "hf:org/repo")
	if err != nil || s.sent.Load() != 500 {
		t.Fatal(err, s.sent.Load())
	}
	if got, _ := os.ReadFile(paths[0]); !bytes.Equal(got, data) {
		t.Error("the file is not whole")
	}
	// A server without ranges sends all of it.
	dir = t.TempDir()
	s.whole = true
	if err := os.WriteFile(filepath.Join(dir, "m-Q8_0.gguf.part"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if paths, err = s.pull(t, dir, "hf:org/repo"); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(paths[0]); !bytes.Equal(got, data) {
		t.Error("the file is not whole")
	}
}

func TestPullThatFails(t *testing.T) {
	s := newServer(t, map[string][]byte{"m-Q8_0.gguf": bytesOf(4500, 9), "other-q8_0.gguf": bytesOf(10, 1), "x-q4_0.gguf": bytesOf(10, 1)})
	s.sums["x-q4_0.gguf"] = sum([]byte("something else"))
	dir := t.TempDir()
	for name, want := range map[string]error{
		"hf:org/repo:q8_0": ErrRef, "hf:org/repo": ErrRef, "hf:org/repo:q5_0": ErrNotFound, "hf:org/none": ErrNotFound,
		"hf:org/repo:q4_0": ErrChecksum, "hf:org": ErrRef, "hf:org/..": ErrRef, "hf:a/b:../c": ErrRef, "org/repo": ErrRef, "http://h/x.bin": ErrRef, "": ErrRef,
	} {
		if paths, err := s.pull(t, dir, name); !errors.Is(err, want) {
			t.Errorf("%s: %v %v, want %v", name, paths, err, want)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	s.token = "secret"
	c := s.client()
	c.Token = "wrong"
	if _, err := c.Files(context.Background(), Ref{Repo: "org/repo"}); !errors.Is(err, ErrDenied) || strings.Contains(err.Error(), "wrong") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Fetch(ctx, File{Name: "a.gguf", URL: s.URL + "/a"}, dir); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := c.Fetch(context.Background(), File{Name: "../a.gguf", URL: s.URL}, dir); !errors.Is(err, ErrRef) {
		t.Error(err)
	}
}

// TestPullFromASilentServer: a server that stops sending is asked again for the rest.
func TestPullFromASilentServer(t *testing.T) {
	data := bytesOf(4500, 9)
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			w.Write(data[:1000])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	defer s.Close()
	c := &Client{Tries: 10, Wait: time.Microsecond, Stall: time.Second}
	path, err := c.Fetch(context.Background(), File{Name: "m.gguf", URL: s.URL, Size: int64(len(data)), SHA256: sum(data)}, t.TempDir())
	if err != nil || asked.Load() < 2 {
		t.Fatal(err, asked.Load())
	}
	if got, _ := os.ReadFile(path); !bytes.Equal(got, data) {
		t.Error("the file is not whole")
	}
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	c.Stall, c.Tries = time.Millisecond, 2
	if _, err := c.Fetch(context.Background(), File{Name: "m.gguf", URL: silent.URL}, t.TempDir()); !errors.Is(err, errStall) {
		t.Error(err)
	}
}

// TestPullOverAnotherFile: what is left of a longer file is no file that is whole.
func TestPullOverAnotherFile(t *testing.T) {
	data := bytesOf(4500, 9)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	defer s.Close()
	c := &Client{Tries: 3, Wait: time.Microsecond}
	for _, left := range [][]byte{data, bytesOf(6000, 1)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "m.gguf.part"), left, 0o600); err != nil {
			t.Fatal(err)
		}
		path, err := c.Fetch(context.Background(), File{Name: "m.gguf", URL: s.URL}, dir)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(path); !bytes.Equal(got, data) {
			t.Errorf("of %d bytes that were left came a file of %d, want %d", len(left), len(got), len(data))
		}
	}
}

// TestPullToAFullDisk: what cannot be written is told at once, not tried again.
func TestPullToAFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("needs /dev/full, a device that is always full")
	}
	s := newServer(t, map[string][]byte{"m-Q8_0.gguf": bytesOf(4500, 9)})
	dir := t.TempDir()
	if err := os.Symlink("/dev/full", filepath.Join(dir, "m-Q8_0.gguf.part")); err != nil {
		t.Fatal(err)
	}
	paths, err := s.pull(t, dir, "hf:org/repo")
	if !errors.Is(err, syscall.ENOSPC) || s.sent.Load() > 4500 {
		t.Errorf("%v %v, %d bytes sent", paths, err, s.sent.Load())
	}
	if _, err := os.Stat(filepath.Join(dir, "m-Q8_0.gguf")); err == nil {
		t.Error("the file is there")
	}
}

// TestTokenStaysAtHome: a URL on another host gets no token.
func TestTokenStaysAtHome(t *testing.T) {
	var got string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		w.Write([]byte("GGUF"))
	}))
	defer other.Close()
	c := &Client{Base: "http://hub.invalid", Token: "secret"}
	files, err := c.Files(context.Background(), Ref{URL: other.URL + "/m.gguf"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fetch(context.Background(), files[0], t.TempDir()); err != nil || got != "" {
		t.Errorf("%v, token %q", err, got)
	}
	// A hub that sends files from somewhere else, where the token is not for.
	there := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Error("the hub got no token")
		}
		http.Redirect(w, r, there+"/m.gguf", http.StatusFound)
	}))
	defer hub.Close()
	c, got = &Client{Base: hub.URL, Token: "secret", Tries: 1}, "none yet"
	if _, err := c.Fetch(context.Background(), File{Name: "m.gguf", URL: hub.URL + "/m.gguf"}, t.TempDir()); err != nil || got != "" {
		t.Errorf("%v, token %q behind a redirect", err, got)
	}
}
