package quant

// Q6_K: 256 elements in 210 bytes, low nibbles ql[128] @0, high bit pairs
// qh[64] @128, int8 scales[16] @192, d half @208. Each half of 128 elements is
// four runs of 32 that share 64 bytes of ql and 32 of qh;
// value (d·scale)·(q−32) (weights.md 2.2).

func decodeQ6_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 210 {
		d := f16At(src[208:])
		for half := range 2 {
			// A scale covers 16 elements: take the runs in two pieces.
			for piece := range 2 {
				at := 16 * piece
				sc := src[192+8*half+piece:]
				s0 := d * float32(int8(sc[0]))
				s1 := d * float32(int8(sc[2]))
				s2 := d * float32(int8(sc[4]))
				s3 := d * float32(int8(sc[6]))
				la := src[64*half+at:][:16]
				lb := src[64*half+32+at:][:16]
				qh := src[128+32*half+at:][:16]
				y := dst[128*half+at:]
				y0, y1, y2, y3 := y[:16], y[32:48], y[64:80], y[96:112]
				for i, h := range qh {
					a, b := la[i], lb[i]
					y0[i] = s0 * float32(int32(a&15|h&3<<4)-32)
					y1[i] = s1 * float32(int32(b&15|h>>2&3<<4)-32)
					y2[i] = s2 * float32(int32(a>>4|h>>4&3<<4)-32)
					y3[i] = s3 * float32(int32(b>>4|h>>6<<4)-32)
				}
			}
		}
		dst, src = dst[256:], src[210:]
	}
}

// encodeQ6_K searches a signed scale for each group of 16 and rounds the elements
// again with what is stored of them. The largest scale gets code −128 (weights.md
// 3.2).
func encodeQ6_K(dst []byte, src, im []float32) error {
	var s superblock
	s.start(im)
	for n := 0; len(src) >= 256; n++ {
		b := dst[:210]
		s.load(src, 256*n)
		if s.hasIm {
			s.im.plain(s.w[:], s.at)
		} else {
			s.weighSquare()
		}
		for k := range 16 {
			s.scale[k] = fitSigned(s.codes[16*k:][:16], s.x[16*k:][:16], s.w[16*k:][:16], 32)
		}
		m := s.largest(16)
		if m == 0 {
			clear(b)
			dst, src = dst[210:], src[256:]
			continue
		}
		inv := -128 / m
		if err := putScale(b[208:], 1/inv*s.unit); err != nil {
			return blockError(n, 256, err)
		}
		d := f16At(b[208:])
		for k, v := range s.scale {
			q := min(127, rint(inv*v))
			b[192+k] = byte(int8(q))
			s.recodeSigned(k, d*q, 32)
		}
		for half := range 2 {
			ql, qh := b[64*half:][:64], b[128+32*half:][:32]
			c := s.codes[128*half:][:128]
			for l := range 32 {
				c0, c1, c2, c3 := c[l], c[l+32], c[l+64], c[l+96]
				ql[l] = c0&15 | c2<<4
				ql[l+32] = c1&15 | c3<<4
				qh[l] = c0>>4 | c1>>4<<2 | c2>>4<<4 | c3>>4<<6
			}
		}
		dst, src = dst[210:], src[256:]
	}
	return nil
}
