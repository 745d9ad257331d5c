//go:build unix

package gguf

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps the file at path read-only. done ends the mapping.
func mapFile(path string) (data []byte, done func() error, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	size := int(st.Size())
	if !st.Mode().IsRegular() || size <= 0 || int64(size) != st.Size() {
		if st.IsDir() {
			return nil, nil, fmt.Errorf("%s is a directory, not a model file", path)
		}
		return readWhole(path) // a pipe, a device, an empty file
	}
	data, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map %s: %w", path, err)
	}
	return data, func() error { return unix.Munmap(data) }, nil
}
