package quant

import "math"

// NVFP4: 64 elements in 36 bytes, four UE4M3 scales @0, 32 bytes of nibbles @4.
// Each sub-block of 16 has 8 bytes: byte j holds element j (low) and element j+8
// (high); value valuesE2M1[code]·(scale/2) (weights.md 2.2). A tensor may have one
// more scale in a tensor of its own, which is not applied here.

func decodeNVFP4(dst []float32, src []byte) {
	for len(dst) >= 64 && len(src) >= 36 {
		for k, s := range src[:4] {
			d := halfUE4M3(s)
			q, lo, hi := src[4+8*k:][:8], dst[16*k:][:8], dst[16*k+8:][:8]
			for j, v := range q {
				lo[j] = float32(valuesE2M1[v&15]) * d
				hi[j] = float32(valuesE2M1[v>>4]) * d
			}
		}
		dst, src = dst[64:], src[36:]
	}
}

// halfUE4M3 returns half the value of a float of 4 exponent bits (bias 7) and 3
// mantissa bits without a sign, to go with the doubled codes (weights.md 4). 0x7f,
// not a number, counts as 0. Bit 7 is not part of the number and is ignored, but
// 0xff counts as 480/2, as in the reference.
func halfUE4M3(b byte) float32 {
	switch e, m := uint32(b>>3&15), uint32(b&7); {
	case b == 0x7f:
		return 0
	case e == 0:
		return float32(int32(m)) * 0x1p-10
	default: // (1 + m/8)·2^(e−7)/2
		return math.Float32frombits((e+127-8)<<23 | m<<20)
	}
}

// encodeNVFP4: the scale of 16 elements is amax/6 as UE4M3, the codes are the
// nearest; an importance changes nothing (weights.md 3.2). A scale is at most 448:
// larger elements are cut to 2688, so a tensor should first be divided by a scale
// of its own, amax/2688.
func encodeNVFP4(dst []byte, src, _ []float32) error {
	for len(src) >= 64 {
		for k := range 4 {
			x := src[16*k:][:16]
			amax, _ := extremes(x)
			s := toUE4M3(amax / 6)
			dst[k] = s
			var inv float64
			if s != 0 {
				inv = 1 / float64(halfUE4M3(s))
			}
			for j := range 8 {
				lo, hi := codeE2M1(float64(x[j])*inv), codeE2M1(float64(x[j+8])*inv)
				dst[4+8*k+j] = lo | hi<<4
			}
		}
		dst, src = dst[36:], src[64:]
	}
	return nil
}

// toUE4M3 returns the UE4M3 float nearest to v ≥ 0, ties up, at most 448. The
// reference never rounds up from the largest subnormal to the smallest normal
// number; this does, and has the smaller error for it.
func toUE4M3(v float32) byte {
	switch {
	case v >= 448:
		return 0x7e
	case v < 0x1p-6: // subnormal, in units of 2^-9; the carry makes it normal
		return byte(float64(v)*0x1p9 + 0.5)
	default:
		return byte((math.Float32bits(v) - (127-7)<<23 + 1<<19) >> 20)
	}
}
