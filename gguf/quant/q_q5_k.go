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

// searchQ5_K is the search of weights.md 3.2.
var searchQ5_K = offsetFormat{
	size: 32, top: 31, levels: 63, average: true, plain: ladder{start: -0.5, step: 0.1, count: 15}, spread: 2,
}

// encodeQ5_K is as encodeQ4_K with 32 codes.
func encodeQ5_K(dst []byte, src, im []float32) error {
	var s superblock
	s.start(im)
	for n := 0; len(src) >= 256; n++ {
		b := dst[:176]
		s.load(src, 256*n)
		d, dmin := s.searchOffset(&searchQ5_K)
		if err := putScales(b, d, dmin); err != nil {
			return blockError(n, 256, err)
		}
		s.recodeOffset(&searchQ5_K, f16At(b), f16At(b[2:]))
		putScaleMin(b[4:], s.scaleQ[:], s.minQ[:])
		clear(b[16:48])
		for g := range 4 {
			lo, hi := s.codes[64*g:][:32], s.codes[64*g+32:][:32]
			for i := range 32 {
				b[16+i] |= (lo[i]>>4 | hi[i]>>4<<1) << (2 * g)
				b[48+32*g+i] = lo[i]&15 | hi[i]<<4
			}
		}
		dst, src = dst[176:], src[256:]
	}
	return nil
}
