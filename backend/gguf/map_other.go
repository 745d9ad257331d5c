//go:build !unix

package gguf

// mapFile reads the whole file into memory.
func mapFile(path string) (data []byte, done func() error, err error) { return readWhole(path) }
