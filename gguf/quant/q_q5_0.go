package quant

import "encoding/binary"

// Q5_0: 32 elements in 22 bytes, d half @0, qh uint32 @2, 16 bytes of nibbles
// @6 in the order of Q4_0. Bit e of qh is the fifth bit of element e; value
// (n−16)·d (weights.md 2.2).

func decodeQ5_0(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 22 {
		d, h := f16At(src), binary.LittleEndian.Uint32(src[2:])
		q, lo, hi := src[6:22], dst[:16], dst[16:32]
		for i, v := range q {
			lo[i] = float32(int32(uint32(v&15)|h&1<<4)-16) * d
			hi[i] = float32(int32(uint32(v>>4)|h>>16&1<<4)-16) * d
			h >>= 1
		}
		dst, src = dst[32:], src[22:]
	}
}

// encodeQ5_0 is as encodeQ4_0 with 32 codes.
func encodeQ5_0(dst []byte, src, im []float32) error {
	var s block32
	s.start(src, im)
	for n := 0; len(src) >= 32; n++ {
		b := dst[:22]
		if err := putScale(b, s.signed(src, n, 16)); err != nil {
			return blockError(n, 32, err)
		}
		binary.LittleEndian.PutUint32(b[2:], fifthBits(s.codes[:]))
		putNibbles(b[6:], s.codes[:])
		dst, src = dst[22:], src[32:]
	}
	return nil
}
