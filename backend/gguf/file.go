package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// File is one GGUF file. It is safe for concurrent use, except for Close.
type File struct {
	// Version of the container format, 2 or 3.
	Version uint32

	meta    string // copy of the bytes before the tensor data
	keys    []string
	values  map[string]value
	tensors []TensorInfo
	byName  map[string]int

	size   int    // of the whole file, in bytes
	data   []byte // the tensor data section; nil after Close
	done   func() error
	splits int     // parts of the model that this file is one of, 0 if it is whole
	parts  []*File // the other parts, see split.go

	fingerprint func() string
}

// TensorInfo is one line of the tensor table.
type TensorInfo struct {
	Name string
	Type Type

	// Shape in GGUF order: Shape[0] is the length of a row, whose values lie next to
	// each other; Shape[1] is the number of rows. At most four dimensions.
	Shape []int

	// Offset and Size of the data in bytes, from the start of the tensor data section
	// of the part that holds it.
	Offset, Size int

	part int // of a split model, from 0
}

// Values is the number of values in the tensor, the product of its shape.
func (t TensorInfo) Values() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Tensor is a named array and its raw bytes.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int // as in TensorInfo

	// Data are the values as stored, len is Type.RowBytes of all values. From a File
	// they are a view of the mapping: read-only, invalid after Close.
	Data []byte
}

// Open maps the file at path into memory and parses its header. The path of the
// first part of a split model opens all parts. Tensor data are
// read by the operating system when they are touched. The file must not be
// truncated or rewritten in place while it is open.
func Open(path string) (*File, error) {
	f, err := openPart(path)
	if err != nil {
		return nil, err
	}
	if f.splits > 1 {
		if err := f.openOthers(path); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// openPart opens one file, which may be a part of a model.
func openPart(path string) (*File, error) {
	data, done, err := mapFile(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: open: %w", err)
	}
	f, err := parse(data)
	if err != nil {
		done()
		return nil, fmt.Errorf("gguf: %s: %w", path, err)
	}
	f.done = done
	f.fingerprint = sync.OnceValue(f.hash)
	return f, nil
}

// Parse reads a file that is in memory already, e.g. an embedded one. It keeps data
// and does not copy the tensors out of it.
func Parse(data []byte) (*File, error) {
	f, err := parse(data)
	if err != nil {
		return nil, err
	}
	if f.splits > 1 {
		return nil, unsupportedf("this is one of %d parts of a split model: open the first part by its path", f.splits)
	}
	f.fingerprint = sync.OnceValue(f.hash)
	return f, nil
}

// Close ends the mapping. Metadata stay readable; the bytes of tensors must not be
// touched any more. Closing twice is harmless.
func (f *File) Close() error {
	if f.data == nil {
		return nil
	}
	f.fingerprint() // still answers afterwards
	f.data = nil
	var err error
	if f.done != nil {
		err = f.done()
	}
	for _, p := range f.parts {
		err = errors.Join(err, p.Close())
	}
	return err
}

// Tensors lists the tensor table in file order. The slice is shared; do not modify.
func (f *File) Tensors() []TensorInfo { return f.tensors }

// Tensor finds a tensor by name. ok is false when there is none or f is closed.
func (f *File) Tensor(name string) (t Tensor, ok bool) {
	i, ok := f.byName[name]
	if !ok || f.data == nil {
		return Tensor{}, false
	}
	info := f.tensors[i]
	return Tensor{Name: name, Type: info.Type, Shape: info.Shape, Data: f.bytesOf(&info)}, true
}

// bytesOf returns the data of a tensor.
func (f *File) bytesOf(t *TensorInfo) []byte {
	data := f.data
	if t.part > 0 {
		data = f.parts[t.part-1].data
	}
	end := t.Offset + t.Size
	return data[t.Offset:end:end]
}

// Size is the length of the whole file in bytes, of all parts if it is split.
func (f *File) Size() int {
	n := f.size
	for _, p := range f.parts {
		n += p.size
	}
	return n
}

// Fingerprint is a cheap, stable identity of the content, 16 hex digits: a hash of
// all metadata and the tensor table, the file's size, and samples from the front,
// the middle and the end of every tensor. Two files that differ only in bytes that
// are not sampled share it; it tells models apart, it does not detect tampering.
func (f *File) Fingerprint() string { return f.fingerprint() }

func (f *File) hash() string {
	const sample = 256
	h := xxhash.New()
	h.WriteString(f.meta)
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(f.Size())))
	for i := range f.tensors {
		d := f.bytesOf(&f.tensors[i])
		if len(d) <= 3*sample {
			h.Write(d)
			continue
		}
		mid := len(d) / 2
		h.Write(d[:sample])
		h.Write(d[mid : mid+sample])
		h.Write(d[len(d)-sample:])
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// readWhole is mapFile for systems without memory mapping.
func readWhole(path string) (data []byte, done func() error, err error) {
	data, err = os.ReadFile(path)
	return data, func() error { return nil }, err
}
