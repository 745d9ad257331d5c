package gguf

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// The getters return ok false when the key is missing or of another type. Values
// are decoded at each call, so keep what you need often, above all large arrays.
// Returned strings do not keep the file mapped.

// Keys lists the metadata keys in file order. The slice is shared; do not modify.
func (f *File) Keys() []string { return f.keys }

// Has tells whether there is metadata under key.
func (f *File) Has(key string) bool {
	_, ok := f.values[key]
	return ok
}

// Architecture is general.architecture, e.g. "llama"; it is the prefix of the keys
// that hold the hyperparameters. Empty when missing.
func (f *File) Architecture() string {
	s, _ := f.String("general.architecture")
	return s
}

// Name is general.name, empty when missing.
func (f *File) Name() string {
	s, _ := f.String("general.name")
	return s
}

// String returns the string under key.
func (f *File) String(key string) (string, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kString {
		return "", false
	}
	s, _ := f.str(v.offset)
	return s, true
}

// Uint returns the number under key; any integer type will do, if not negative.
func (f *File) Uint(key string) (uint64, bool) {
	v, ok := f.values[key]
	if !ok {
		return 0, false
	}
	if v.kind == kUint64 {
		return f.u64(v.offset), true
	}
	n, ok := f.integer(v.kind, v.offset)
	if !ok || n < 0 {
		return 0, false
	}
	return uint64(n), true
}

// Int returns the number under key; any integer type will do, if it fits.
func (f *File) Int(key string) (int64, bool) {
	v, ok := f.values[key]
	if !ok {
		return 0, false
	}
	return f.integer(v.kind, v.offset)
}

// Float returns the number under key; integers are converted.
func (f *File) Float(key string) (float64, bool) {
	v, ok := f.values[key]
	if !ok {
		return 0, false
	}
	return f.float(v.kind, v.offset)
}

// Bool returns the truth value under key.
func (f *File) Bool(key string) (value, ok bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kBool {
		return false, false
	}
	return f.meta[v.offset] != 0, true
}

// Strings returns the array of strings under key.
func (f *File) Strings(key string) ([]string, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kArray || v.elem != kString {
		return nil, false
	}
	out := make([]string, v.count)
	at := v.offset
	for i := range out {
		out[i], at = f.str(at)
	}
	return out, true
}

// Ints returns the array of integers under key, of whatever size; ok is false when
// an element does not fit into int64.
func (f *File) Ints(key string) ([]int64, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kArray || v.elem == kString {
		return nil, false
	}
	out := make([]int64, v.count)
	for i := range out {
		out[i], ok = f.integer(v.elem, v.offset+i*kindBytes[v.elem])
		if !ok {
			return nil, false
		}
	}
	return out, true
}

// Floats returns the array of numbers under key, integers converted.
func (f *File) Floats(key string) ([]float32, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kArray || v.elem == kString {
		return nil, false
	}
	out := make([]float32, v.count)
	for i := range out {
		x, ok := f.float(v.elem, v.offset+i*kindBytes[v.elem])
		if !ok {
			return nil, false
		}
		out[i] = float32(x)
	}
	return out, true
}

// integer decodes the value of kind k at byte at.
func (f *File) integer(k kind, at int) (int64, bool) {
	switch k {
	case kUint8:
		return int64(f.meta[at]), true
	case kInt8:
		return int64(int8(f.meta[at])), true
	case kUint16:
		return int64(f.u16(at)), true
	case kInt16:
		return int64(int16(f.u16(at))), true
	case kUint32:
		return int64(f.u32(at)), true
	case kInt32:
		return int64(int32(f.u32(at))), true
	case kInt64:
		return int64(f.u64(at)), true
	case kUint64:
		n := f.u64(at)
		return int64(n), n <= math.MaxInt64
	}
	return 0, false
}

// float decodes the value of kind k at byte at.
func (f *File) float(k kind, at int) (float64, bool) {
	switch k {
	case kFloat32:
		return float64(math.Float32frombits(f.u32(at))), true
	case kFloat64:
		return math.Float64frombits(f.u64(at)), true
	case kUint64:
		return float64(f.u64(at)), true
	}
	n, ok := f.integer(k, at)
	return float64(n), ok
}

// str decodes the string at byte at and says where the next value starts.
func (f *File) str(at int) (s string, next int) {
	n := int(f.u64(at))
	return f.meta[at+8 : at+8+n], at + 8 + n
}

func (f *File) u16(at int) uint16 { return binary.LittleEndian.Uint16(f.bytes(at, 2)) }
func (f *File) u32(at int) uint32 { return binary.LittleEndian.Uint32(f.bytes(at, 4)) }
func (f *File) u64(at int) uint64 { return binary.LittleEndian.Uint64(f.bytes(at, 8)) }

// bytes is a view of n bytes of the metadata, not to be modified.
func (f *File) bytes(at, n int) []byte {
	s := f.meta[at : at+n]
	return unsafe.Slice(unsafe.StringData(s), n)
}
