package quant

import "encoding/binary"

// IQ4_XS: 256 elements in 136 bytes, d half @0, high bits of the scales uint16 @2,
// low nibbles of the scales @4 (4 bytes), 128 bytes of nibbles @8. Each group of 32
// has 16 bytes in the order of Q4_0 and a 6-bit scale; value
// (d·(scale−32))·valuesIQ4[code] (weights.md 2.2).

func decodeIQ4_XS(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 136 {
		d, sh, sl := f16At(src), binary.LittleEndian.Uint16(src[2:]), src[4:8]
		for g := range 8 {
			s := int32(sl[g>>1]>>(g&1<<2)&15) | int32(sh>>(2*g)&3<<4)
			dl := d * float32(s-32)
			q, lo, hi := src[8+16*g:][:16], dst[32*g:][:16], dst[32*g+16:][:16]
			for i, v := range q {
				lo[i] = dl * float32(valuesIQ4[v&15])
				hi[i] = dl * float32(valuesIQ4[v>>4])
			}
		}
		dst, src = dst[256:], src[136:]
	}
}

// encodeIQ4_XS searches the scale of each group of 32 with fitIQ4, rounds the
// scales to 6 bits, and codes the groups with the rounded scales (weights.md 3.2).
func encodeIQ4_XS(dst []byte, src, im []float32) error {
	var s superblock
	s.start(im)
	for n := 0; len(src) >= 256; n++ {
		b := dst[:136]
		s.load(src, 256*n)
		if s.hasIm {
			s.weigh(2, 32)
		} else {
			s.weighSquare()
		}
		for g := range 8 {
			s.scale[g] = fitIQ4(s.x[32*g:][:32], s.w[32*g:][:32])
		}
		d := -s.largest(8) / 32
		if err := putScale(b, d*s.unit); err != nil {
			return blockError(n, 256, err)
		}
		clear(b[2:8])
		inv, high := inverse(d), uint16(0)
		for g := range 8 {
			level := clamp(rint(inv*s.scale[g]), -32, 31)
			codes := s.codes[32*g:][:32]
			codeIQ4(codes, s.x[32*g:][:32], inverse(float32(d*level)))
			putNibbles(b[8+16*g:], codes)
			q := uint8(level + 32)
			b[4+g>>1] |= q & 15 << (g & 1 << 2)
			high |= uint16(q>>4) << (2 * g)
		}
		binary.LittleEndian.PutUint16(b[2:], high)
		dst, src = dst[136:], src[256:]
	}
	return nil
}
