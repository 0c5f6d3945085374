package quant

import "encoding/binary"

// IQ1_S: 256 elements in 50 bytes, d half @0, low bytes of the codebook indices @2
// (32 bytes, 8 elements each), uint16[8] @34: for each group of 32 the high bits of
// the four indices (3 bits each), the scale s (bits 12 to 14) and the sign of the
// shift (bit 15); value (d·(2s+1))·(row ± 0.125) (weights.md 2.2).

// deltaIQ1 is what the IQ1 formats add to every value of a row.
const deltaIQ1 = 0.125

func decodeIQ1_S(dst []float32, src []byte) {
	rows := bookIQ1().Rows()
	for len(dst) >= 256 && len(src) >= 50 {
		d := f16At(src)
		for g := range 8 {
			h := int(binary.LittleEndian.Uint16(src[34+2*g:]))
			dl, delta := d*float32(2*int32(h>>12&7)+1), float32(deltaIQ1)
			if h>>15 != 0 {
				delta = -deltaIQ1
			}
			for t, i := range src[2+4*g:][:4] {
				shiftedRow(dst[32*g+8*t:], rows[8*(int(i)|h>>(3*t)&7<<8):], dl, delta)
			}
		}
		dst, src = dst[256:], src[50:]
	}
}

// shiftedRow sets the first 8 elements of y to d·(row + delta).
func shiftedRow(y []float32, row []int8, d, delta float32) {
	y, row = y[:8], row[:8]
	for x, v := range row {
		y[x] = d * (float32(v) + delta)
	}
}
