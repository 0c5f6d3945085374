package quant

import "math"

// MXFP4: 32 elements in 17 bytes, exponent E @0, 16 bytes of nibbles @1 in the
// order of Q4_0; value valuesE2M1[code]·2^(E−128) (weights.md 2.2). E = 255 is not
// a number of the format: it decodes by the formula and [Check] refuses it.

// valuesE2M1 are the 16 values of a 4-bit E2M1 float, doubled so that they are
// integers. Code 8 is +0 here, as in the reference.
var valuesE2M1 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

func decodeMXFP4(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 17 {
		d := halfE8M0(src[0])
		q, lo, hi := src[1:17], dst[:16], dst[16:32]
		for i, v := range q {
			lo[i] = d * float32(valuesE2M1[v&15])
			hi[i] = d * float32(valuesE2M1[v>>4])
		}
		dst, src = dst[32:], src[17:]
	}
}

// halfE8M0 returns 2^(e−128), half the value of an E8M0 exponent, to go with the
// doubled codes (weights.md 4). The results for 0 and 1 are subnormal.
func halfE8M0(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(1 << 21 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// encodeMXFP4: E = floor(log2 amax) − 2 + 127, so that the largest element is 4 … 8
// times 2^(E−127) and may be cut to 6; an importance changes nothing (weights.md
// 3.2). Every finite value has a code: E stays within 0 … 252.
func encodeMXFP4(dst []byte, src, _ []float32) error {
	var codes [32]uint8
	for len(src) >= 32 {
		amax, _ := extremes(src[:32])
		var e byte
		if _, exp := math.Frexp(float64(amax)); amax > 0 {
			e = byte(max(0, exp-1-2+127))
		}
		dst[0] = e
		inv := 1 / float64(halfE8M0(e))
		for i, v := range src[:32] {
			codes[i] = codeE2M1(float64(v) * inv)
		}
		putNibbles(dst[1:], codes[:])
		dst, src = dst[17:], src[32:]
	}
	return nil
}

// codeE2M1 returns the code of the doubled E2M1 value nearest to v, the lower code
// where two are as near, and never the code of −0.
func codeE2M1(v float64) (c uint8) {
	a := math.Abs(v)
	switch {
	case a <= 2.5:
		c = uint8(math.Ceil(a - 0.5)) // halves go down
	case a <= 3.5:
		c = 3
	case a <= 5:
		c = 4
	case a <= 7:
		c = 5
	case a <= 10:
		c = 6
	default:
		c = 7
	}
	if v < 0 && c > 0 {
		c |= 8
	}
	return c
}
