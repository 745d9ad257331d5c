package gguf

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

//go:embed testdata/blocks.json
var goldenBlocks []byte

type golden struct {
	Decode, Encode map[string]struct{ Blocks, Values []byte }
}

func readGolden(t *testing.T) (g golden) {
	t.Helper()
	if err := json.Unmarshal(goldenBlocks, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func typeNamed(t *testing.T, name string) Type {
	t.Helper()
	for typ, l := range layouts {
		if l.name == name {
			return typ
		}
	}
	t.Fatalf("no type named %s", name)
	return 0
}

func TestDequantizeEqualsReferenceBitForBit(t *testing.T) {
	for name, g := range readGolden(t).Decode {
		want := make([]float32, len(g.Values)/4)
		decodeF32(g.Values, want)
		got := make([]float32, len(want))
		if err := Dequantize(typeNamed(t, name), g.Blocks, got); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Fatalf("%s value %d: got %g, want %g", name, i, got[i], want[i])
			}
		}
	}
}

func TestQuantizeEqualsReferenceByteForByte(t *testing.T) {
	for name, g := range readGolden(t).Encode {
		src := make([]float32, len(g.Values)/4)
		decodeF32(g.Values, src)
		got := make([]byte, len(g.Blocks))
		if err := Quantize(typeNamed(t, name), src, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, g.Blocks) {
			t.Errorf("%s differs from the reference", name)
		}
	}
}

func TestQuantizeThenDequantizeIsClose(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	src := make([]float32, 256)
	for i := range src {
		src[i] = float32(rng.NormFloat64())
	}
	for typ, most := range map[Type]float64{F32: 0, F16: 2e-3, BF16: 2e-2, Q8_0: 0.02, Q4_0: 0.5, Q4_1: 0.5} {
		b := make([]byte, typ.RowBytes(len(src)))
		if err := Quantize(typ, src, b); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, len(src))
		if err := Dequantize(typ, b, got); err != nil {
			t.Fatal(err)
		}
		for i := range src {
			if d := math.Abs(float64(got[i] - src[i])); d > most {
				t.Errorf("%s value %d: %g came back as %g", typ, i, src[i], got[i])
				break
			}
		}
	}
}

func TestWrongSizesAreErrors(t *testing.T) {
	for _, c := range []struct {
		name        string
		typ         Type
		bytes, vals int
		want        error
	}{
		{"half a block", Q4_0, 18, 16, ErrCorrupt},
		{"too few bytes", Q4_K, 143, 256, ErrCorrupt},
		{"too many bytes", Q8_0, 68, 32, ErrCorrupt},
		{"sized but not readable", 16, 66, 256, ErrUnsupported},
		{"not known", 999, 0, 0, ErrUnsupported},
	} {
		if err := Dequantize(c.typ, make([]byte, c.bytes), make([]float32, c.vals)); !errors.Is(err, c.want) {
			t.Errorf("Dequantize, %s: got %v, want %v", c.name, err, c.want)
		}
	}
	if err := Quantize(Q6_K, make([]float32, 256), make([]byte, 210)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("Quantize Q6_K: got %v", err)
	}
	if err := Quantize(Q8_0, make([]float32, 31), make([]byte, 34)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Quantize 31 values: got %v", err)
	}
}

func TestHalfRoundsToNearestEven(t *testing.T) {
	for h := range 1 << 16 {
		f := HalfToFloat(uint16(h))
		got := FloatToHalf(f)
		if f != f {
			if got&0x7c00 != 0x7c00 || got&0x3ff == 0 {
				t.Fatalf("NaN %#x became %#x", h, got)
			}
			continue
		}
		if got != uint16(h) {
			t.Fatalf("%#x -> %g -> %#x", h, f, got)
		}
		// Half way to the next number goes to the even one of the two.
		if h&0x7fff < 0x7bff {
			next := HalfToFloat(uint16(h + 1))
			want := uint16(h + h&1)
			if got := FloatToHalf((f + next) / 2); got != want {
				t.Fatalf("middle of %#x and %#x became %#x", h, h+1, got)
			}
		}
	}
	if got := FloatToHalf(65520); got != 0x7c00 {
		t.Errorf("65520 became %#x, want infinity", got)
	}
	if got := FloatToHalf(1e-9); got != 0 {
		t.Errorf("1e-9 became %#x", got)
	}
}

func FuzzDequantize(f *testing.F) {
	for typ := range decoders {
		f.Add(uint32(typ), make([]byte, 2*typ.BlockBytes()))
	}
	f.Fuzz(func(t *testing.T, typ uint32, src []byte) {
		n := 0
		if b := Type(typ).BlockBytes(); b > 0 {
			n = len(src) / b * Type(typ).BlockSize()
		}
		Dequantize(Type(typ), src, make([]float32, n))
	})
}

func BenchmarkDequantize(b *testing.B) {
	for _, typ := range []Type{F16, Q8_0, Q4_0, Q4_K, Q6_K} {
		b.Run(typ.String(), func(b *testing.B) {
			dst := make([]float32, 1<<14)
			src := make([]byte, typ.RowBytes(len(dst)))
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				Dequantize(typ, src, dst)
			}
		})
	}
}
