//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// Take takes f for this open file alone. The lock goes with the process,
// however it ends.
func Take(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrTaken
		case errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.ENOTSUP):
			return nil // a file system without locks
		}
		return err
	}
}
