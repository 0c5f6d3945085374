package quant

import "encoding/binary"

// Q5_1: 32 elements in 24 bytes, d half @0, m half @2, qh uint32 @4, 16 bytes of
// nibbles @8 in the order of Q4_0. Bit e of qh is the fifth bit of element e;
// value n·d + m (weights.md 2.2).

func decodeQ5_1(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 24 {
		d, m, h := f16At(src), f16At(src[2:]), binary.LittleEndian.Uint32(src[4:])
		q, lo, hi := src[8:24], dst[:16], dst[16:32]
		// The conversions keep a compiler from fusing the product with
		// the sum.
		for i, v := range q {
			lo[i] = float32(float32(int32(uint32(v&15)|h&1<<4))*d) + m
			hi[i] = float32(float32(int32(uint32(v>>4)|h>>16&1<<4))*d) + m
			h >>= 1
		}
		dst, src = dst[32:], src[24:]
	}
}

// encodeQ5_1 is as encodeQ4_1 with 32 codes.
func encodeQ5_1(dst []byte, src, im []float32) error {
	var s block32
	s.start(src, im)
	for n := 0; len(src) >= 32; n++ {
		b := dst[:24]
		d, m := s.offset(src, n, 31)
		if err := putScales(b, d, m); err != nil {
			return blockError(n, 32, err)
		}
		binary.LittleEndian.PutUint32(b[4:], fifthBits(s.codes[:]))
		putNibbles(b[8:], s.codes[:])
		dst, src = dst[24:], src[32:]
	}
	return nil
}
