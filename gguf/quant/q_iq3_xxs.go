package quant

import "encoding/binary"

// IQ3_XXS: 256 elements in 98 bytes, d half @0, codebook indices @2 (64 bytes, 4
// elements each), uint32[8] @66 with the signs and the scale of each group of 32 as
// in IQ2_XXS; value ((d·(0.5+s))·0.5·row)·sign (weights.md 2.2).

func decodeIQ3_XXS(dst []float32, src []byte) {
	rows := bookIQ3_XXS().Rows()
	for len(dst) >= 256 && len(src) >= 98 {
		d := f16At(src)
		for g := range 8 {
			a := binary.LittleEndian.Uint32(src[66+4*g:])
			db := float32(d*(0.5+float32(int32(a>>28)))) * 0.5
			q := src[2+8*g:][:8]
			for t := range 4 {
				y, signs := dst[32*g+8*t:][:8], signs7(a>>(7*t))
				signedRow(y[:4], rows[4*int(q[2*t]):][:4], db, signs)
				signedRow(y[4:], rows[4*int(q[2*t+1]):][:4], db, signs>>4)
			}
		}
		dst, src = dst[256:], src[98:]
	}
}
