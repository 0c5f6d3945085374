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

// searchQ4_K is the search of weights.md 3.2.
var searchQ4_K = offsetFormat{
	size: 32, top: 15, levels: 63, average: true, plain: ladder{start: -1, step: 0.1, count: 20}, spread: 2,
}

// encodeQ4_K searches a scale and a minimum for each group of 32 and rounds the
// elements again with what is stored of them (weights.md 3.2).
func encodeQ4_K(dst []byte, src, im []float32) error {
	var s superblock
	s.start(im)
	for n := 0; len(src) >= 256; n++ {
		b := dst[:144]
		s.load(src, 256*n)
		d, dmin := s.searchOffset(&searchQ4_K)
		if err := putScales(b, d, dmin); err != nil {
			return blockError(n, 256, err)
		}
		s.recodeOffset(&searchQ4_K, f16At(b), f16At(b[2:]))
		putScaleMin(b[4:], s.scaleQ[:], s.minQ[:])
		for g := range 4 {
			lo, hi := s.codes[64*g:][:32], s.codes[64*g+32:][:32]
			for i := range 32 {
				b[16+32*g+i] = lo[i] | hi[i]<<4
			}
		}
		dst, src = dst[144:], src[256:]
	}
	return nil
}
