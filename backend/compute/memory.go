package compute

import (
	"fmt"
	"unsafe"
)

// Memory is a zeroed piece of memory outside of the Go heap, in huge pages
// where the system grants them. Weights and KV pages live in it: streaming
// them from 4 KB pages costs 40 to 60% of the read bandwidth.
//
// The garbage collector does not see it. The owner calls Free when no slice of
// it is in use.
type Memory struct {
	b    []byte
	free func() error
}

// NewMemory returns n zeroed bytes, aligned to 64 or better. Pages that are
// never written take no physical memory where the system allows it.
func NewMemory(n int) (*Memory, error) {
	if n < 0 {
		return nil, fmt.Errorf("compute: negative size %d", n)
	}
	if n == 0 {
		n = 64
	}
	return newMemory(n)
}

// Bytes returns the memory.
func (m *Memory) Bytes() []byte { return m.b }

// Int8s returns the memory as signed bytes.
func (m *Memory) Int8s() []int8 { return bytesAsInt8(m.b) }

// Uint16s returns the memory as half floats or 16-bit words.
func (m *Memory) Uint16s() []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(m.b))), len(m.b)/2)
}

// Float32s returns the memory as float32 values.
func (m *Memory) Float32s() []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(m.b))), len(m.b)/4)
}

// Free gives the memory back to the system. It may be called twice.
func (m *Memory) Free() {
	if m.free != nil {
		m.free()
	}
	m.b, m.free = nil, nil
}

// alignOffset returns the first offset in b whose address is a multiple of
// align.
func alignOffset(b []byte, align int) int {
	a := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return int(-a & uintptr(align-1))
}
