//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd || windows)

package runtime

import "os"

// lockFile does nothing: this system has no lock that goes with the process.
func lockFile(*os.File) error { return nil }
