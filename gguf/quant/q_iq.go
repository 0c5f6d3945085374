package quant

import (
	"math"
	"math/bits"
)

// Shared by the IQ2 and IQ3 formats: rows of a codebook with signs.

// signs7 returns the eight signs that seven bits stand for: the eighth makes the
// number of minus signs even (SGN7 of weights.md 2.2).
func signs7(b uint32) byte {
	b &= 127
	return byte(b | uint32(bits.OnesCount32(b))<<7)
}

// signedRow sets y to the values of row times d, negative where the bit of the
// element in signs is set. y and row have the same length, at most 8.
func signedRow(y []float32, row []int8, d float32, signs byte) {
	y = y[:len(row)]
	for x, v := range row {
		y[x] = math.Float32frombits(math.Float32bits(d*float32(v)) ^ uint32(signs)>>x<<31)
	}
}

// scaleIQ2 returns the scale of an IQ2 group of 4-bit scale s: (d·(0.5+s))·0.25.
func scaleIQ2(d float32, s uint32) float32 { return float32(d*(0.5+float32(int32(s)))) * 0.25 }
