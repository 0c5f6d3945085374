package quant

// Q8_1: 32 elements in 36 bytes, d half @0, s half @2, q int8[32] @4; value q·d
// (weights.md 2.2). s, about d·Σq, is for products with other formats. It is a
// format of activations that no file stores.

func decodeQ8_1(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 36 {
		d := f16At(src)
		q, y := src[4:36], dst[:32]
		for i, v := range q {
			y[i] = float32(int8(v)) * d
		}
		dst, src = dst[32:], src[36:]
	}
}
