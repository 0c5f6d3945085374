package quant

import (
	"encoding/binary"
	"math"
)

func decodeF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		h := uint32(binary.LittleEndian.Uint16(src[2*i:]))
		// The common case in line, zero and subnormals and the rest by call.
		if em := h & 0x7fff; em-0x0400 < 0x7800 {
			dst[i] = math.Float32frombits(h&0x8000<<16 | (em<<13 + 112<<23))
		} else {
			dst[i] = F16ToF32(uint16(h))
		}
	}
}

// encodeF16 keeps infinities and NaNs, and turns what a half cannot hold into
// an infinity.
func encodeF16(dst []byte, src, _ []float32) error {
	for i, x := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToF16(x))
	}
	return nil
}
