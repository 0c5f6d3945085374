package quant

// Q2_K: 256 elements in 84 bytes, 16 bytes of a scale (low nibble) and a minimum
// (high nibble) for 16 elements each @0, 64 bytes of 2-bit codes @16, d half @80,
// dmin half @82. Each half of 128 elements is four runs of 32 that share 32 bytes
// of codes, run j in bits 2j and 2j+1; value (d·sc)·c − dmin·m (weights.md 2.2).

func decodeQ2_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 84 {
		d, dmin := f16At(src[80:]), f16At(src[82:])
		for k, s := range src[:16] {
			dl, m := d*float32(int32(s&15)), float32(dmin*float32(int32(s>>4)))
			q := src[16+k>>3<<5+k&1<<4:][:16]
			y, shift := dst[16*k:][:16], k>>1&3<<1
			// The conversion keeps a compiler from fusing the product
			// with the subtraction.
			for i, v := range q {
				y[i] = float32(dl*float32(int32(v>>shift&3))) - m
			}
		}
		dst, src = dst[256:], src[84:]
	}
}

// searchQ2_K is the search of weights.md 3.2.
var searchQ2_K = offsetFormat{
	size: 16, top: 3, levels: 15, plain: ladder{start: -0.5, step: 0.1, count: 15, absolute: true}, spread: 1,
}

// encodeQ2_K searches a scale and a minimum for each group of 16 and rounds the
// elements again with what is stored of them (weights.md 3.2).
func encodeQ2_K(dst []byte, src, im []float32) error {
	var s superblock
	s.start(im)
	for n := 0; len(src) >= 256; n++ {
		b := dst[:84]
		s.load(src, 256*n)
		d, dmin := s.searchOffset(&searchQ2_K)
		if err := putScales(b[80:], d, dmin); err != nil {
			return blockError(n, 256, err)
		}
		s.recodeOffset(&searchQ2_K, f16At(b[80:]), f16At(b[82:]))
		for k := range 16 {
			b[k] = s.scaleQ[k] | s.minQ[k]<<4
		}
		put2(b[16:], &s.codes)
		dst, src = dst[84:], src[256:]
	}
	return nil
}
