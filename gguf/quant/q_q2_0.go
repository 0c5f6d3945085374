package quant

// Q2_0: 64 elements in 18 bytes, d half @0, 16 bytes of 2-bit codes @2, four
// neighbouring elements to a byte, the first in the lowest bits; value (c−1)·d
// (weights.md 2.2).

func decodeQ2_0(dst []float32, src []byte) {
	for len(dst) >= 64 && len(src) >= 18 {
		d := f16At(src)
		for k, v := range src[2:18] {
			y := dst[4*k:][:4]
			for x := range y {
				y[x] = float32(int32(v>>(2*x)&3)-1) * d
			}
		}
		dst, src = dst[64:], src[18:]
	}
}

// encodeQ2_0: d = amax and codes as trits, so that 2d is not used; an importance
// changes nothing (weights.md 3.2).
func encodeQ2_0(dst []byte, src, _ []float32) error {
	var c [64]uint8
	for n := 0; len(src) >= 64; n++ {
		b := dst[:18]
		if err := putScale(b, trits(c[:], src)); err != nil {
			return blockError(n, 64, err)
		}
		for k := range 16 {
			b[2+k] = c[4*k] | c[4*k+1]<<2 | c[4*k+2]<<4 | c[4*k+3]<<6
		}
		dst, src = dst[18:], src[64:]
	}
	return nil
}
