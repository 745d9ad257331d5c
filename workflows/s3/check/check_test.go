// Package check asks a server of somebody else whether the store is right about S3:
// gofakes3 in the version of rclone, which checks signatures.
package check

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"

	"github.com/coppice-run/coppice/workflows"
	"github.com/coppice-run/coppice/workflows/s3"
)

func TestStoreOnGofakes3(t *testing.T) {
	backend := s3mem.New()
	if err := backend.CreateBucket(t.Context(), "runs"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend, gofakes3.WithV4Auth(map[string]string{"key": "secret"})).Server())
	defer server.Close()
	if _, err := s3.Open(t.Context(), "runs", "", s3.Options{Endpoint: server.URL, Credentials: credentials.NewStaticV4("key", "wrong", "")}); err == nil {
		t.Error("a wrong secret was taken")
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	s, err := s3.Open(t.Context(), "runs", "a/prefix", s3.Options{Endpoint: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{nil, []byte("hello"), bytes.Repeat([]byte("0123456789"), 3_000_000)} {
		hash, err := s.Put(data, false)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := s.Put(data, true); err != nil || again != hash {
			t.Fatal(again, err)
		}
		got, err := s.Get(hash)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes came of %d: %v", len(got), len(data), err)
		}
	}
	if _, err := s.Get(workflows.Hash([]byte("nobody"))); err == nil || !isMissing(err) {
		t.Fatal(err)
	}
	if _, err := s3.Open(t.Context(), "others", "", s3.Options{Endpoint: server.URL}); err == nil {
		t.Error("a bucket that is not there was opened")
	}
}

func isMissing(err error) bool { return errors.Is(err, workflows.ErrMissing) }
