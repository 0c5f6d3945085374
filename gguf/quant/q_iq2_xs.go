package quant

import "encoding/binary"

// IQ2_XS: 256 elements in 74 bytes, d half @0, uint16[32] @2, 8 bytes of 4-bit
// scales @66. A uint16 has the codebook index (9 bits) and the signs (7 bits) of
// 8 elements; the low nibble of scale byte g is for the first 16 elements of group
// g and the high nibble for the rest; value as IQ2_XXS (weights.md 2.2).

func decodeIQ2_XS(dst []float32, src []byte) {
	rows := bookIQ2_XS().Rows()
	for len(dst) >= 256 && len(src) >= 74 {
		d := f16At(src)
		for g, s := range src[66:74] {
			db := [2]float32{scaleIQ2(d, uint32(s&15)), scaleIQ2(d, uint32(s>>4))}
			for t := range 4 {
				w := binary.LittleEndian.Uint16(src[2+8*g+2*t:])
				signedRow(dst[32*g+8*t:], rows[8*int(w&511):][:8], db[t>>1], signs7(uint32(w>>9)))
			}
		}
		dst, src = dst[256:], src[74:]
	}
}
