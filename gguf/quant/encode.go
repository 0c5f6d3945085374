package quant

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

var errNotFinite = errors.New("a value is not finite")

func scaleError(d float32) error {
	return fmt.Errorf("the scale %g is beyond the half float range", d)
}

// blockError names the elements of block n, of size elements each.
func blockError(n, size int, err error) error {
	return fmt.Errorf("elements %d to %d: %w", n*size, (n+1)*size-1, err)
}

// extremes returns the largest magnitude of x and the first element that has it.
func extremes(x []float32) (amax, signed float32, err error) {
	for _, v := range x {
		a := math.Float32frombits(math.Float32bits(v) &^ (1 << 31))
		if !(a <= math.MaxFloat32) {
			return 0, 0, errNotFinite
		}
		if a > amax {
			amax, signed = a, v
		}
	}
	return amax, signed, nil
}

// inverse returns the factor that turns values into codes: 1/d, or 0 for an
// all-zero block and for a d so small that 1/d overflows. Its codes are then
// those of 0, which is what such a d becomes as a half anyway.
func inverse(d float32) float32 {
	inv := 1 / d
	if d == 0 || math.IsInf(float64(inv), 0) {
		return 0
	}
	return inv
}

// putScale stores the scale of a block as a half in b[0:2].
func putScale(b []byte, d float32) error {
	h := F32ToF16(d)
	if h&0x7c00 == 0x7c00 {
		return scaleError(d)
	}
	binary.LittleEndian.PutUint16(b, h)
	return nil
}
