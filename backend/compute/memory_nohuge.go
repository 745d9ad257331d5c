//go:build unix && !linux

package compute

// adviseHuge does nothing: the system decides alone.
func adviseHuge([]byte) {}
