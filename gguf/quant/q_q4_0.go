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
// sign, so that m lands on code 0; code = min(15, trunc(x/d + 8.5)). With an
// importance, search S (weights.md 3.2).
func encodeQ4_0(dst []byte, src, im []float32) error {
	var s block32
	s.start(src, im)
	for n := 0; len(src) >= 32; n++ {
		b := dst[:18]
		if err := putScale(b, s.signed(src, n, 8)); err != nil {
			return blockError(n, 32, err)
		}
		putNibbles(b[2:], s.codes[:])
		dst, src = dst[18:], src[32:]
	}
	return nil
}
