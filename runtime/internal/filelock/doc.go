// Package filelock takes files for one process, so that two do not write the same
// one. The lock goes with the process, however it ends.
package filelock

import "errors"

// ErrTaken: another open file has the lock.
var ErrTaken = errors.New("the file is in use by another process")
