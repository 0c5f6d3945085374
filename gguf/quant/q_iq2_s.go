package quant

// IQ2_S: 256 elements in 82 bytes, d half @0, low bytes of the codebook indices
// @2 (32 bytes), signs @34 (32 bytes), high bits of the indices @66 (8 bytes, two
// bits for each row of group g in byte g), 4-bit scales @74 (8 bytes, as IQ2_XS);
// value as IQ2_XXS (weights.md 2.2).

func decodeIQ2_S(dst []float32, src []byte) {
	rows := bookIQ2_S().Rows()
	for len(dst) >= 256 && len(src) >= 82 {
		d := f16At(src)
		for g, s := range src[74:82] {
			db := [2]float32{scaleIQ2(d, uint32(s&15)), scaleIQ2(d, uint32(s>>4))}
			q, signs, high := src[2+4*g:][:4], src[34+4*g:][:4], int(src[66+g])
			for t := range 4 {
				i := int(q[t]) | high>>(2*t)&3<<8
				signedRow(dst[32*g+8*t:], rows[8*i:][:8], db[t>>1], signs[t])
			}
		}
		dst, src = dst[256:], src[82:]
	}
}
