package quant

// Q4_K: 256 elements in 144 bytes, d half @0, dmin half @2, 12 bytes of 6-bit
// scales and minima @4, 128 bytes of nibbles @16; 32 bytes hold two groups of
// 32, the even group in the low nibbles; value (d·sc)·q − dmin·m
// (weights.md 2.2).

func decodeQ4_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 144 {
		d, dmin := f16At(src), f16At(src[2:])
		s := src[4:16]
		for g := 0; g < 8; g += 2 {
			sc, m := scaleMin(s, g)
			d0, m0 := d*float32(sc), float32(dmin*float32(m))
			sc, m = scaleMin(s, g+1)
			d1, m1 := d*float32(sc), float32(dmin*float32(m))
			q := src[16+16*g:][:32]
			lo, hi := dst[32*g:][:32], dst[32*g+32:][:32]
			// The conversions keep a compiler from fusing a product
			// with the subtraction.
			for i, v := range q {
				lo[i] = float32(d0*float32(int32(v&15))) - m0
				hi[i] = float32(d1*float32(int32(v>>4))) - m1
			}
		}
		dst, src = dst[256:], src[144:]
	}
}
