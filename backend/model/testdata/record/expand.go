// Command expand writes a GGUF file with all weights as float32.
//
//	go run ./testdata/record/expand.go SRC.gguf DST.gguf
package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"os"

	"github.com/coppice-run/coppice/backend/gguf"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: expand SRC.gguf DST.gguf")
	}
	if err := expand(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func expand(src, dst string) error {
	f, err := gguf.Open(src)
	if err != nil {
		return err
	}
	defer f.Close()
	var tensors []gguf.Tensor
	for _, info := range f.Tensors() {
		t, _ := f.Tensor(info.Name)
		values := make([]float32, info.Values())
		if err := gguf.Dequantize(t.Type, t.Data, values); err != nil {
			return fmt.Errorf("tensor %s: %w", t.Name, err)
		}
		data := make([]byte, 0, 4*len(values))
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		tensors = append(tensors, gguf.Tensor{Name: t.Name, Type: gguf.F32, Shape: t.Shape, Data: data})
	}
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	if err := gguf.Write(out, gguf.MetaOf(f), tensors); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
