package quant

import (
	"math"
	"math/bits"
	"path/filepath"
	"testing"
)

// TestScaleTables compares the two 8-bit scale formats with their definitions
// (weights.md 4) and, where there are any, with the reference tables.
func TestScaleTables(t *testing.T) {
	e8m0 := func(b int) float64 { return math.Ldexp(1, b-128) }
	ue4m3 := func(b int) float64 {
		switch e, m := b>>3&15, float64(b&7); {
		case b == 0x7f:
			return 0
		case e == 0:
			return math.Ldexp(m, -9) / 2
		default:
			return math.Ldexp(1+m/8, e-7) / 2
		}
	}
	for _, tt := range []struct {
		file string
		got  func(byte) float32
		want func(int) float64
	}{
		{"ggml_e8m0_half", halfE8M0, e8m0},
		{"ggml_ue4m3_half", halfUE4M3, ue4m3},
	} {
		var table []float32
		if dir := oracle(filepath.Join("quant", "tables")); dir != "" {
			if table = toFloats(read(t, dir, tt.file+".f32.bin")); len(table) != 256 {
				t.Fatalf("%s has %d values", tt.file, len(table))
			}
		}
		for b := range 256 {
			got, want := tt.got(byte(b)), float32(tt.want(b))
			if math.Float32bits(got) != math.Float32bits(want) {
				t.Errorf("%s %#02x: got %g, want %g", tt.file, b, got, want)
			}
			// The reference makes no difference between 255 and 254.
			if table != nil && !(tt.file == "ggml_e8m0_half" && b == 255) && got != table[b] {
				t.Errorf("%s %#02x: got %g, the reference has %g", tt.file, b, got, table[b])
			}
		}
	}
}

// TestSigns7: the low seven bits are kept, and the number of signs is even.
func TestSigns7(t *testing.T) {
	for i := range uint32(1 << 9) {
		s := signs7(i)
		if uint32(s&127) != i&127 || bits.OnesCount8(s)%2 != 0 {
			t.Errorf("signs7(%#x) = %#02x", i, s)
		}
	}
}

// TestTernary decodes all 243 values of a byte: the digits of n come back from
// the byte nearest above n·256/243.
func TestTernary(t *testing.T) {
	for n := range 243 {
		y := make([]float32, 5)
		ternary(y, []byte{byte((256*n + 242) / 243)}, 0.5)
		for p, rest := 4, n; p >= 0; p-- {
			if want := 0.5 * float32(rest%3-1); y[p] != want {
				t.Errorf("%d: digit %d is %g, want %g", n, p, y[p], want)
			}
			rest /= 3
		}
	}
}

// TestEveryTypeDecodes: only the plain integers and F64, which no tensor of the
// family has, are without a decoder.
func TestEveryTypeDecodes(t *testing.T) {
	for _, typ := range Types() {
		plain := typ >= I8 && typ <= F64
		if typ.CanDequantize() == plain {
			t.Errorf("%v: CanDequantize is %t", typ, !plain)
		}
	}
}
