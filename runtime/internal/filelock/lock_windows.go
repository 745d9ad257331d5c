package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// Take takes f for this open file alone. The lock goes with the process,
// however it ends. It covers a byte far behind any content, so that readers are
// not kept out.
func Take(f *os.File) error {
	at := windows.Overlapped{OffsetHigh: 1 << 30}
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return ErrTaken
	}
	return err
}
