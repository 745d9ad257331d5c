package gguf

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRealModelsOpenAndDecode(t *testing.T) {
	dir := os.Getenv("COPPICE_MODELS")
	if dir == "" {
		t.Skip("set COPPICE_MODELS to a folder of .gguf files")
	}
	paths, _ := filepath.Glob(filepath.Join(dir, "*.gguf"))
	for _, path := range paths {
		f, err := Open(path)
		if err != nil {
			t.Error(err)
			continue
		}
		kinds := map[Type]int{}
		for _, info := range f.Tensors() {
			kinds[info.Type]++
			x, _ := f.Tensor(info.Name)
			row := make([]float32, info.Shape[0])
			if err := Dequantize(x.Type, x.Data[:x.Type.RowBytes(len(row))], row); err != nil {
				t.Errorf("%s: %v", info.Name, err)
			}
			for _, v := range row {
				if v-v != 0 {
					t.Errorf("%s: first row is not finite", info.Name)
					break
				}
			}
		}
		t.Logf("%s: %s, %d keys, tensors %v, fingerprint %s", filepath.Base(path), f.Architecture(), len(f.Keys()), kinds, f.Fingerprint())
		f.Close()
	}
}
