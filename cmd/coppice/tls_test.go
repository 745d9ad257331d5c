package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
)

// issuer signs certificates that only the test knows.
type issuer struct {
	t    *testing.T
	dir  string
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newIssuer(t *testing.T, dir, name string) *issuer {
	i := &issuer{t: t, dir: dir, name: name}
	i.cert, i.key = i.make(name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return i
}

// make writes a certificate and its key to files of that name.
func (i *issuer) make(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(i.t, err)
	c.SerialNumber = big.NewInt(1)
	c.Subject = pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := i.cert, i.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	require.NoError(i.t, err)
	raw, err := x509.MarshalECPrivateKey(key)
	require.NoError(i.t, err)
	for file, block := range map[string]*pem.Block{
		i.pem(name):    {Type: "CERTIFICATE", Bytes: der},
		i.secret(name): {Type: "EC PRIVATE KEY", Bytes: raw},
	} {
		require.NoError(i.t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	out, err := x509.ParseCertificate(der)
	require.NoError(i.t, err)
	return out, key
}

func (i *issuer) pem(name string) string    { return filepath.Join(i.dir, name+".pem") }
func (i *issuer) secret(name string) string { return filepath.Join(i.dir, name+".key") }

// frontend is as much of a Temporal server as 'coppice cancel' talks to.
type frontend struct {
	workflowservice.UnimplementedWorkflowServiceServer

	mu        sync.Mutex
	cancelled []string // namespace/run
	keys      []string // authorization headers
}

func (f *frontend) GetSystemInfo(ctx context.Context, _ *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{ServerVersion: "1.30.0"}, nil
}

func (f *frontend) RequestCancelWorkflowExecution(ctx context.Context, r *workflowservice.RequestCancelWorkflowExecutionRequest) (*workflowservice.RequestCancelWorkflowExecutionResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancelled = append(f.cancelled, r.Namespace+"/"+r.WorkflowExecution.WorkflowId)
	md, _ := metadata.FromIncomingContext(ctx)
	f.keys = append(f.keys, strings.Join(md.Get("authorization"), ","))
	return &workflowservice.RequestCancelWorkflowExecutionResponse{}, nil
}

// serveTLS starts the frontend behind TLS and returns its address.
func serveTLS(t *testing.T, f *frontend, c *tls.Config) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(c)))
	workflowservice.RegisterWorkflowServiceServer(s, f)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// TestTLSOnTheWire talks to a server whose certificate only the flags make
// acceptable, with and without a certificate of one's own.
func TestTLSOnTheWire(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := newIssuer(t, dir, "ours"), newIssuer(t, dir, "theirs")
	ours.make("server", &x509.Certificate{DNSNames: []string{"temporal.internal"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	ours.make("named", &x509.Certificate{DNSNames: []string{"temporal.internal"}})
	ours.make("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	theirs.make("stranger", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	config := func(name string, auth tls.ClientAuthType) *tls.Config {
		pair, err := tls.LoadX509KeyPair(ours.pem(name), ours.secret(name))
		require.NoError(t, err)
		return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: auth, ClientCAs: roots}
	}
	for name, c := range map[string]struct {
		server *tls.Config
		flags  []string
		ok     bool
	}{
		"authority":          {config("server", tls.NoClientCert), []string{"--tls-ca", ours.pem("ours")}, true},
		"another authority":  {config("server", tls.NoClientCert), []string{"--tls-ca", ours.pem("theirs")}, false},
		"unknown authority":  {config("server", tls.NoClientCert), []string{"--tls"}, false},
		"no TLS":             {config("server", tls.NoClientCert), nil, false},
		"name":               {config("named", tls.NoClientCert), []string{"--tls-ca", ours.pem("ours"), "--tls-server-name", "temporal.internal"}, true},
		"another name":       {config("named", tls.NoClientCert), []string{"--tls-ca", ours.pem("ours")}, false},
		"certificate":        {config("server", tls.RequireAndVerifyClientCert), []string{"--tls-ca", ours.pem("ours"), "--tls-cert", ours.pem("client"), "--tls-key", ours.secret("client")}, true},
		"no certificate":     {config("server", tls.RequireAndVerifyClientCert), []string{"--tls-ca", ours.pem("ours")}, false},
		"wrong certificate":  {config("server", tls.RequireAndVerifyClientCert), []string{"--tls-ca", ours.pem("ours"), "--tls-cert", ours.pem("stranger"), "--tls-key", ours.secret("stranger")}, false},
		"an API key besides": {config("server", tls.NoClientCert), []string{"--tls-ca", ours.pem("ours")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			key := ""
			if strings.Contains(name, "API key") {
				key = "secret"
			}
			t.Setenv("TEMPORAL_API_KEY", key)
			f := &frontend{}
			args := append([]string{"cancel", "run-1", "--temporal", serveTLS(t, f, c.server), "--namespace", "agents", "--state", t.TempDir()}, c.flags...)
			ctx := t.Context()
			if !c.ok { // what cannot succeed is tried again until then
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Second)
				defer cancel()
			}
			var stderr bytes.Buffer
			code := run(ctx, args, nil, devNull(t), &stderr)
			f.mu.Lock()
			defer f.mu.Unlock()
			if !c.ok {
				require.NotZero(t, code)
				require.Empty(t, f.cancelled)
				require.Contains(t, stderr.String(), "no Temporal at ")
				return
			}
			require.Zero(t, code, stderr.String())
			require.Equal(t, []string{"agents/run-1"}, f.cancelled)
			want := ""
			if key != "" {
				want = "Bearer secret"
			}
			require.Equal(t, []string{want}, f.keys)
		})
	}
}

// TestTLSMistakes: what is wrong with the flags is said before anybody is called.
func TestTLSMistakes(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, flags := range [][]string{
		{"--tls-cert", "c.pem"}, {"--tls-key", "c.key"}, {"--tls-cert", "no.pem", "--tls-key", "no.key"},
		{"--tls-ca", "no.pem"}, {"--tls-ca", empty},
	} {
		args := append([]string{"cancel", "run-1", "--temporal", "127.0.0.1:1", "--state", t.TempDir()}, flags...)
		require.Equal(t, 2, run(t.Context(), args, nil, devNull(t), devNull(t)), flags)
	}
}
