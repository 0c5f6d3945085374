// Package quant knows the block formats of GGUF tensors: their ids, names and
// sizes, and how to turn their bytes into float32 values and back.
//
// A tensor is a sequence of rows, a row a sequence of blocks, a block a fixed
// number of elements in a fixed number of bytes (weights.md 2.1). Everything
// here is bit-exact: a decoder rounds after every product and sum in the order
// of the formulas of weights.md 2.2, on every architecture, so that a kernel
// can be compared with it.
//
// A new format is one file q_NAME.go with its decoder (and encoder, if there
// is one), named in that format's line of the table in this file.
package quant

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// Type is the GGUF id of an element or block format, as stored in a tensor's
// header. The zero Type is F32. A Type read from a file is only known to exist
// after [Lookup].
type Type uint32

// The types of weights.md 2.1. The gaps are removed formats.
const (
	F32     Type = 0
	F16     Type = 1
	Q4_0    Type = 2
	Q4_1    Type = 3
	Q5_0    Type = 6
	Q5_1    Type = 7
	Q8_0    Type = 8
	Q8_1    Type = 9
	Q2_K    Type = 10
	Q3_K    Type = 11
	Q4_K    Type = 12
	Q5_K    Type = 13
	Q6_K    Type = 14
	Q8_K    Type = 15
	IQ2_XXS Type = 16
	IQ2_XS  Type = 17
	IQ3_XXS Type = 18
	IQ1_S   Type = 19
	IQ4_NL  Type = 20
	IQ3_S   Type = 21
	IQ2_S   Type = 22
	IQ4_XS  Type = 23
	I8      Type = 24
	I16     Type = 25
	I32     Type = 26
	I64     Type = 27
	F64     Type = 28
	IQ1_M   Type = 29
	BF16    Type = 30
	TQ1_0   Type = 34
	TQ2_0   Type = 35
	MXFP4   Type = 39
	NVFP4   Type = 40
	Q1_0    Type = 41
	Q2_0    Type = 42
)

// format is one line of the table: what a type is called, how large its blocks
// are, and the code that reads and writes them. decode and encode are given
// slices whose lengths agree and are whole blocks; either may be nil. encode is
// given finite values (if blocks have several elements) and, unless importance is
// nil, a whole row with as many importance values, finite and not negative.
type format struct {
	name     string
	elements int // per block
	bytes    int // per block
	decode   func(dst []float32, src []byte)
	encode   func(dst []byte, src, importance []float32) error
}

// formats is indexed by Type. A removed or unused id has an empty name.
var formats = [...]format{
	F32:     {"F32", 1, 4, decodeF32, encodeF32},
	F16:     {"F16", 1, 2, decodeF16, encodeF16},
	Q4_0:    {"Q4_0", 32, 18, decodeQ4_0, encodeQ4_0},
	Q4_1:    {"Q4_1", 32, 20, decodeQ4_1, encodeQ4_1},
	Q5_0:    {"Q5_0", 32, 22, decodeQ5_0, encodeQ5_0},
	Q5_1:    {"Q5_1", 32, 24, decodeQ5_1, encodeQ5_1},
	Q8_0:    {"Q8_0", 32, 34, decodeQ8_0, encodeQ8_0},
	Q8_1:    {"Q8_1", 32, 36, decodeQ8_1, nil},
	Q2_K:    {"Q2_K", 256, 84, decodeQ2_K, encodeQ2_K},
	Q3_K:    {"Q3_K", 256, 110, decodeQ3_K, encodeQ3_K},
	Q4_K:    {"Q4_K", 256, 144, decodeQ4_K, encodeQ4_K},
	Q5_K:    {"Q5_K", 256, 176, decodeQ5_K, encodeQ5_K},
	Q6_K:    {"Q6_K", 256, 210, decodeQ6_K, encodeQ6_K},
	Q8_K:    {"Q8_K", 256, 292, decodeQ8_K, nil},
	IQ2_XXS: {"IQ2_XXS", 256, 66, decodeIQ2_XXS, nil},
	IQ2_XS:  {"IQ2_XS", 256, 74, decodeIQ2_XS, nil},
	IQ3_XXS: {"IQ3_XXS", 256, 98, decodeIQ3_XXS, nil},
	IQ1_S:   {"IQ1_S", 256, 50, decodeIQ1_S, nil},
	IQ4_NL:  {"IQ4_NL", 32, 18, decodeIQ4_NL, encodeIQ4_NL},
	IQ3_S:   {"IQ3_S", 256, 110, decodeIQ3_S, nil},
	IQ2_S:   {"IQ2_S", 256, 82, decodeIQ2_S, nil},
	IQ4_XS:  {"IQ4_XS", 256, 136, decodeIQ4_XS, encodeIQ4_XS},
	I8:      {"I8", 1, 1, nil, nil},
	I16:     {"I16", 1, 2, nil, nil},
	I32:     {"I32", 1, 4, nil, nil},
	I64:     {"I64", 1, 8, nil, nil},
	F64:     {"F64", 1, 8, nil, nil},
	IQ1_M:   {"IQ1_M", 256, 56, decodeIQ1_M, nil},
	BF16:    {"BF16", 1, 2, decodeBF16, encodeBF16},
	TQ1_0:   {"TQ1_0", 256, 54, decodeTQ1_0, encodeTQ1_0},
	TQ2_0:   {"TQ2_0", 256, 66, decodeTQ2_0, encodeTQ2_0},
	MXFP4:   {"MXFP4", 32, 17, decodeMXFP4, encodeMXFP4},
	NVFP4:   {"NVFP4", 64, 36, decodeNVFP4, encodeNVFP4},
	Q1_0:    {"Q1_0", 128, 18, decodeQ1_0, encodeQ1_0},
	Q2_0:    {"Q2_0", 64, 18, decodeQ2_0, encodeQ2_0},
}

// retired names ids that files may carry and that are refused: formats removed
// from GGUF, and formats that only one fork writes (weights.md 2.1).
var retired = map[uint32]string{
	4:   "the removed format Q4_2",
	5:   "the removed format Q4_3",
	31:  "the removed repacked format Q4_0_4_4",
	32:  "the removed repacked format Q4_0_4_8",
	33:  "the removed repacked format Q4_0_8_8",
	36:  "the removed repacked format IQ4_NL_4_4",
	37:  "the removed repacked format IQ4_NL_4_8",
	38:  "the removed repacked format IQ4_NL_8_8",
	142: "PQ2_0, a fork's format that needs a Hadamard transform of the activations",
	143: "PTQ1_0, a fork's format that needs a Hadamard transform of the activations",
}

// Lookup returns the type with a GGUF id. The error of an id that is not in the
// table gives the number and, if it once was one, the name of the format.
func Lookup(id uint32) (Type, error) {
	if t := Type(id); t.Valid() {
		return t, nil
	}
	if what, ok := retired[id]; ok {
		return 0, fmt.Errorf("type id %d is %s: get or make the file in another format", id, what)
	}
	return 0, fmt.Errorf("type id %d is unknown: the file is damaged or needs a newer caldera", id)
}

// ParseType returns the type of a name such as "Q4_K" or "f16", in either case.
func ParseType(name string) (Type, error) {
	for id := range formats {
		if formats[id].name != "" && strings.EqualFold(formats[id].name, name) {
			return Type(id), nil
		}
	}
	return 0, fmt.Errorf("unknown tensor type %.80q", name)
}

// Types returns every type of the table in the order of their ids.
func Types() []Type {
	var all []Type
	for id := range formats {
		if formats[id].name != "" {
			all = append(all, Type(id))
		}
	}
	return all
}

// format returns the line of the table for t, or a zero line.
func (t Type) format() *format {
	if int64(t) < int64(len(formats)) {
		return &formats[t]
	}
	return &format{}
}

// Valid reports whether t is a type of the table.
func (t Type) Valid() bool { return t.format().name != "" }

// String returns the name of the type, or "type N" for an unknown id.
func (t Type) String() string {
	if name := t.format().name; name != "" {
		return name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// BlockSize returns the number of elements in a block, 0 for an unknown type.
func (t Type) BlockSize() int { return t.format().elements }

// BlockBytes returns the number of bytes in a block, 0 for an unknown type.
func (t Type) BlockBytes() int { return t.format().bytes }

// CanDequantize reports whether [Dequantize] reads the type.
func (t Type) CanDequantize() bool { return t.format().decode != nil }

// CanQuantize reports whether [Quantize] writes the type.
func (t Type) CanQuantize() bool { return t.format().encode != nil }

// RowBytes returns the number of bytes of a row of n elements. It is an error
// if n is not a whole number of blocks or if the bytes do not fit an int64.
func (t Type) RowBytes(n uint64) (uint64, error) {
	f := t.format()
	if f.name == "" {
		return 0, fmt.Errorf("%v is unknown", t)
	}
	if n%uint64(f.elements) != 0 {
		return 0, fmt.Errorf("a row of %d elements is not a multiple of the %d elements of a %v block", n, f.elements, t)
	}
	hi, lo := bits.Mul64(n/uint64(f.elements), uint64(f.bytes))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, fmt.Errorf("the bytes of a %v row of %d elements overflow", t, n)
	}
	return lo, nil
}
