//go:build unix

package compute

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// hugePage is the size to which large pieces are rounded up.
const hugePage = 2 << 20

func newMemory(n int) (*Memory, error) {
	size := n
	if n >= hugePage/2 {
		size = (n+hugePage-1)/hugePage*hugePage + hugePage // room to align
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("compute: mapping %d bytes: %w", n, err)
	}
	use := b
	if size > n {
		off := alignOffset(b, hugePage)
		use = b[off : off+size-hugePage]
		adviseHuge(use)
		use = use[:n:n]
	}
	return &Memory{b: use[:n:n], free: func() error { return unix.Munmap(b) }}, nil
}
