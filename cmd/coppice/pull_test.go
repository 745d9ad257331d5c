package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/sapling"
)

// coppice runs a command line and returns what it prints.
func coppice(t *testing.T, args ...string) (code int, out, log string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer file.Close()
	var errOut bytes.Buffer
	code = run(t.Context(), args, nil, file, &errOut)
	data, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	return code, string(data), errOut.String()
}

// TestPullFromAMirror: a model comes from the mirror that the environment names, with
// the token, goes on where it was cut, shows how far it is, and is found by its name.
func TestPullFromAMirror(t *testing.T) {
	good := sapling.GGUF()
	files := map[string][]byte{"m-Q8_0.gguf": good, "m-Q4_0.gguf": good[:len(good)/2], "m-Q5_0.gguf": good}
	var begun, goneOn atomic.Int64
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/api/models/org/repo/") {
			var list []map[string]any
			for name, data := range files {
				sum := sha256.Sum256(data)
				if name == "m-Q5_0.gguf" {
					sum[0]++ // of another file
				}
				list = append(list, map[string]any{"type": "file", "path": name, "size": len(data), "lfs": map[string]any{"oid": hex.EncodeToString(sum[:])}})
			}
			json.NewEncoder(w).Encode(list)
			return
		}
		data, ok := files[filepath.Base(r.URL.Path)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if r.Header.Get("Range") == "" {
			begun.Add(1)
		} else {
			goneOn.Add(1)
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	defer mirror.Close()
	dir := t.TempDir()
	t.Setenv("COPPICE_MODELS", dir)
	t.Setenv("HF_ENDPOINT", mirror.URL)
	t.Setenv("HF_TOKEN", "secret")

	part := filepath.Join(dir, "m-Q8_0.gguf.part")
	require.NoError(t, os.WriteFile(part, good[:100_000], 0o600))
	code, out, log := coppice(t, "pull", "hf:org/repo:Q8_0", "--json")
	require.Equal(t, 0, code, log)
	require.Contains(t, log, "100% of ")
	require.NoFileExists(t, part)
	require.Equal(t, []int64{0, 1}, []int64{begun.Load(), goneOn.Load()}, "connections from the start, and from where it was cut")
	var info struct{ Family, Where string }
	require.NoError(t, json.Unmarshal([]byte(out), &info))
	require.Equal(t, filepath.Join(dir, "m-Q8_0.gguf"), info.Where)
	require.Equal(t, "llama", info.Family)
	got, err := os.ReadFile(info.Where)
	require.NoError(t, err)
	require.True(t, bytes.Equal(good, got))
	code, _, log = coppice(t, "pull", "hf:org/repo:Q8_0")
	require.Equal(t, 0, code, log)
	require.Equal(t, []int64{0, 1}, []int64{begun.Load(), goneOn.Load()}, "it is there already")
	code, _, log = coppice(t, "generate", "--model", "m-Q8_0", "--prompt", "Pod", "--max-tokens", "1")
	require.Equal(t, 0, code, log)

	for _, c := range []struct {
		env, value string
		args       []string
		code       int
		says       string
	}{
		{args: []string{"hf:org/repo:Q4_0"}, code: 1, says: "what was fetched cannot be used"},
		{args: []string{"hf:org/repo:Q5_0"}, code: 1, says: "wrong checksum"},
		{args: []string{"hf:org/repo:Q6_K"}, code: 2, says: "only m-q4_0, m-q5_0, m-q8_0"},
		{args: []string{"hf:org/repo:Q8_0", "--sha256", "12ab"}, code: 2, says: "64 hexadecimal digits"},
		{args: []string{"hf:org/repo:Q8_0", "--sha256", strings.Repeat("g", 64)}, code: 2, says: "64 hexadecimal digits"},
		{env: "HF_TOKEN", value: "wrong", args: []string{"hf:org/repo:Q8_0"}, code: 1, says: "a token that may read it"},
		{env: "HF_ENDPOINT", value: "mirror", args: []string{"hf:org/repo:Q8_0"}, code: 2, says: "HF_ENDPOINT"},
	} {
		t.Run(c.says, func(t *testing.T) {
			if c.env != "" {
				t.Setenv(c.env, c.value)
			}
			code, out, log := coppice(t, append([]string{"pull"}, c.args...)...)
			require.Equal(t, c.code, code, log)
			require.Contains(t, log, c.says)
			require.Empty(t, out)
			require.NotContains(t, log, "secret")
		})
	}
	require.FileExists(t, info.Where, "a checksum that is none removes nothing")

	// What cannot be used is listed as such, beside what can.
	code, out, log = coppice(t, "models")
	require.Equal(t, 0, code, log)
	require.Regexp(t, `m-Q8_0 +llama`, out)
	require.Regexp(t, `m-Q4_0 +cannot be used: .*at byte`, out)
	require.Regexp(t, `sapling +llama`, out)
}

// TestModelInParts: a model that is split writes what it writes as a whole, also where
// it is named without a folder, and a part that is missing or cut is told by its name.
func TestModelInParts(t *testing.T) {
	f, err := gguf.Parse(sapling.GGUF())
	require.NoError(t, err)
	dir := t.TempDir()
	const parts = 3
	part := func(i int) string { return filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", i, parts)) }
	var tensors []gguf.Tensor
	for _, info := range f.Tensors() {
		tensor, ok := f.Tensor(info.Name)
		require.True(t, ok, info.Name)
		tensors = append(tensors, tensor)
	}
	for i := 1; i <= parts; i++ {
		meta := []gguf.KV{{Key: "split.no", Value: uint16(i - 1)}, {Key: "split.count", Value: uint16(parts)}, {Key: "split.tensors.count", Value: int32(len(tensors))}}
		if i == 1 {
			meta = append(meta, gguf.MetaOf(f)...)
		}
		var b bytes.Buffer
		require.NoError(t, gguf.Write(&b, meta, tensors[len(tensors)*(i-1)/parts:len(tensors)*i/parts]))
		require.NoError(t, os.WriteFile(part(i), b.Bytes(), 0o600))
	}
	t.Setenv("COPPICE_MODELS", dir)
	generate := func(model string) (int, string, string) {
		return coppice(t, "generate", "--model", model, "--prompt", "Alert: Pod web-1", "--max-tokens", "12", "--json")
	}
	code, whole, log := generate("sapling")
	require.Equal(t, 0, code, log)
	for _, name := range []string{part(1), "m-00001-of-00003"} {
		code, got, log := generate(name)
		require.Equal(t, 0, code, log)
		require.Equal(t, whole, got)
	}
	for name, damage := range map[string]func() error{
		part(2): func() error { return os.Truncate(part(2), 500) },
		part(3): func() error { return os.Remove(part(3)) },
	} {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, damage())
		code, out, log := generate(part(1))
		require.Equal(t, 1, code, log)
		require.Empty(t, out)
		require.Contains(t, log, filepath.Base(name))
		require.NoError(t, os.WriteFile(name, data, 0o600))
	}
	code, _, log = generate(part(2))
	require.NotEqual(t, 0, code)
	require.Contains(t, log, "open the first one, m-00001-of-00003.gguf")
}
