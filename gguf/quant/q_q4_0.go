package quant

// Q4_0: 32 elements in 18 bytes, d half @0, 16 bytes of nibbles @2; byte j
// holds element j (low) and element j+16 (high); value (n−8)·d (weights.md 2.2).

func decodeQ4_0(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 18 {
		d := f16At(src)
		q, lo, hi := src[2:18], dst[:16], dst[16:32]
		for i, v := range q {
			lo[i] = float32(int32(v&15)-8) * d
			hi[i] = float32(int32(v>>4)-8) * d
		}
		dst, src = dst[32:], src[18:]
	}
}

// encodeQ4_0: d = m/−8 where m is the element of largest magnitude with its
// sign, so that m lands on code 0; code = min(15, trunc(x/d + 8.5))
// (weights.md 3.2).
func encodeQ4_0(dst []byte, src []float32) error {
	for n := 0; len(src) >= 32; n++ {
		x, b := src[:32], dst[:18]
		_, m, err := extremes(x)
		if err != nil {
			return blockError(n, 32, err)
		}
		d := m / -8
		if err := putScale(b, d); err != nil {
			return blockError(n, 32, err)
		}
		inv := inverse(d)
		for i := range 16 {
			b[2+i] = code4(x[i], inv) | code4(x[i+16], inv)<<4
		}
		dst, src = dst[18:], src[32:]
	}
	return nil
}

func code4(x, inv float32) byte {
	c := int32(float32(x*inv) + 8.5)
	return byte(min(max(c, 0), 15))
}
