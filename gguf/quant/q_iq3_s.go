package quant

// IQ3_S: 256 elements in 110 bytes, d half @0, low bytes of the codebook indices
// @2 (64 bytes, 4 elements each), ninth bits of the indices @66 (8 bytes, bit y of
// byte g for row y of group g), signs @74 (32 bytes), 4-bit scales @106 (4 bytes,
// the low nibble for the even group); value ((d·(1+2s))·row)·sign (weights.md 2.2).

func decodeIQ3_S(dst []float32, src []byte) {
	rows := bookIQ3_S().Rows()
	for len(dst) >= 256 && len(src) >= 110 {
		d := f16At(src)
		for g := range 8 {
			s := src[106+g>>1] >> (g & 1 << 2) & 15
			db := d * float32(1+2*int32(s))
			q, high, signs := src[2+8*g:][:8], int(src[66+g]), src[74+4*g:][:4]
			for y, i := range q {
				row := rows[4*(int(i)|high>>y&1<<8):][:4]
				signedRow(dst[32*g+4*y:], row, db, signs[y>>1]>>(y&1<<2))
			}
		}
		dst, src = dst[256:], src[110:]
	}
}
