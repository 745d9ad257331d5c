package devserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/coppice-run/coppice/workflows"
)

// Binary is the name of the program that is started.
const Binary = "coppice-temporal"

// Find returns the path of the server's program: what COPPICE_TEMPORAL names, or
// the program beside this one, in the path, or where make temporal puts it.
func Find() (string, error) {
	name := Binary
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if p := os.Getenv("COPPICE_TEMPORAL"); p != "" {
		if _, err := os.Stat(p); err != nil {
			return "", fmt.Errorf("%w: COPPICE_TEMPORAL: %w", workflows.ErrNoServer, err)
		}
		return p, nil
	}
	var places []string
	if exe, err := os.Executable(); err == nil {
		places = append(places, filepath.Join(filepath.Dir(exe), name))
	}
	if cache, err := os.UserCacheDir(); err == nil {
		places = append(places, filepath.Join(cache, "coppice", "temporal", name))
	}
	for _, p := range places {
		if st, err := os.Stat(p); err == nil && !st.IsDir() {
			return p, nil
		}
	}
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	return "", fmt.Errorf("%w: the program %s is not there: build it with make temporal, name it in COPPICE_TEMPORAL, or give the address of a server with --temporal", workflows.ErrNoServer, name)
}

// Options say how a server is started. The zero value will do.
type Options struct {
	Program string    // default: what Find finds
	Log     io.Writer // of the server; default: the file server.log in the folder
	Wait    time.Duration
	Memory  bool // keep nothing on the disk: what runs had come to is gone with the server
}

// Server is a server that this process uses.
type Server struct {
	Address string
	folder  string
	users   *os.File  // locked shared as long as this process uses the server
	cmd     *exec.Cmd // nil if another process started it
	done    chan struct{}
}

// running is what the file in the folder says of a server.
type running struct {
	PID     int    `json:"pid"`
	Address string `json:"address"`
}

// Use returns the server of a folder and starts it if it does not run.
func Use(ctx context.Context, folder string, o Options) (*Server, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	start, err := lock(ctx, filepath.Join(folder, "server.lock"), true)
	if err != nil {
		return nil, err
	}
	defer start.Close() // one process at a time looks and starts
	users, err := lock(ctx, filepath.Join(folder, "server.users"), false)
	if err != nil {
		return nil, err
	}
	s := &Server{folder: folder, users: users}
	if r, err := s.read(); err == nil && alive(r.PID) && reachable(r.Address) {
		s.Address = r.Address
		return s, nil
	}
	// A server that ends at once may have lost one of its ports, which were free a
	// moment before, to another process.
	for try := 1; ; try++ {
		err := s.start(ctx, o)
		if err == nil {
			return s, nil
		}
		if try == starts || !errors.Is(err, errEnded) {
			users.Close()
			return nil, err
		}
	}
}

// starts is how often a server is started that ends at once.
const starts = 3

var errEnded = errors.New("it ended at once")

func (s *Server) file() string { return filepath.Join(s.folder, "server.json") }

func (s *Server) read() (running, error) {
	var r running
	data, err := os.ReadFile(s.file())
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

func reachable(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// healthy waits until the server at an address takes requests, which is some time
// after it listens.
func healthy(ctx context.Context, addr string, ended <-chan struct{}) error {
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond},
	}))
	if err != nil {
		return err
	}
	defer c.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{Service: "temporal.api.workflowservice.v1.WorkflowService"})
		if err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			return nil
		}
		select {
		case <-tick.C:
		case <-ended:
			return errEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// listen takes the port that the server of the folder had, if it is free: workers and
// others that used it before it was killed find it again. Else it takes any.
func (s *Server) listen() (net.Listener, error) {
	if r, err := s.read(); err == nil && s.cmd == nil { // not after a start that failed
		if _, port, err := net.SplitHostPort(r.Address); err == nil {
			if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
				return l, nil
			}
		}
	}
	return net.Listen("tcp", "127.0.0.1:0")
}

func (s *Server) start(ctx context.Context, o Options) error {
	if o.Program == "" {
		var err error
		if o.Program, err = Find(); err != nil {
			return err
		}
	}
	if o.Wait <= 0 {
		o.Wait = 2 * time.Minute // a server that fails ends before that
	}
	s.done = make(chan struct{})
	l, err := s.listen()
	if err != nil {
		return err
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	logName := filepath.Join(s.folder, "server.log")
	out := o.Log
	if out == nil {
		f, err := os.Create(logName)
		if err != nil {
			return err
		}
		defer f.Close() // the server has its own
		out = f
	}
	args := []string{"server", "start-dev", "--ip", "127.0.0.1", "--port", strconv.Itoa(port), "--log-level", "error"}
	if !o.Memory {
		args = append(args, "--db-filename", filepath.Join(s.folder, "temporal.db"))
	}
	attrs := workflows.SearchAttributes()
	names := make([]string, 0, len(attrs))
	for name := range attrs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		args = append(args, "--search-attribute", name+"="+attrs[name])
	}
	s.cmd = exec.Command(o.Program, args...)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	apart(s.cmd) // an interrupt at the terminal is for this process
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("%w: %w", workflows.ErrNoServer, err)
	}
	go func(cmd *exec.Cmd, done chan struct{}) { cmd.Wait(); close(done) }(s.cmd, s.done)
	s.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	ctx, cancel := context.WithTimeout(ctx, o.Wait)
	defer cancel()
	ended := fmt.Errorf("%w: %s: %w; its log: %s", workflows.ErrNoServer, o.Program, errEnded, logName)
	switch err := healthy(ctx, s.Address, s.done); {
	case errors.Is(err, errEnded):
		return ended
	case err != nil:
		s.cmd.Process.Kill()
		return fmt.Errorf("%w: %s does not answer at %s: %w; its log: %s", workflows.ErrNoServer, o.Program, s.Address, err, logName)
	}
	select {
	case <-s.done: // it is another process that answers
		return ended
	default:
	}
	data, err := json.Marshal(running{s.cmd.Process.Pid, s.Address})
	if err == nil {
		err = os.WriteFile(s.file(), data, 0o600)
	}
	return err
}

// Started reports whether this process started the server.
func (s *Server) Started() bool { return s.cmd != nil }

// Process returns the server's process, nil if another process started it.
func (s *Server) Process() *os.Process {
	if s.cmd == nil {
		return nil
	}
	return s.cmd.Process
}

// Close ends the use of the server. The last user stops it, whoever started it, and
// waits for its end: who comes meanwhile must not find a server that is about to go.
func (s *Server) Close() error {
	defer s.users.Close()
	r, err := s.read()
	if err != nil || r.Address != s.Address || !s.last() {
		return nil
	}
	p, err := os.FindProcess(r.PID)
	if err != nil {
		return nil
	}
	if err := p.Signal(os.Interrupt); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return p.Kill() // where there is no interrupt
	}
	patience := time.NewTimer(10 * time.Second)
	defer patience.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-s.done: // nil if another process started it
			return nil
		case <-look.C:
			if s.cmd == nil && !alive(r.PID) {
				return nil
			}
		case <-patience.C:
			return p.Kill()
		}
	}
}
