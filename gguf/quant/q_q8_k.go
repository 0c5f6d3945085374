package quant

import (
	"encoding/binary"
	"math"
)

// Q8_K: 256 elements in 292 bytes, d float32 @0, q int8[256] @4, int16[16] @260 with
// the sums of 16 q each; value d·q (weights.md 2.2). It is a format of activations
// that no file stores.

func decodeQ8_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 292 {
		d := math.Float32frombits(binary.LittleEndian.Uint32(src))
		q, y := src[4:260], dst[:256]
		for i, v := range q {
			y[i] = d * float32(int8(v))
		}
		dst, src = dst[256:], src[292:]
	}
}
