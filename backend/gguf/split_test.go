package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeParts writes a model of n parts with a tensor t1, t2 .. in each and returns
// their paths. change may damage the metadata of a part.
func writeParts(t *testing.T, n int, change func(part int, meta []KV) []KV) []string {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for i := 1; i <= n; i++ {
		meta := []KV{{"split.no", uint16(i - 1)}, {"split.count", uint16(n)}, {"split.tensors.count", int32(n)}}
		if i == 1 {
			meta = append(meta, KV{"general.architecture", "llama"})
		}
		if change != nil {
			meta = change(i, meta)
		}
		var buf bytes.Buffer
		data := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(i)))
		if err := Write(&buf, meta, []Tensor{{Name: fmt.Sprint("t", i), Type: F32, Shape: []int{1}, Data: data}}); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", i, n))
		if err := os.WriteFile(path, buf.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func TestSplitModel(t *testing.T) {
	paths := writeParts(t, 3, nil)
	f, err := Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if f.Architecture() != "llama" || len(f.Tensors()) != 3 {
		t.Errorf("%q, %d tensors", f.Architecture(), len(f.Tensors()))
	}
	size := 0
	for i, p := range paths {
		x, ok := f.Tensor(fmt.Sprint("t", i+1))
		if v := make([]float32, 1); !ok || Dequantize(x.Type, x.Data, v) != nil || v[0] != float32(i+1) {
			t.Errorf("t%d: %v %v", i+1, ok, x.Data)
		}
		st, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		size += int(st.Size())
	}
	if f.Size() != size {
		t.Errorf("size %d, want %d", f.Size(), size)
	}
	id := f.Fingerprint()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, ok := f.Tensor("t3"); ok || f.Fingerprint() != id || f.Close() != nil {
		t.Error("a closed file should have its fingerprint and no tensors")
	}
}

func TestSplitModelsThatAreNotWhole(t *testing.T) {
	set := func(at int, key string, v any) func(int, []KV) []KV {
		return func(part int, meta []KV) []KV {
			for i := range meta {
				if part == at && meta[i].Key == key {
					meta[i].Value = v
				}
			}
			return meta
		}
	}
	open := func(want string, is error, path string) {
		t.Helper()
		f, err := Open(path)
		if err == nil {
			f.Close()
			t.Errorf("no error, want one with %q", want)
			return
		}
		if !strings.Contains(err.Error(), want) || !errors.Is(err, is) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	paths := writeParts(t, 3, nil)
	open("open the first one, m-00001-of-00003.gguf", ErrUnsupported, paths[1])
	if err := os.Remove(paths[2]); err != nil {
		t.Fatal(err)
	}
	open("part 3 of 3", fs.ErrNotExist, paths[0])
	other := filepath.Join(t.TempDir(), "other.gguf")
	if err := os.Rename(paths[0], other); err != nil {
		t.Fatal(err)
	}
	open("NAME-00001-of-00003.gguf", ErrUnsupported, other)
	open("the name says 3 parts and the file 2", ErrCorrupt, writeParts(t, 3, set(1, "split.count", uint16(2)))[0])
	open("one of 2 parts", ErrCorrupt, writeParts(t, 3, set(2, "split.count", uint16(2)))[0])
	open("it says that it is part 1", ErrCorrupt, writeParts(t, 3, set(3, "split.no", uint16(0)))[0])
	open("has 9 tensors", ErrCorrupt, writeParts(t, 3, set(1, "split.tensors.count", int32(9)))[0])
	whole, err := os.ReadFile(paths[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(whole); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}

func TestSplitName(t *testing.T) {
	for path, want := range map[string]string{
		"a/m-00002-of-00005.gguf": "a/m 2 5 true", "m.gguf": " 0 0 false", "-00001-of-00002.gguf": " 0 0 false",
		"m-00006-of-00005.gguf": "m 6 5 false", "m-0000x-of-00005.gguf": "m 0 5 false", "m-00000-of-00005.gguf": "m 0 5 false",
	} {
		name, part, parts, ok := SplitName(path)
		if got := fmt.Sprint(name, " ", part, " ", parts, " ", ok); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
