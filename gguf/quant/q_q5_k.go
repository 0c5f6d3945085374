package quant

// Q5_K: 256 elements in 176 bytes, as Q4_K with 32 bytes of fifth bits @16 and
// the nibbles @48. Bit g of byte e mod 32 is the fifth bit of element e of
// group g (weights.md 2.2).

func decodeQ5_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 176 {
		d, dmin := f16At(src), f16At(src[2:])
		s, high := src[4:16], src[16:48]
		for g := 0; g < 8; g += 2 {
			sc, m := scaleMin(s, g)
			d0, m0 := d*float32(sc), float32(dmin*float32(m))
			sc, m = scaleMin(s, g+1)
			d1, m1 := d*float32(sc), float32(dmin*float32(m))
			q := src[48+16*g:][:32]
			lo, hi := dst[32*g:][:32], dst[32*g+32:][:32]
			for i, v := range q {
				h := high[i] >> g
				lo[i] = float32(d0*float32(int32(v&15|h&1<<4))) - m0
				hi[i] = float32(d1*float32(int32(v>>4|h>>1&1<<4))) - m1
			}
		}
		dst, src = dst[256:], src[176:]
	}
}
