package quant

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Codes with their scales are the weights that the decoder gives.
func TestCodes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, typ := range []Type{Q4_K, Q5_K, Q6_K} {
		const blocks = 3
		src := make([]byte, blocks*int(typ.BlockBytes()))
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		for n := range blocks { // halves of an ordinary size
			b := src[n*int(typ.BlockBytes()):][:typ.BlockBytes()]
			if typ == Q6_K {
				b = b[208:]
			} else {
				b[3] = 0x2c
			}
			b[1] = 0x2a
		}
		want := make([]float32, 256*blocks)
		if err := Dequantize(typ, want, src); err != nil {
			t.Fatal(err)
		}
		for n := range blocks {
			var c Codes
			if err := c.Read(typ, src, n); err != nil {
				t.Fatal(err)
			}
			for i, code := range c.Code {
				got := c.Scale[i/16]*float32(code) - c.Less[i/16]
				if d := math.Abs(float64(got - want[256*n+i])); d > 1e-6*math.Abs(float64(c.Scale[i/16]*64)) {
					t.Fatalf("%v: weight %d of block %d is %g by its code, and %g", typ, i, n, got, want[256*n+i])
				}
			}
		}
	}
	if (&Codes{}).Read(Q8_0, make([]byte, 34), 0) == nil {
		t.Error("Q8_0 has codes")
	}
}
