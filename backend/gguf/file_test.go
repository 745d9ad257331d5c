package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// small is a file with one value of every kind and three tensors.
func small(t testing.TB) []byte {
	t.Helper()
	q := make([]byte, Q8_0.RowBytes(64))
	for i := range q {
		q[i] = byte(i)
	}
	var b bytes.Buffer
	err := Write(&b, []KV{
		{"general.architecture", "llama"},
		{"general.name", "tiny"},
		{"u8", uint8(200)}, {"i8", int8(-3)}, {"u16", uint16(60000)}, {"i16", int16(-4)},
		{"u32", uint32(4e9)}, {"i32", int32(-5)}, {"u64", uint64(math.MaxUint64)}, {"i64", int64(-6)},
		{"f32", float32(1.5)}, {"f64", 2.5}, {"bool", true},
		{"strings", []string{"a", "", "ü"}}, {"i32s", []int32{1, -2}}, {"f32s", []float32{0.5, -1}},
		{"bools", []bool{true, false}}, {"none", []string{}},
	}, []Tensor{
		{Name: "a", Type: F32, Shape: []int{2}, Data: []byte{0, 0, 128, 63, 0, 0, 0, 64}},
		{Name: "b", Type: Q8_0, Shape: []int{32, 2}, Data: q},
		{Name: "c", Type: F16, Shape: []int{1, 1, 1}, Data: []byte{0, 0x3c}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestMetadataRoundTrips(t *testing.T) {
	f, err := Parse(small(t))
	if err != nil {
		t.Fatal(err)
	}
	if f.Version != 3 || f.Architecture() != "llama" || f.Name() != "tiny" {
		t.Errorf("version %d, architecture %q, name %q", f.Version, f.Architecture(), f.Name())
	}
	for key, want := range map[string]uint64{"u8": 200, "u16": 60000, "u32": 4e9, "u64": math.MaxUint64} {
		if got, ok := f.Uint(key); !ok || got != want {
			t.Errorf("Uint(%s) = %d, %v", key, got, ok)
		}
	}
	for key, want := range map[string]int64{"i8": -3, "i16": -4, "i32": -5, "i64": -6, "u8": 200} {
		if got, ok := f.Int(key); !ok || got != want {
			t.Errorf("Int(%s) = %d, %v", key, got, ok)
		}
		if _, ok := f.Uint(key); ok && want < 0 {
			t.Errorf("Uint(%s) accepted a negative number", key)
		}
	}
	for key, want := range map[string]float64{"f32": 1.5, "f64": 2.5, "i32": -5, "u64": math.MaxUint64} {
		if got, ok := f.Float(key); !ok || got != want {
			t.Errorf("Float(%s) = %g, %v", key, got, ok)
		}
	}
	if got, ok := f.Bool("bool"); !ok || !got {
		t.Errorf("Bool = %v, %v", got, ok)
	}
	if got, _ := f.Strings("strings"); !slices.Equal(got, []string{"a", "", "ü"}) {
		t.Errorf("Strings = %q", got)
	}
	if got, ok := f.Strings("none"); !ok || len(got) != 0 {
		t.Errorf("empty Strings = %q, %v", got, ok)
	}
	if got, _ := f.Ints("i32s"); !slices.Equal(got, []int64{1, -2}) {
		t.Errorf("Ints = %v", got)
	}
	if got, _ := f.Floats("f32s"); !slices.Equal(got, []float32{0.5, -1}) {
		t.Errorf("Floats = %v", got)
	}
	for _, key := range []string{"missing", "strings", "f32"} {
		if _, ok := f.Uint(key); ok {
			t.Errorf("Uint(%s) is ok", key)
		}
		if _, ok := f.String(key); ok {
			t.Errorf("String(%s) is ok", key)
		}
		if _, ok := f.Ints(key); ok {
			t.Errorf("Ints(%s) is ok", key)
		}
	}
}

func TestMetaOfWritesTheSameFile(t *testing.T) {
	data := small(t)
	f, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	var tensors []Tensor
	for _, info := range f.Tensors() {
		x, _ := f.Tensor(info.Name)
		tensors = append(tensors, x)
	}
	var b bytes.Buffer
	if err := Write(&b, MetaOf(f), tensors); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), data) {
		t.Error("reading and writing changed the file")
	}
}

func TestTensorsAreViewsOfTheRightBytes(t *testing.T) {
	f, err := Parse(small(t))
	if err != nil {
		t.Fatal(err)
	}
	x, ok := f.Tensor("b")
	if !ok || x.Type != Q8_0 || !reflect.DeepEqual(x.Shape, []int{32, 2}) || len(x.Data) != 68 || x.Data[3] != 3 {
		t.Errorf("tensor b = %+v, %v", x, ok)
	}
	if got := f.Tensors()[1].Values(); got != 64 {
		t.Errorf("b has %d values", got)
	}
	if _, ok := f.Tensor("z"); ok {
		t.Error("found tensor z")
	}
}

func TestOpenMapsAndCloseKeepsMetadata(t *testing.T) {
	data := small(t)
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := Parse(data)
	if f.Fingerprint() != p.Fingerprint() || len(f.Fingerprint()) != 16 {
		t.Errorf("fingerprints differ: %s and %s", f.Fingerprint(), p.Fingerprint())
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if got, _ := f.Strings("strings"); len(got) != 3 {
		t.Errorf("metadata after Close: %q", got)
	}
	if _, ok := f.Tensor("a"); ok {
		t.Error("tensor after Close")
	}
	if f.Fingerprint() != p.Fingerprint() {
		t.Error("fingerprint after Close differs")
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a directory was opened")
	}
	empty := filepath.Join(dir, "empty")
	os.WriteFile(empty, nil, 0o644)
	if _, err := Open(empty); !errors.Is(err, ErrCorrupt) {
		t.Errorf("empty file: %v", err)
	}
}

func TestFingerprintSeesContent(t *testing.T) {
	a := small(t)
	b := slices.Clone(a)
	b[len(b)-32] ^= 1 // in tensor c
	fa, _ := Parse(a)
	fb, _ := Parse(b)
	if fa.Fingerprint() == fb.Fingerprint() {
		t.Error("a changed tensor has the same fingerprint")
	}
}

// header builds a file by hand: counts, then body.
func header(version uint32, tensors, keys uint64, body ...any) []byte {
	var b bytes.Buffer
	b.WriteString("GGUF")
	for _, v := range append([]any{version, tensors, keys}, body...) {
		if s, ok := v.(string); ok {
			binary.Write(&b, binary.LittleEndian, uint64(len(s)))
			b.WriteString(s)
			continue
		}
		binary.Write(&b, binary.LittleEndian, v)
	}
	return b.Bytes()
}

func TestBadFilesAreRefused(t *testing.T) {
	pad := make([]byte, 100)
	tensor := func(name string, typ uint32, offset uint64, dims ...uint64) []any {
		out := []any{name, uint32(len(dims))}
		for _, d := range dims {
			out = append(out, d)
		}
		return append(out, typ, offset)
	}
	file := func(tensors ...[]any) []byte {
		return append(header(3, uint64(len(tensors)), 0, slices.Concat(tensors...)...), pad...)
	}
	for _, c := range []struct {
		name string
		data []byte
		want error
		text string
	}{
		{"empty", nil, ErrCorrupt, "magic"},
		{"wrong magic", []byte("GGML" + string(pad)), ErrCorrupt, "not a GGUF"},
		{"version 1", header(1, 0, 0), ErrUnsupported, "version 1"},
		{"big-endian", header(3<<24, 0, 0), ErrUnsupported, "big-endian"},
		{"absurd tensor count", header(3, math.MaxUint64, 0), ErrCorrupt, "number of tensors"},
		{"absurd key count", append(header(3, 0, 1<<40), pad...), ErrCorrupt, "number of metadata keys"},
		{"key beyond the end", append(header(3, 0, 1, uint64(1<<60)), pad...), ErrCorrupt, "length of a metadata key"},
		{"unknown kind", append(header(3, 0, 1, "k", uint32(77)), pad...), ErrUnsupported, `"k"`},
		{"array of arrays", append(header(3, 0, 1, "k", uint32(9), uint32(9), uint64(1)), pad...), ErrUnsupported, `"k"`},
		{"absurd array", append(header(3, 0, 1, "k", uint32(9), uint32(10), uint64(1<<61)), pad...), ErrCorrupt, "array k"},
		{"string beyond the end", append(header(3, 0, 1, "k", uint32(8), uint64(1<<62)), pad...), ErrCorrupt, `"k"`},
		{"string in array", append(header(3, 0, 1, "k", uint32(9), uint32(8), uint64(2), "x", uint64(math.MaxUint64)), pad...), ErrCorrupt, `"k"`},
		{"key twice", append(header(3, 0, 2, "k", uint32(0), uint8(1), "k", uint32(0), uint8(2)), pad...), ErrCorrupt, "twice"},
		{"empty key", append(header(3, 0, 1, "", uint32(0), uint8(1)), pad...), ErrCorrupt, "empty"},
		{"alignment 3", append(header(3, 0, 1, "general.alignment", uint32(4), uint32(3)), pad...), ErrCorrupt, "alignment"},
		{"split", append(header(3, 0, 1, "split.count", uint32(2), uint16(3)), pad...), ErrUnsupported, "3 parts"},
		{"five dimensions", file(tensor("x", 0, 0, 1, 1, 1, 1, 1)), ErrCorrupt, "5 dimensions"},
		{"unknown type", file(tensor("x", 200, 0, 4)), ErrUnsupported, `"x"`},
		{"partial block", file(tensor("x", 8, 0, 33)), ErrCorrupt, "33"},
		{"values overflow", file(tensor("x", 0, 0, 1<<40, 1<<40)), ErrCorrupt, `"x"`},
		{"size overflow", file(tensor("x", 27, 0, 1<<61)), ErrCorrupt, `"x"`},
		{"offset overflow", file(tensor("x", 0, math.MaxUint64&^31, 1)), ErrCorrupt, `"x"`},
		{"unaligned", file(tensor("x", 0, 8, 1)), ErrCorrupt, "offset 8"},
		{"tensor twice", file(tensor("x", 0, 0, 1), tensor("x", 0, 32, 1)), ErrCorrupt, "twice"},
		{"overlap", file(tensor("x", 0, 0, 16), tensor("y", 0, 32, 1)), ErrCorrupt, `"x" and "y"`},
		{"too short", file(tensor("x", 0, 0, 1<<20)), ErrCorrupt, "download or convert it again"},
	} {
		_, err := Parse(c.data)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %v with %q", c.name, err, c.want, c.text)
		}
	}
}

// TestCountsTakeNoMemory: a count that the file could just hold makes no list before
// what it counts is there.
func TestCountsTakeNoMemory(t *testing.T) {
	pad := make([]byte, 32<<20)
	for name, data := range map[string][]byte{
		"keys":    append(header(3, 0, uint64(len(pad)/16), "", uint32(0), uint8(1)), pad...),
		"tensors": append(header(3, uint64(len(pad)/40), 0, uint64(1<<40)), pad...),
		"array":   append(header(3, 0, 1, "k", uint32(9), uint32(8), uint64(len(pad)/8-9), uint64(1<<40)), pad...),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse(data)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%s: %d bytes for a file that is refused", name, n)
		}
	}
}

func TestEveryCutIsRefused(t *testing.T) {
	data := small(t)
	whole := len(data) - 30 // the padding after the last tensor is not needed
	for n := range whole {
		if _, err := Parse(data[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d of %d: %v", n, len(data), err)
		}
	}
	_, err := Parse(data[:whole-2])
	if err == nil || !strings.Contains(err.Error(), "2 bytes shorter") {
		t.Errorf("message does not say how much is missing: %v", err)
	}
}

func TestWriteRefusesWhatItCannotStore(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, []KV{{"n", 1}}, nil); err == nil || !strings.Contains(err.Error(), `"n"`) {
		t.Errorf("plain int: %v", err)
	}
	if err := Write(&b, nil, []Tensor{{Name: "x", Type: F32, Shape: []int{3}, Data: make([]byte, 8)}}); err == nil {
		t.Error("wrong data size was written")
	}
}

func TestComma(t *testing.T) {
	for n, want := range map[int]string{0: "0", 12: "12", 123: "123", 1234: "1,234", -1234567: "-1,234,567"} {
		if got := comma(n); got != want {
			t.Errorf("comma(%d) = %s", n, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(small(f))
	f.Add(header(3, 0, 1, "k", uint32(9), uint32(8), uint64(1), "x"))
	f.Add(header(2, 1, 0, "t", uint32(1), uint64(1), uint32(0), uint64(0)))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("unmatched error: %v", err)
			}
			return
		}
		for _, key := range file.Keys() {
			file.String(key)
			file.Uint(key)
			file.Int(key)
			file.Float(key)
			file.Bool(key)
			file.Strings(key)
			file.Ints(key)
			file.Floats(key)
		}
		MetaOf(file)
		for _, info := range file.Tensors() {
			x, ok := file.Tensor(info.Name)
			if !ok || len(x.Data) != info.Size {
				t.Fatalf("tensor %q: %v, %d bytes", info.Name, ok, len(x.Data))
			}
		}
		file.Fingerprint()
	})
}
