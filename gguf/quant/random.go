package quant

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// Random fills dst, whole blocks, with random codes whose values are of about the given size at most. It is for types that have
// half float scales and, but for the search that makes good codes, nothing to quantise: those of codebooks among them.
func Random(t Type, dst []byte, r *rand.Rand, size float32) error {
	bytes := t.BlockBytes()
	if t != IQ1_M && (int(t) >= len(halves) || len(halves[t]) == 0) {
		return fmt.Errorf("random blocks: %v has no half float scales", t)
	}
	if len(dst)%bytes != 0 {
		return fmt.Errorf("random blocks: %v: %d bytes are not whole blocks of %d bytes", t, len(dst), bytes)
	}
	// Codes times the scales within blocks are up to some hundreds, and mostly less than that.
	h := F32ToF16(size / 64)
	for at := 0; at < len(dst); at += bytes {
		block := dst[at : at+bytes]
		for i := range block {
			block[i] = byte(r.Uint32())
		}
		if t == IQ1_M { // a nibble at the top of each of four words
			for i := range 4 {
				block[49+2*i] = block[49+2*i]&15 | byte(h>>(4*i))<<4
			}
			continue
		}
		for _, f := range halves[t] {
			binary.LittleEndian.PutUint16(block[f.offset:], h)
		}
	}
	return nil
}
