package quant

import "fmt"

// Codes are a block of 256 weights as whole numbers, for arithmetic with these: weight i is Scale[i/16]*Code[i] - Less[i/16],
// but for rounding.
type Codes struct {
	Code        [256]uint8
	Scale, Less [16]float32
}

// Read takes block n of src, which is of type Q4_K, Q5_K or Q6_K.
func (c *Codes) Read(t Type, src []byte, n int) error {
	b := src[n*int(t.BlockBytes()):][:t.BlockBytes()]
	switch t {
	case Q4_K:
		c.readPairs(b, b[16:], nil)
	case Q5_K:
		c.readPairs(b, b[48:], b[16:48])
	case Q6_K:
		d := f16At(b[208:])
		for i := range c.Scale {
			c.Scale[i] = d * float32(int8(b[192+i]))
			c.Less[i] = 32 * c.Scale[i]
		}
		for i := range c.Code {
			n, g, j := i/128, i/32%4, i%32
			low := b[64*n+32*(g&1)+j] >> (4 * (g >> 1)) & 15
			c.Code[i] = low | b[128+32*n+j]>>(2*g)&3<<4
		}
	default:
		return fmt.Errorf("blocks of type %v are not codes with a scale for each 16", t)
	}
	return nil
}

// readPairs takes a block with two groups of 32 in each 32 bytes of nibbles, and where codes have it the fifth bit of
// group g in bit g of high.
func (c *Codes) readPairs(b, nibbles, high []byte) {
	d, dmin := f16At(b), f16At(b[2:])
	for i := range c.Code {
		g, j := i/32, i%32
		if i%16 == 0 {
			scale, less := scaleMin(b[4:16], g)
			c.Scale[i/16], c.Less[i/16] = d*float32(scale), dmin*float32(less)
		}
		c.Code[i] = nibbles[32*(g/2)+j] >> (4 * (g & 1)) & 15
		if high != nil {
			c.Code[i] |= high[j] >> g & 1 << 4
		}
	}
}
