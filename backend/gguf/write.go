package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// KV is one metadata entry to write. Value is a bool, a sized integer, a float32, a
// float64, a string, or a slice of one of these. Plain int is refused, since readers
// expect a certain size: most hyperparameters are uint32.
type KV struct {
	Key   string
	Value any
}

// Write writes a version 3 file with the given metadata and tensors, in this order.
// It is meant for tests and small tools.
func Write(w io.Writer, meta []KV, tensors []Tensor) error {
	var head []byte
	head = append(head, magic...)
	head = binary.LittleEndian.AppendUint32(head, 3)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(tensors)))
	head = binary.LittleEndian.AppendUint64(head, uint64(len(meta)))
	align := defaultAlignment
	for _, kv := range meta {
		head = appendString(head, kv.Key)
		k, b, err := appendValue(nil, kv.Value)
		if err != nil {
			return fmt.Errorf("gguf: write: key %q: %w", kv.Key, err)
		}
		head = binary.LittleEndian.AppendUint32(head, uint32(k))
		head = append(head, b...)
		if n, ok := kv.Value.(uint32); ok && kv.Key == "general.alignment" && n > 0 {
			align = int(n)
		}
	}
	pad := func(n int) int { return (n + align - 1) / align * align }
	offset := 0
	for _, t := range tensors {
		if err := checkTensor(t); err != nil {
			return fmt.Errorf("gguf: write: %w", err)
		}
		head = appendString(head, t.Name)
		head = binary.LittleEndian.AppendUint32(head, uint32(len(t.Shape)))
		for _, d := range t.Shape {
			head = binary.LittleEndian.AppendUint64(head, uint64(d))
		}
		head = binary.LittleEndian.AppendUint32(head, uint32(t.Type))
		head = binary.LittleEndian.AppendUint64(head, uint64(offset))
		offset += pad(len(t.Data))
	}
	bw := bufio.NewWriterSize(w, 1<<16)
	bw.Write(head)
	bw.Write(make([]byte, pad(len(head))-len(head)))
	for _, t := range tensors {
		bw.Write(t.Data)
		bw.Write(make([]byte, pad(len(t.Data))-len(t.Data)))
	}
	if err := bw.Flush(); err != nil { // bufio keeps the first error
		return fmt.Errorf("gguf: write: %w", err)
	}
	return nil
}

// checkTensor tells whether the data have the size that type and shape ask for.
func checkTensor(t Tensor) error {
	n := 1
	for _, d := range t.Shape {
		if d < 0 || d > 0 && n > math.MaxInt/d {
			return fmt.Errorf("tensor %q: impossible shape %v", t.Name, t.Shape)
		}
		n *= d
	}
	if want := t.Type.RowBytes(n); t.Type.BlockSize() == 0 || n%t.Type.BlockSize() != 0 || want != len(t.Data) {
		return fmt.Errorf("tensor %q: shape %v of %s takes %d bytes, data has %d", t.Name, t.Shape, t.Type, want, len(t.Data))
	}
	return nil
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// appendValue appends the encoding of v, without its type, and returns the type.
func appendValue(b []byte, v any) (kind, []byte, error) {
	switch v := v.(type) {
	case string:
		return kString, appendString(b, v), nil
	case bool:
		return kBool, appendBool(b, v), nil
	case uint8:
		return kUint8, append(b, v), nil
	case int8:
		return kInt8, append(b, byte(v)), nil
	case uint16:
		return kUint16, binary.LittleEndian.AppendUint16(b, v), nil
	case int16:
		return kInt16, binary.LittleEndian.AppendUint16(b, uint16(v)), nil
	case uint32:
		return kUint32, binary.LittleEndian.AppendUint32(b, v), nil
	case int32:
		return kInt32, binary.LittleEndian.AppendUint32(b, uint32(v)), nil
	case uint64:
		return kUint64, binary.LittleEndian.AppendUint64(b, v), nil
	case int64:
		return kInt64, binary.LittleEndian.AppendUint64(b, uint64(v)), nil
	case float32:
		return kFloat32, binary.LittleEndian.AppendUint32(b, math.Float32bits(v)), nil
	case float64:
		return kFloat64, binary.LittleEndian.AppendUint64(b, math.Float64bits(v)), nil
	case []string:
		return array(b, v)
	case []bool:
		return array(b, v)
	case []uint8:
		return array(b, v)
	case []int8:
		return array(b, v)
	case []uint16:
		return array(b, v)
	case []int16:
		return array(b, v)
	case []uint32:
		return array(b, v)
	case []int32:
		return array(b, v)
	case []uint64:
		return array(b, v)
	case []int64:
		return array(b, v)
	case []float32:
		return array(b, v)
	case []float64:
		return array(b, v)
	}
	return 0, nil, fmt.Errorf("cannot store a %T; use a string, bool, sized number, or a slice of these", v)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// array appends the element type, the count and the elements.
func array[T any](b []byte, list []T) (kind, []byte, error) {
	var zero T
	elem, _, err := appendValue(nil, zero)
	if err != nil {
		return 0, nil, err
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(elem))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(list)))
	for _, v := range list {
		if _, b, err = appendValue(b, v); err != nil {
			return 0, nil, err
		}
	}
	return kArray, b, nil
}

// MetaOf returns all metadata of a file in a form that Write takes, in file order.
func MetaOf(f *File) []KV {
	out := make([]KV, 0, len(f.keys))
	for _, key := range f.keys {
		v := f.values[key]
		kv := KV{Key: key}
		if v.kind == kArray {
			kv.Value = f.arrayValue(v)
		} else {
			kv.Value = f.scalar(v.kind, v.offset)
		}
		out = append(out, kv)
	}
	return out
}

// scalar decodes one value into the Go type that encodes back to it.
func (f *File) scalar(k kind, at int) any {
	switch k {
	case kUint8:
		return f.meta[at]
	case kInt8:
		return int8(f.meta[at])
	case kUint16:
		return f.u16(at)
	case kInt16:
		return int16(f.u16(at))
	case kUint32:
		return f.u32(at)
	case kInt32:
		return int32(f.u32(at))
	case kUint64:
		return f.u64(at)
	case kInt64:
		return int64(f.u64(at))
	case kFloat32:
		return math.Float32frombits(f.u32(at))
	case kFloat64:
		return math.Float64frombits(f.u64(at))
	case kBool:
		return f.meta[at] != 0
	}
	s, _ := f.str(at)
	return s
}

func (f *File) arrayValue(v value) any {
	switch v.elem {
	case kString:
		out := make([]string, v.count)
		at := v.offset
		for i := range out {
			out[i], at = f.str(at)
		}
		return out
	case kUint8:
		return list[uint8](f, v)
	case kInt8:
		return list[int8](f, v)
	case kUint16:
		return list[uint16](f, v)
	case kInt16:
		return list[int16](f, v)
	case kUint32:
		return list[uint32](f, v)
	case kInt32:
		return list[int32](f, v)
	case kUint64:
		return list[uint64](f, v)
	case kInt64:
		return list[int64](f, v)
	case kFloat32:
		return list[float32](f, v)
	case kFloat64:
		return list[float64](f, v)
	}
	return list[bool](f, v)
}

func list[T any](f *File, v value) []T {
	out := make([]T, v.count)
	for i := range out {
		out[i] = f.scalar(v.elem, v.offset+i*kindBytes[v.elem]).(T)
	}
	return out
}
