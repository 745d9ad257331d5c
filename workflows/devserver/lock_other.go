//go:build !unix

package devserver

import (
	"context"
	"os"
	"os/exec"
)

// Without locks between processes the one that started the server stops it.

func lock(_ context.Context, name string, _ bool) (*os.File, error) {
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
}

func (s *Server) last() bool { return s.cmd != nil }

func alive(pid int) bool {
	p, err := os.FindProcess(pid) // which fails where there is none
	if err != nil {
		return false
	}
	p.Release()
	return true
}

func apart(*exec.Cmd) {}
