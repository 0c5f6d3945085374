package quant

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// TestDequantize compares every decoder with the reference vectors, bit by bit.
func TestDequantize(t *testing.T) {
	for _, dir := range vectorDirs() {
		for _, typ := range Types() {
			if !typ.CanDequantize() {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", dir, typ), func(t *testing.T) {
				blocks := read(t, dir, typ.String()+".blocks.bin")
				n, size := typ.BlockSize(), typ.BlockBytes()
				got := make([]float32, len(blocks)/size*n)
				if err := Dequantize(typ, got, blocks); err != nil {
					t.Fatal(err)
				}
				want, digest := decoded(t, dir, typ)
				if want == nil {
					if got := floatDigest(got); got != digest {
						t.Errorf("sha256 of the values: got %s, want %s", got, digest)
					}
					want = got
				}
				if len(want) != len(got) || len(want) == 0 {
					t.Fatalf("got %d elements, want %d", len(got), len(want))
				}
				for i := range want {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("element %d: got %g (%#08x), want %g (%#08x)", i,
							got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
					}
				}
				// A block on its own gives what it gives in a row.
				one := make([]float32, n)
				for i := range min(len(want)/n, 40) {
					if err := Dequantize(typ, one, blocks[i*size:][:size]); err != nil {
						t.Fatal(err)
					}
					for k := range one {
						if math.Float32bits(one[k]) != math.Float32bits(want[i*n+k]) {
							t.Fatalf("block %d alone, element %d: got %g, want %g", i, k, one[k], want[i*n+k])
						}
					}
				}
			})
		}
	}
}

func TestQuantizeRefuses(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, typ := range []Type{Q8_0, Q4_0} {
		for _, x := range []float32{inf, -inf, nan, 3e38} {
			src := make([]float32, 64)
			src[40] = x
			err := Quantize(typ, make([]byte, 2*typ.BlockBytes()), src)
			where := "element 40 is"
			if x == 3e38 {
				where = "elements 32 to 63"
			}
			if err == nil || !strings.Contains(err.Error(), where) {
				t.Errorf("%v of %g: got error %v", typ, x, err)
			}
		}
		// Values too small for any scale become zeros.
		src := make([]float32, 32)
		for i := range src {
			src[i] = math.SmallestNonzeroFloat32 * float32(i%11)
		}
		b := make([]byte, typ.BlockBytes())
		if err := Quantize(typ, b, src); err != nil {
			t.Errorf("%v of subnormals: %v", typ, err)
		}
		if err := Dequantize(typ, src, b); err != nil {
			t.Error(err)
		}
		for i, v := range src {
			if v != 0 {
				t.Errorf("%v of subnormals: element %d is %g, want 0", typ, i, v)
			}
		}
	}
}

func TestLengths(t *testing.T) {
	for _, tt := range []struct {
		typ    Type
		n, src int
		err    string
	}{
		{Q4_K, 256, 144, ""},
		{Q4_K, 0, 0, ""},
		{Q4_K, 128, 72, "not a multiple"},
		{Q4_K, 256, 143, "144 bytes, not 143"},
		{Q8_0, 32, 35, "34 bytes, not 35"},
		{I32, 1, 4, "no decoder for I32"},
		{Type(31), 1, 4, "type 31 is unknown"},
		{Type(1 << 31), 1, 4, "unknown"},
	} {
		err := Dequantize(tt.typ, make([]float32, tt.n), make([]byte, tt.src))
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("Dequantize(%v, %d elements, %d bytes): got %v, want %q", tt.typ, tt.n, tt.src, err, tt.err)
		}
		if !tt.typ.CanQuantize() {
			if err := Quantize(tt.typ, make([]byte, tt.src), make([]float32, tt.n)); err == nil {
				t.Errorf("Quantize(%v): no error", tt.typ)
			}
		}
	}
}

func BenchmarkDequantize(b *testing.B) {
	for _, typ := range Types() {
		if !typ.CanDequantize() {
			continue
		}
		b.Run(typ.String(), func(b *testing.B) {
			const n = 8192
			src := make([]byte, n/typ.BlockSize()*typ.BlockBytes())
			for i := range src {
				src[i] = byte(i * 37 & 0x3b)
			}
			dst := make([]float32, n)
			b.SetBytes(4 * n)
			for b.Loop() {
				Dequantize(typ, dst, src)
			}
		})
	}
}
