//go:build !linux

package grammarbench

import "time"

// threadTime is the processor time of the calling thread, 0 where unknown.
func threadTime() time.Duration { return 0 }
