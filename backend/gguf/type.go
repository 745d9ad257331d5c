package gguf

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Type is the storage format of a tensor. The numbers are those of ggml_type in
// ggml.h and are what the file holds.
type Type uint32

// The formats that Dequantize reads.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q5_0 Type = 6
	Q5_1 Type = 7
	Q8_0 Type = 8
	Q4_K Type = 12
	Q5_K Type = 13
	Q6_K Type = 14
	BF16 Type = 30
)

// layout is the shape of one block: values it holds, bytes it takes.
type layout struct {
	name   string
	values int
	bytes  int
}

// layouts has every format whose size is known, so that a file may hold tensors
// that can be listed and skipped though not read.
var layouts = map[Type]layout{
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2},
	Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20},
	Q5_0: {"Q5_0", 32, 22}, Q5_1: {"Q5_1", 32, 24},
	Q8_0: {"Q8_0", 32, 34},
	Q4_K: {"Q4_K", 256, 144}, Q5_K: {"Q5_K", 256, 176}, Q6_K: {"Q6_K", 256, 210},

	// Sized only.
	9: {"Q8_1", 32, 36}, 10: {"Q2_K", 256, 84}, 11: {"Q3_K", 256, 110}, 15: {"Q8_K", 256, 292},
	16: {"IQ2_XXS", 256, 66}, 17: {"IQ2_XS", 256, 74}, 18: {"IQ3_XXS", 256, 98}, 19: {"IQ1_S", 256, 50},
	20: {"IQ4_NL", 32, 18}, 21: {"IQ3_S", 256, 110}, 22: {"IQ2_S", 256, 82}, 23: {"IQ4_XS", 256, 136},
	24: {"I8", 1, 1}, 25: {"I16", 1, 2}, 26: {"I32", 1, 4}, 27: {"I64", 1, 8}, 28: {"F64", 1, 8},
	29: {"IQ1_M", 256, 56}, 34: {"TQ1_0", 256, 54}, 35: {"TQ2_0", 256, 66}, 39: {"MXFP4", 32, 17},
}

// BlockSize is the number of values in one block, 1 for the plain formats, 0 for a
// type that is not known.
func (t Type) BlockSize() int { return layouts[t].values }

// BlockBytes is the number of bytes of one block, 0 for a type that is not known.
func (t Type) BlockBytes() int { return layouts[t].bytes }

// String is the usual name, e.g. "Q4_K".
func (t Type) String() string {
	if l, ok := layouts[t]; ok {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// RowBytes is the number of bytes of n values stored as t. It is 0 when n is not
// made of whole blocks or the type is not known.
func (t Type) RowBytes(n int) int {
	l := layouts[t]
	if l.values == 0 || n < 0 || n%l.values != 0 || n/l.values > math.MaxInt/l.bytes {
		return 0
	}
	return n / l.values * l.bytes
}

// readable lists the types that Dequantize reads, for messages.
func readable() string {
	var names []string
	for _, t := range slices.Sorted(maps.Keys(decoders)) {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// Readable tells whether Dequantize reads the type.
func (t Type) Readable() bool {
	_, ok := decoders[t]
	return ok
}
