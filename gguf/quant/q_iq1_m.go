package quant

import "encoding/binary"

// IQ1_M: 256 elements in 56 bytes, low bytes of the codebook indices @0 (32 bytes,
// 8 elements each), nibbles @32 (16 bytes, one for each 8 elements: the high bits of
// the index and, in bit 3, the sign of the shift), uint16[4] @48: in each the 3-bit
// scales of four times 16 elements and, in the top 4 bits, a quarter of the half d;
// value (d·(2s+1))·(row ± 0.125) (weights.md 2.2).

func decodeIQ1_M(dst []float32, src []byte) {
	rows := bookIQ1().Rows()
	for len(dst) >= 256 && len(src) >= 56 {
		d := F16ToF32(scaleIQ1_M(src[48:56]))
		for k := range 16 {
			s := binary.LittleEndian.Uint16(src[48+k>>2<<1:]) >> (3 * (k & 3)) & 7
			dl := d * float32(2*int32(s)+1)
			h := int(src[32+k])
			for v := range 2 {
				nib := h >> (4 * v) & 15
				delta := float32(deltaIQ1)
				if nib&8 != 0 {
					delta = -deltaIQ1
				}
				i := int(src[2*k+v]) | nib&7<<8
				shiftedRow(dst[16*k+8*v:], rows[8*i:], dl, delta)
			}
		}
		dst, src = dst[256:], src[56:]
	}
}

// scaleIQ1_M puts together the half d from the 8 bytes at s.
func scaleIQ1_M(s []byte) uint16 {
	_ = s[7]
	return uint16(s[1]>>4) | uint16(s[3]>>4)<<4 | uint16(s[5]>>4)<<8 | uint16(s[7]>>4)<<12
}
