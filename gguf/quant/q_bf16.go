package quant

import (
	"encoding/binary"
	"math"
)

func decodeBF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

func encodeBF16(dst []byte, src, _ []float32) error {
	for i, x := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToBF16(x))
	}
	return nil
}
