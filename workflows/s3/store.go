package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/coppice-run/coppice/workflows"
)

// Options say how a store is reached. The zero value suits AWS.
type Options struct {
	// Endpoint is the URL of another service than AWS, http://host:port or https://...
	Endpoint string
	// Region; default: that of AWS_REGION, else us-east-1.
	Region string
	// Credentials; nil: from the environment (AWS_ACCESS_KEY_ID and its like), the
	// file ~/.aws/credentials, or the machine's role, in this order.
	Credentials *credentials.Credentials
	// Transport carries the requests; nil: one of the library's own.
	Transport http.RoundTripper
	// Timeout bounds one Put or Get with all its attempts; default one minute.
	Timeout time.Duration
	// Attempts at a request that may succeed later; default 5.
	Attempts int
}

// Store keeps data in a bucket, each piece as an object that its hash names. It is
// safe for concurrent use, by many processes too: an object is whole or not there,
// and the same name always means the same bytes.
type Store struct {
	c       *minio.Client
	bucket  string
	prefix  string
	timeout time.Duration
}

var _ workflows.Store = (*Store)(nil)

// Parse reads s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME].
func Parse(at string) (bucket, prefix string, o Options, err error) {
	u, err := url.Parse(at)
	if err != nil {
		return "", "", o, fmt.Errorf("s3: %w", err)
	}
	if u.Scheme != "s3" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return "", "", o, fmt.Errorf("s3: %q is no store: write s3://BUCKET/PREFIX?endpoint=URL (credentials come from the environment)", u.Redacted())
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", "", o, fmt.Errorf("s3: %w", err)
	}
	for k, v := range q {
		switch k {
		case "endpoint":
			o.Endpoint = v[0]
		case "region":
			o.Region = v[0]
		default:
			return "", "", o, fmt.Errorf("s3: no option %q: there are endpoint and region", k)
		}
	}
	return u.Host, strings.Trim(u.Path, "/"), o, nil
}

// Open returns the store in a bucket, below a prefix of its keys that may be empty.
// The bucket must be there; Open asks for it.
func Open(ctx context.Context, bucket, prefix string, o Options) (*Store, error) {
	host, secure := "s3.amazonaws.com", true
	if o.Endpoint != "" {
		u, err := url.Parse(o.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
			return nil, fmt.Errorf("s3: the endpoint %q is no URL of a server: write http://host:port or https://host", o.Endpoint)
		}
		host, secure = u.Host, u.Scheme == "https"
	}
	if o.Credentials == nil {
		o.Credentials = credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second}},
		})
	}
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	if o.Attempts <= 0 {
		o.Attempts = 5
	}
	// The client repeats what may pass (5xx, 429, lost connections), and nothing
	// above it does.
	c, err := minio.New(host, &minio.Options{Creds: o.Credentials, Secure: secure, Region: region(o.Region), Transport: o.Transport, MaxRetries: o.Attempts})
	if err != nil {
		return nil, fmt.Errorf("s3: %w", err)
	}
	s := &Store{c: c, bucket: bucket, timeout: o.Timeout}
	if prefix != "" {
		s.prefix = strings.Trim(prefix, "/") + "/"
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	switch there, err := c.BucketExists(ctx, bucket); {
	case err != nil:
		return nil, s.failed("looking for the bucket", err)
	case !there:
		return nil, fmt.Errorf("s3: there is no bucket %q at %s: make it first", bucket, c.EndpointURL())
	}
	return s, nil
}

func (s *Store) failed(doing string, err error) error {
	return fmt.Errorf("s3: %s (bucket %s at %s): %w", doing, s.bucket, s.c.EndpointURL().Host, err)
}

func (s *Store) key(hash string) string { return s.prefix + hash[:2] + "/" + hash[2:] }

// Put implements workflows.Store. The service acknowledges only what is durable, so
// cache makes no difference. What is there already is not sent again.
func (s *Store) Put(data []byte, _ bool) (string, error) {
	hash := workflows.Hash(data)
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	if st, err := s.c.StatObject(ctx, s.bucket, s.key(hash), minio.StatObjectOptions{}); err == nil && st.Size == int64(len(data)) {
		return hash, nil
	}
	_, err := s.c.PutObject(ctx, s.bucket, s.key(hash), bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{
		ContentType: "application/octet-stream", SendContentMd5: true, DisableMultipart: true,
	})
	if err != nil {
		return "", s.failed(fmt.Sprintf("storing %d bytes", len(data)), err)
	}
	return hash, nil
}

// Get implements workflows.Store. What comes is held against its hash; an object
// that does not fit is ErrMissing and removed, so that the next Put mends it.
func (s *Store) Get(hash string) ([]byte, error) {
	if raw, err := hex.DecodeString(hash); err != nil || len(raw) != sha256.Size {
		return nil, fmt.Errorf("s3: %q is no hash: %w", hash, workflows.ErrMissing)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	data, err := s.read(ctx, hash)
	var resp minio.ErrorResponse
	switch {
	case errors.As(err, &resp) && resp.Code == minio.NoSuchKey:
		return nil, fmt.Errorf("s3: %s: %w (bucket %s)", hash, workflows.ErrMissing, s.bucket)
	case err != nil:
		return nil, s.failed("reading "+hash, err)
	case workflows.Hash(data) != hash:
		_ = s.c.RemoveObject(ctx, s.bucket, s.key(hash), minio.RemoveObjectOptions{})
		return nil, fmt.Errorf("s3: %s: damaged, and so %w (bucket %s)", hash, workflows.ErrMissing, s.bucket)
	}
	return data, nil
}

func (s *Store) read(ctx context.Context, hash string) ([]byte, error) {
	o, err := s.c.GetObject(ctx, s.bucket, s.key(hash), minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	defer o.Close()
	return io.ReadAll(o)
}
