package gguf

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// kind is the type of a metadata value as numbered in the file.
type kind uint32

const (
	kUint8 kind = iota
	kInt8
	kUint16
	kInt16
	kUint32
	kInt32
	kFloat32
	kBool
	kString
	kArray
	kUint64
	kInt64
	kFloat64
)

// kindBytes is the size of one value; 0 for strings and arrays.
var kindBytes = [...]int{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

// value says where a metadata value lies in File.meta.
type value struct {
	kind   kind
	elem   kind // of an array
	count  int  // elements of an array, else 1
	offset int  // of the first value
}

const (
	magic            = "GGUF"
	defaultAlignment = 32
	maxDims          = 4
)

// reader walks the header. The first error sticks and every later read gives zero.
type reader struct {
	data []byte
	at   int
	err  error
}

func (r *reader) fail(offset int, format string, args ...any) {
	if r.err == nil {
		r.err = corruptf(offset, format, args...)
	}
}

func (r *reader) left() int { return len(r.data) - r.at }

// take returns the next n bytes, nil when they are not there.
func (r *reader) take(n int, what string) []byte {
	if r.err != nil {
		return nil
	}
	if n > r.left() {
		r.fail(r.at, "the file ends inside %s, %s bytes too early", what, comma(n-r.left()))
		return nil
	}
	b := r.data[r.at : r.at+n]
	r.at += n
	return b
}

func (r *reader) uint32(what string) uint32 {
	if b := r.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64(what string) uint64 {
	if b := r.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads a number of things that take at least size bytes each, and refuses
// one that the rest of the file cannot hold.
func (r *reader) count(size int, what string) int {
	at := r.at
	n := r.uint64(what)
	if r.err == nil && n > uint64(r.left()/size) {
		r.fail(at, "%s is %d, more than the %s bytes left can hold", what, n, comma(r.left()))
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

// string reads a length and that many bytes.
func (r *reader) string(what string) []byte {
	n := r.count(1, "the length of "+what)
	return r.take(n, what)
}

func parse(data []byte) (*File, error) {
	r := &reader{data: data}
	if string(r.take(4, "the magic")) != magic && r.err == nil {
		r.fail(0, "magic is %q, not %q: this is not a GGUF file", data[:4], magic)
	}
	version := r.uint32("the version")
	if r.err != nil {
		return nil, r.err
	}
	switch {
	case version == 2 || version == 3:
	case version != 0 && version&0xffff == 0 && bits.ReverseBytes32(version) < 16:
		return nil, unsupportedf("big-endian file (version %d); convert it to little-endian", bits.ReverseBytes32(version))
	default:
		return nil, unsupportedf("container version %d; versions 2 and 3 are read, convert the model again", version)
	}
	f := &File{Version: version, size: len(data)}
	nTensors := r.count(8+4+8+4+8, "the number of tensors")
	nKeys := r.count(8+1+4+1, "the number of metadata keys")
	var metaOffsets []value // these two grow with what is read: the count may be a lie
	var names [][2]int      // where each key lies
	for range nKeys {
		key := r.string("a metadata key")
		end := r.at
		v := r.value(string(key))
		if r.err != nil {
			return nil, r.err
		}
		if len(key) == 0 {
			return nil, corruptf(end, "empty metadata key")
		}
		names = append(names, [2]int{end - len(key), end})
		metaOffsets = append(metaOffsets, v)
	}
	tableAt := r.at
	for i := 0; i < nTensors && r.err == nil; i++ {
		r.skipTensor()
	}
	if r.err != nil {
		return nil, r.err
	}
	f.meta = string(data[:r.at])
	f.keys = make([]string, nKeys)
	f.values = make(map[string]value, nKeys)
	for i, n := range names {
		key := f.meta[n[0]:n[1]]
		if _, twice := f.values[key]; twice {
			return nil, corruptf(n[0], "metadata key %q is there twice", key)
		}
		f.keys[i], f.values[key] = key, metaOffsets[i]
	}
	if n, ok := f.Uint("split.count"); ok {
		f.splits = int(min(n, math.MaxInt32))
	}
	if err := f.readTensors(data, tableAt, nTensors); err != nil {
		return nil, err
	}
	return f, nil
}

// value reads the type of a metadata value and passes over the value.
func (r *reader) value(key string) value {
	v := value{kind: kind(r.uint32("the type of key " + key)), count: 1}
	if r.err == nil && int(v.kind) >= len(kindBytes) {
		r.err = unsupportedf("metadata key %q has value type %d, which is not known", key, v.kind)
	}
	if v.kind != kArray {
		v.offset = r.at
		r.skip(v.kind, 1, key)
		return v
	}
	v.elem = kind(r.uint32("the element type of key " + key))
	if r.err == nil && (int(v.elem) >= len(kindBytes) || v.elem == kArray) {
		r.err = unsupportedf("metadata key %q is an array of type %d, which is not known", key, v.elem)
	}
	if r.err != nil {
		return v
	}
	size := kindBytes[v.elem]
	if v.elem == kString {
		size = 8
	}
	v.count = r.count(size, "the length of array "+key)
	v.offset = r.at
	r.skip(v.elem, v.count, key)
	return v
}

// skip passes over n values.
func (r *reader) skip(k kind, n int, key string) {
	if k != kString {
		if r.err == nil {
			r.take(n*kindBytes[k], "the value of key "+key)
		}
		return
	}
	for i := 0; i < n && r.err == nil; i++ {
		at := r.at
		length := r.uint64("a string of key " + key)
		if length > uint64(r.left()) {
			r.fail(at, "a string of key %q is %d bytes long, but %s are left", key, length, comma(r.left()))
			return
		}
		r.at += int(length)
	}
}

// skipTensor passes over one line of the tensor table, checking only its form.
func (r *reader) skipTensor() {
	r.string("a tensor name")
	at := r.at
	dims := r.uint32("the number of dimensions of a tensor")
	if dims > maxDims {
		r.fail(at, "a tensor has %d dimensions; at most %d are possible", dims, maxDims)
		return
	}
	r.take(8*int(dims)+4+8, "the tensor table")
}

// readTensors reads the tensor table at byte at, which skipTensor has passed over,
// and checks every range against the file.
func (f *File) readTensors(data []byte, at, n int) error {
	align := uint64(defaultAlignment)
	if v, ok := f.values["general.alignment"]; ok {
		align, ok = f.Uint("general.alignment")
		if !ok || align == 0 || align&(align-1) != 0 || align > 1<<20 {
			return corruptf(v.offset, "general.alignment is not a power of two up to 2^20")
		}
	}
	end := len(f.meta)
	start := end + int(-uint64(end)&(align-1))
	room := 0
	if start <= len(data) {
		room = len(data) - start
	}
	f.data = data[min(start, len(data)):]
	f.tensors = make([]TensorInfo, 0, n)
	f.byName = make(map[string]int, n)
	short := 0 // bytes missing at the end of the file
	for range n {
		name, next := f.str(at)
		dims := int(f.u32(next))
		t := TensorInfo{Name: name, Shape: make([]int, dims), Type: Type(f.u32(next + 4 + 8*dims))}
		values := uint64(1)
		for i := range t.Shape {
			d := f.u64(next + 4 + 8*i)
			if hi, lo := bits.Mul64(values, d); hi != 0 || lo > math.MaxInt>>4 || d > math.MaxInt>>4 {
				return corruptf(at, "tensor %q has more values than any file can hold", name)
			}
			values *= d
			t.Shape[i] = int(d)
		}
		offset := f.u64(next + 8 + 8*dims)
		row := 1
		if dims > 0 {
			row = t.Shape[0]
		}
		switch {
		case t.Type.BlockSize() == 0:
			return unsupportedf("tensor %q is stored as %s, which is not known, only %s: take a file in one of these", name, t.Type, readable())
		case row%t.Type.BlockSize() != 0:
			return corruptf(at, "tensor %q has rows of %d values, which do not fill blocks of %s (%d)", name, row, t.Type, t.Type.BlockSize())
		case offset%align != 0:
			return corruptf(at, "tensor %q starts at offset %d, not a multiple of %d", name, offset, align)
		case offset > math.MaxInt>>4:
			return corruptf(at, "tensor %q starts at offset %d, beyond any file", name, offset)
		}
		if _, twice := f.byName[name]; twice {
			return corruptf(at, "tensor %q is there twice", name)
		}
		// values fits in 59 bits and a block has at most 8.8 bytes a value only for
		// I64 and F64 (8), so this cannot overflow.
		t.Size = int(values) / t.Type.BlockSize() * t.Type.BlockBytes()
		t.Offset = int(offset)
		short = max(short, t.Offset+t.Size-room)
		f.byName[name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
		at = next + 4 + 8*dims + 4 + 8
	}
	if short > 0 {
		return corruptf(len(data), "the file is %s bytes shorter than its tensor table says", comma(short))
	}
	return f.checkOverlap()
}

// checkOverlap refuses tensors that share bytes.
func (f *File) checkOverlap() error {
	order := make([]int, len(f.tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := f.tensors[a], f.tensors[b]
		if x.Offset != y.Offset {
			return x.Offset - y.Offset
		}
		return x.Size - y.Size
	})
	for i := 1; i < len(order); i++ {
		a, b := f.tensors[order[i-1]], f.tensors[order[i]]
		if a.Offset+a.Size > b.Offset {
			return corruptf(len(f.meta), "tensors %q and %q share bytes", a.Name, b.Name)
		}
	}
	return nil
}
