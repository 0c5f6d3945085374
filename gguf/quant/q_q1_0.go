package quant

// Q1_0: 128 elements in 18 bytes, d half @0, 16 bytes of bits @2, element 0 in the
// lowest bit; value d where the bit is set and −d where it is clear (weights.md 2.2).

func decodeQ1_0(dst []float32, src []byte) {
	for len(dst) >= 128 && len(src) >= 18 {
		d := f16At(src)
		for k, v := range src[2:18] {
			y := dst[8*k:][:8]
			for x := range y {
				y[x] = -d
				if v>>x&1 != 0 {
					y[x] = d
				}
			}
		}
		dst, src = dst[128:], src[18:]
	}
}

// encodeQ1_0: d is the mean magnitude, and a bit is set for x ≥ 0; an importance
// changes nothing (weights.md 3.2).
func encodeQ1_0(dst []byte, src, _ []float32) error {
	for n := 0; len(src) >= 128; n++ {
		b := dst[:18]
		clear(b)
		var sum float32
		for i, v := range src[:128] {
			sum += abs(v)
			if v >= 0 {
				b[2+i>>3] |= 1 << (i & 7)
			}
		}
		if err := putScale(b, sum/128); err != nil {
			return blockError(n, 128, err)
		}
		dst, src = dst[18:], src[128:]
	}
	return nil
}
