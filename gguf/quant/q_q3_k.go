package quant

// Q3_K: 256 elements in 110 bytes, 32 bytes of third bits @0, 64 bytes of 2-bit
// codes @32 in the order of Q2_K, 12 bytes of 6-bit scales @96, d half @108. Bit g
// of byte e mod 32 is the third bit of element e of group g: where it is clear, 4
// is taken from the code; value (d·(sc−32))·v (weights.md 2.2).

func decodeQ3_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 110 {
		d, s := f16At(src[108:]), src[96:108]
		for k := range 16 {
			dl := d * float32(scaleQ3_K(s, k)-32)
			at := k & 1 << 4
			q, high := src[32+k>>3<<5+at:][:16], src[at:][:16]
			y, shift, g := dst[16*k:][:16], k>>1&3<<1, k>>1
			for i, v := range q {
				y[i] = dl * float32(int32(v>>shift&3|high[i]>>g&1<<2)-4)
			}
		}
		dst, src = dst[256:], src[110:]
	}
}

// scaleQ3_K unpacks the 6-bit scale (0…63, 32 more than its value) of the 16
// elements of group k (0…15) from the 12 bytes at s.
func scaleQ3_K(s []byte, k int) int32 {
	return int32(s[k&7]>>(k>>3<<2)&15 | s[8+k&3]>>(k>>2<<1)&3<<4)
}

// encodeQ3_K searches a signed scale for each group of 16, a step for the scales,
// and rounds the elements again with what is stored of them (weights.md 3.2).
func encodeQ3_K(dst []byte, src, im []float32) error {
	var s superblock
	s.start(im)
	for n := 0; len(src) >= 256; n++ {
		b := dst[:110]
		s.load(src, 256*n)
		d := s.searchQ3_K()
		if err := putScale(b[108:], d); err != nil {
			return blockError(n, 256, err)
		}
		d = f16At(b[108:])
		clear(b[:32])
		clear(b[96:108])
		for k, q := range s.scaleQ {
			s.recodeSigned(k, d*float32(int32(q)-32), 4)
			b[96+k&7] |= q & 15 << (k >> 3 << 2)
			b[104+k&3] |= q >> 4 << (k >> 2 << 1)
		}
		for e, c := range s.codes {
			b[e&31] |= c >> 2 << (e >> 5)
		}
		put2(b[32:], &s.codes)
		dst, src = dst[110:], src[256:]
	}
	return nil
}

// searchQ3_K finds the scales of all groups and their codes, and returns the step.
func (s *superblock) searchQ3_K() float32 {
	if s.hasIm {
		s.weigh(2, 16)
	} else {
		s.weighSquare()
	}
	for k := range 16 {
		x, w, codes := s.x[16*k:][:16], s.w[16*k:][:16], s.codes[16*k:][:16]
		if s.hasIm {
			s.scale[k] = fitSigned(codes, x, w, 4)
		} else {
			s.scale[k] = fitThree(codes, x, w)
		}
	}
	if s.hasIm {
		return fitSigned(s.scaleQ[:], s.scale[:], s.sum[:], 32) * s.unit
	}
	m := s.largest(16)
	if m == 0 {
		s.scaleQ = [16]uint8{}
		return 0
	}
	inv := -32 / m
	for k, v := range s.scale {
		s.scaleQ[k] = uint8(clamp(rint(inv*v), -32, 31) + 32)
	}
	return 1 / inv * s.unit
}
