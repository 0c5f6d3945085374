package quant

import "math"

// F16ToF32 widens an IEEE 754 half. Every half is a float32; the payload of a
// NaN is kept.
func F16ToF32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	em := uint32(h & 0x7fff)
	switch {
	case em < 0x0400: // zero and subnormals: em units of 2^-24, exact in float32
		return math.Float32frombits(sign | math.Float32bits(float32(em)*0x1p-24))
	case em < 0x7c00: // rebias the exponent from 15 to 127
		return math.Float32frombits(sign | (em<<13 + 112<<23))
	default: // infinities and NaNs
		return math.Float32frombits(sign | 0x7f800000 | em<<13)
	}
}

// F32ToF16 narrows to an IEEE 754 half, rounding to nearest, ties to even.
// Values beyond 65504 become infinities from 65520 on; a NaN becomes a quiet
// NaN of the same sign.
func F32ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13&0x01ff)
	case b >= 0x47800000: // 2^16 and above
		return sign | 0x7c00
	case b >= 0x38800000: // normal halves, from 2^-14
		// The carry of the rounding may run into the exponent, which
		// is then the next binade or infinity, as it should be.
		b -= 112 << 23
		return sign | uint16((b+0x0fff+(b>>13&1))>>13)
	case b < 0x33000000: // below half the smallest subnormal
		return sign
	default:
		// Subnormal: express the significand in units of 2^-24.
		shift := 126 - b>>23 // 14 … 24
		m := b&0x007fffff | 0x00800000
		half := uint32(1) << (shift - 1)
		return sign | uint16((m+half-1+(m>>shift&1))>>shift)
	}
}

// BF16ToF32 widens a bfloat16, which is the upper half of a float32.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 narrows to a bfloat16, rounding to nearest, ties to even. A NaN
// becomes a quiet NaN.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x0040
	}
	return uint16((b + 0x7fff + (b >> 16 & 1)) >> 16)
}

// f16At widens the little-endian half in b[0:2].
func f16At(b []byte) float32 { return F16ToF32(uint16(b[0]) | uint16(b[1])<<8) }
