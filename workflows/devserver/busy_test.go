package devserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// envSlow makes this test binary a server which listens before it is ready, and takes
// its time to end.
const envSlow = "COPPICE_TEST_SLOW_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(envSlow) != "" {
		slowServer(os.Args)
	}
	os.Exit(m.Run())
}

// readyAt is the question for its health at which a slow server is ready.
const readyAt = 5

type slowHealth struct {
	healthpb.UnimplementedHealthServer
	asked int // by one client, one after the other
}

func (h *slowHealth) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	h.asked++
	r := &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}
	if h.asked >= readyAt {
		r.Status = healthpb.HealthCheckResponse_SERVING
	}
	fmt.Println("asked", h.asked)
	return r, nil
}

func slowServer(args []string) {
	port := ""
	for i, a := range args {
		if a == "--port" {
			port = args[i+1]
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		panic(err)
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, &slowHealth{})
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt)
	go func() {
		<-end
		fmt.Println("ends")
		time.AfterFunc(200*time.Millisecond, func() { os.Exit(0) }) // until then it is there, and about to go
	}()
	panic(s.Serve(l))
}

// slow says how a slow server is started.
func slow(t *testing.T) Options {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	t.Setenv(envSlow, "yes")
	return Options{Program: exe}
}

// TestServerThatListensBeforeItIsReady is waited for.
func TestServerThatListensBeforeItIsReady(t *testing.T) {
	dir := t.TempDir()
	s, err := Use(t.Context(), dir, slow(t))
	require.NoError(t, err)
	defer s.Close()
	require.Equal(t, readyAt, strings.Count(logOf(t, dir), "asked"))
}

func logOf(t *testing.T, dir string) string {
	data, err := os.ReadFile(filepath.Join(dir, "server.log"))
	require.NoError(t, err)
	return string(data)
}

// TestServerThatIsAboutToGo is not used: who comes while the last user stops it waits
// for its end, and has one of its own.
func TestServerThatIsAboutToGo(t *testing.T) {
	dir, o := t.TempDir(), slow(t)
	s, err := Use(t.Context(), dir, o)
	require.NoError(t, err)
	for range 3 {
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		require.Eventually(t, func() bool { return strings.Contains(logOf(t, dir), "ends") }, time.Minute, time.Millisecond)
		next, err := Use(t.Context(), dir, o)
		require.NoError(t, err)
		require.NoError(t, <-closed)
		require.True(t, alive(next.cmdPID(t)))
		require.True(t, reachable(next.Address))
		s = next
	}
	require.NoError(t, s.Close())
	require.False(t, reachable(s.Address))
}

// cmdPID is the process that the folder says is the server.
func (s *Server) cmdPID(t *testing.T) int {
	r, err := s.read()
	require.NoError(t, err)
	require.Equal(t, s.Address, r.Address)
	return r.PID
}

// TestServerComesBackWhereItWas: who used one that was killed finds the next.
func TestServerComesBackWhereItWas(t *testing.T) {
	o := slow(t)
	for try := 1; ; try++ { // another process may take the port meanwhile
		dir := t.TempDir()
		s, err := Use(t.Context(), dir, o)
		require.NoError(t, err)
		require.NoError(t, s.Process().Kill())
		<-s.done
		next, err := Use(t.Context(), dir, o)
		require.NoError(t, err)
		require.NotEqual(t, s.Process().Pid, next.Process().Pid)
		s.users.Close()
		require.NoError(t, next.Close())
		if next.Address == s.Address {
			return
		}
		require.Less(t, try, 5, "at another port each time")
	}
}

// TestServerWhoseProcessIsGone is not taken for another that has its port.
func TestServerWhoseProcessIsGone(t *testing.T) {
	dir, o := t.TempDir(), slow(t)
	s, err := Use(t.Context(), dir, o)
	require.NoError(t, err)
	require.NoError(t, s.Process().Kill())
	<-s.done
	l, err := net.Listen("tcp", s.Address)
	require.NoError(t, err)
	defer l.Close()
	next, err := Use(t.Context(), dir, o)
	require.NoError(t, err)
	require.NotEqual(t, s.Address, next.Address)
	require.NoError(t, s.Close()) // it is another's now
	require.True(t, reachable(next.Address))
	require.NoError(t, next.Close())
}
