package quant

// Q4_1: 32 elements in 20 bytes, d half @0, m half @2, 16 bytes of nibbles @4;
// byte j holds element j (low) and element j+16 (high); value n·d + m
// (weights.md 2.2).

func decodeQ4_1(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 20 {
		d, m := f16At(src), f16At(src[2:])
		q, lo, hi := src[4:20], dst[:16], dst[16:32]
		// The conversions keep a compiler from fusing the product with
		// the sum.
		for i, v := range q {
			lo[i] = float32(float32(int32(v&15))*d) + m
			hi[i] = float32(float32(int32(v>>4))*d) + m
		}
		dst, src = dst[32:], src[20:]
	}
}

// encodeQ4_1: m is the least element, d = (max−m)/15, code = min(15,
// trunc((x−m)/d + 0.5)). With an importance, search A (weights.md 3.2).
func encodeQ4_1(dst []byte, src, im []float32) error {
	var s block32
	s.start(src, im)
	for n := 0; len(src) >= 32; n++ {
		b := dst[:20]
		d, m := s.offset(src, n, 15)
		if err := putScales(b, d, m); err != nil {
			return blockError(n, 32, err)
		}
		putNibbles(b[4:], s.codes[:])
		dst, src = dst[20:], src[32:]
	}
	return nil
}
