package s3

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/workflows"
)

// bucket is as much of S3 as the store needs. workflows/s3/check asks a server of
// somebody else.
type bucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	fails   int // requests that are refused with 503
	asked   map[string]int
	gone    bool // the server answers nothing
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[r.Method]++
	refuse := func(status int, code string) {
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			_ = xml.NewEncoder(w).Encode(struct {
				XMLName xml.Name `xml:"Error"`
				Code    string
			}{Code: code})
		}
	}
	switch {
	case b.gone:
		panic(http.ErrAbortHandler)
	case b.fails > 0:
		b.fails--
		refuse(503, "SlowDown")
		return
	case !strings.Contains(r.Header.Get("Authorization"), "Credential=key/"):
		refuse(403, "InvalidAccessKeyId")
		return
	}
	name, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if name != "runs" {
		refuse(404, "NoSuchBucket")
		return
	}
	if key == "" {
		return
	}
	data, there := b.objects[key]
	switch r.Method {
	case http.MethodPut:
		body, err := payload(r)
		if err != nil {
			refuse(400, "BadRequest")
			return
		}
		b.objects[key] = body
		w.Header().Set("ETag", `"x"`)
	case http.MethodDelete:
		delete(b.objects, key)
		w.WriteHeader(204)
	default:
		if !there {
			refuse(404, "NoSuchKey")
			return
		}
		w.Header().Set("ETag", `"x"`)
		w.Header().Set("Last-Modified", time.Unix(0, 0).UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(data)
		}
	}
}

// payload reads a body, signed in chunks or whole.
func payload(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return io.ReadAll(r.Body)
	}
	var out []byte
	in := bufio.NewReader(r.Body)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseUint(size, 16, 31)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			_, err := io.Copy(io.Discard, in)
			return out, err
		}
		chunk := make([]byte, n+2)
		if _, err := io.ReadFull(in, chunk); err != nil {
			return nil, err
		}
		out = append(out, chunk[:n]...)
	}
}

func newBucket(t *testing.T) (*bucket, string) {
	b := &bucket{objects: map[string][]byte{}, asked: map[string]int{}}
	s := httptest.NewServer(b)
	t.Cleanup(s.Close)
	return b, s.URL
}

func TestStoreKeepsWhatItIsGiven(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	b, at := newBucket(t)
	name, prefix, o, err := Parse("s3://runs/some/where?endpoint=" + at)
	require.NoError(t, err)
	s, err := Open(t.Context(), name, prefix, o)
	require.NoError(t, err)
	for _, data := range [][]byte{nil, []byte("hello"), bytes.Repeat([]byte("0123456789"), 700_000)} {
		hash, err := s.Put(data, false)
		require.NoError(t, err)
		require.Equal(t, workflows.Hash(data), hash)
		require.Contains(t, b.objects, "some/where/"+hash[:2]+"/"+hash[2:])
		got, err := s.Get(hash)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
	}
	puts := b.asked[http.MethodPut]
	hash, err := s.Put([]byte("hello"), true)
	require.NoError(t, err)
	require.Equal(t, puts, b.asked[http.MethodPut], "it is there already")

	// What was cut or changed is missing, and the next Put mends it.
	key := "some/where/" + hash[:2] + "/" + hash[2:]
	for _, bad := range []string{"hell", "HELLO"} {
		b.objects[key] = []byte(bad)
		_, err = s.Get(hash)
		require.ErrorIs(t, err, workflows.ErrMissing)
		require.ErrorContains(t, err, "damaged")
		_, err = s.Put([]byte("hello"), false)
		require.NoError(t, err)
		_, err = s.Get(hash)
		require.NoError(t, err)
	}
	for _, bad := range []string{workflows.Hash([]byte("nobody put this")), "", "../../etc", strings.Repeat("z", 64)} {
		_, err = s.Get(bad)
		require.ErrorIs(t, err, workflows.ErrMissing, bad)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			data := fmt.Appendf(nil, "shared %d", i%2)
			hash, err := s.Put(data, false)
			if err == nil {
				_, err = s.Get(hash)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestStoreOnServersThatFail(t *testing.T) {
	creds := credentials.NewStaticV4("key", "secret", "")
	b, at := newBucket(t)
	s, err := Open(t.Context(), "runs", "", Options{Endpoint: at, Credentials: creds, Attempts: 3})
	require.NoError(t, err)
	hash, err := s.Put([]byte("hello"), false)
	require.NoError(t, err)
	b.fails = 2
	_, err = s.Get(hash)
	require.NoError(t, err, "it passes with the third attempt")
	b.asked, b.fails = map[string]int{}, 100
	_, err = s.Get(hash)
	require.Error(t, err)
	require.NotErrorIs(t, err, workflows.ErrMissing)
	require.Equal(t, 3, b.asked[http.MethodGet])
	b.fails, b.gone = 0, true
	late, err2 := s, error(nil)
	late.timeout = 50 * time.Millisecond
	_, err2 = late.Put([]byte("other"), false)
	require.Error(t, err2)
	b.mu.Lock()
	b.gone = false
	b.mu.Unlock()

	_, err = Open(t.Context(), "runs", "", Options{Endpoint: at, Credentials: credentials.NewStaticV4("nobody", "x", "")})
	require.ErrorContains(t, err, "runs at "+strings.TrimPrefix(at, "http://"))
	_, err = Open(t.Context(), "others", "", Options{Endpoint: at, Credentials: creds})
	require.ErrorContains(t, err, `there is no bucket "others"`)
	_, err = Open(t.Context(), "runs", "", Options{Endpoint: "ftp://x", Credentials: creds})
	require.ErrorContains(t, err, "is no URL of a server")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Open(ctx, "runs", "", Options{Endpoint: at, Credentials: creds})
	require.True(t, errors.Is(err, context.Canceled), err)
}

func TestParse(t *testing.T) {
	name, prefix, o, err := Parse("s3://runs/a/b/?endpoint=http://127.0.0.1:9000&region=eu-1")
	require.NoError(t, err)
	require.Equal(t, []string{"runs", "a/b", "http://127.0.0.1:9000", "eu-1"}, []string{name, prefix, o.Endpoint, o.Region})
	for at, want := range map[string]string{
		"http://x":        "is no store",
		"s3://":           "is no store",
		"s3://key:pw@b":   "is no store",
		"s3://b?secret=x": `no option "secret"`,
		"s3://b?a=%zz":    "s3: ",
		"s3://%zz":        "s3: ",
	} {
		_, _, _, err := Parse(at)
		require.ErrorContains(t, err, want, at)
		require.NotContains(t, err.Error(), "pw@")
	}
}
