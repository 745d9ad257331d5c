//go:build !unix

package compute

func newMemory(n int) (*Memory, error) {
	b := make([]byte, n+63)
	off := alignOffset(b, 64)
	return &Memory{b: b[off : off+n : off+n]}, nil
}
