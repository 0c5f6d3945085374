package quant

import "encoding/binary"

// IQ2_XXS: 256 elements in 66 bytes, d half @0, then 8 bytes for each group of 32:
// four codebook indices and a uint32 with the signs of the four rows (7 bits each)
// and the scale of the group (the top 4 bits);
// value ((d·(0.5+s))·0.25·row)·sign (weights.md 2.2).

func decodeIQ2_XXS(dst []float32, src []byte) {
	rows := bookIQ2_XXS().Rows()
	for len(dst) >= 256 && len(src) >= 66 {
		d := f16At(src)
		for g := range 8 {
			q := src[2+8*g:][:8]
			a := binary.LittleEndian.Uint32(q[4:])
			db := scaleIQ2(d, a>>28)
			for t, i := range q[:4] {
				signedRow(dst[32*g+8*t:], rows[8*int(i):][:8], db, signs7(a>>(7*t)))
			}
		}
		dst, src = dst[256:], src[66:]
	}
}
