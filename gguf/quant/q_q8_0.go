package quant

// Q8_0: 32 elements in 34 bytes, d half @0, q int8[32] @2; value q·d
// (weights.md 2.2).

func decodeQ8_0(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 34 {
		d := f16At(src)
		q, y := src[2:34], dst[:32]
		for i, v := range q {
			y[i] = float32(int8(v)) * d
		}
		dst, src = dst[32:], src[34:]
	}
}

// encodeQ8_0: d = amax/127, q = round(x/d) with halves away from zero; an
// importance changes nothing (weights.md 3.2).
func encodeQ8_0(dst []byte, src, _ []float32) error {
	for n := 0; len(src) >= 32; n++ {
		x, b := src[:32], dst[:34]
		amax, _ := extremes(x)
		d := amax / 127
		if err := putScale(b, d); err != nil {
			return blockError(n, 32, err)
		}
		inv := inverse(d)
		for i, v := range x {
			b[2+i] = byte(roundAway(float32(v * inv)))
		}
		dst, src = dst[34:], src[32:]
	}
	return nil
}
