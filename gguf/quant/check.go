package quant

import (
	"encoding/binary"
	"fmt"
	"math"
)

// half is a half float field that every block of a format has.
type half struct {
	name   string
	offset int // in bytes, from the start of a block
}

// halves lists the half float fields of the formats that have some. The formats
// with other numbers (F32, F16, BF16, F64, Q8_K, IQ1_M, MXFP4) are read by [Check]
// itself; the integers and NVFP4 have only valid bytes.
var halves = [...][]half{
	Q4_0:    {{"d", 0}},
	Q4_1:    {{"d", 0}, {"m", 2}},
	Q5_0:    {{"d", 0}},
	Q5_1:    {{"d", 0}, {"m", 2}},
	Q8_0:    {{"d", 0}},
	Q8_1:    {{"d", 0}, {"s", 2}},
	Q2_K:    {{"d", 80}, {"dmin", 82}},
	Q3_K:    {{"d", 108}},
	Q4_K:    {{"d", 0}, {"dmin", 2}},
	Q5_K:    {{"d", 0}, {"dmin", 2}},
	Q6_K:    {{"d", 208}},
	IQ2_XXS: {{"d", 0}},
	IQ2_XS:  {{"d", 0}},
	IQ3_XXS: {{"d", 0}},
	IQ1_S:   {{"d", 0}},
	IQ4_NL:  {{"d", 0}},
	IQ3_S:   {{"d", 0}},
	IQ2_S:   {{"d", 0}},
	IQ4_XS:  {{"d", 0}},
	TQ1_0:   {{"d", 52}},
	TQ2_0:   {{"d", 64}},
	Q1_0:    {{"d", 0}},
	Q2_0:    {{"d", 0}},
}

// Check reports the first block of row, which is one or more rows of type t, that
// holds something no quantiser writes (weights.md 2.2, validation): a scale or a
// float that is an infinity or not a number, or the exponent 255 of MXFP4. The
// error gives the number of the block, or of the element for a type without
// blocks, and the field; it is also an error if row is not whole blocks.
//
// Blocks that pass decode to finite numbers, but for MXFP4 with an exponent above
// 252 and Q8_K with a huge d, whose products may be beyond float32.
func Check(t Type, row []byte) error {
	size := t.BlockBytes()
	if size == 0 {
		return fmt.Errorf("check: %v is unknown", t)
	}
	if len(row)%size != 0 {
		return fmt.Errorf("check: %v: %d bytes are not whole blocks of %d bytes", t, len(row), size)
	}
	le := binary.LittleEndian
	failed := func(at int, field string, value any) error {
		what := "block"
		if t.BlockSize() == 1 {
			what = "element"
		}
		return fmt.Errorf("check: %v: %s %d: %s is %v", t, what, at/size, field, value)
	}
	switch t {
	case F32, Q8_K:
		field := "the value"
		if t == Q8_K {
			field = "the scale d"
		}
		for at := 0; at < len(row); at += size {
			if v := le.Uint32(row[at:]); v&0x7f800000 == 0x7f800000 {
				return failed(at, field, math.Float32frombits(v))
			}
		}
	case F64:
		for at := 0; at < len(row); at += size {
			if v := math.Float64frombits(le.Uint64(row[at:])); v-v != 0 {
				return failed(at, "the value", v)
			}
		}
	case F16:
		for at := 0; at < len(row); at += size {
			if v := le.Uint16(row[at:]); v&0x7c00 == 0x7c00 {
				return failed(at, "the value", F16ToF32(v))
			}
		}
	case BF16:
		for at := 0; at < len(row); at += size {
			if v := le.Uint16(row[at:]); v&0x7f80 == 0x7f80 {
				return failed(at, "the value", BF16ToF32(v))
			}
		}
	case IQ1_M:
		for at := 0; at < len(row); at += size {
			if v := scaleIQ1_M(row[at+48:]); v&0x7c00 == 0x7c00 {
				return failed(at, "the scale d", F16ToF32(v))
			}
		}
	case MXFP4:
		for at := 0; at < len(row); at += size {
			if row[at] == 255 {
				return failed(at, "the exponent E", 255)
			}
		}
	default:
		if int(t) >= len(halves) {
			return nil
		}
		for at := 0; at < len(row); at += size {
			for _, h := range halves[t] {
				if v := le.Uint16(row[at+h.offset:]); v&0x7c00 == 0x7c00 {
					return failed(at, "the scale "+h.name, F16ToF32(v))
				}
			}
		}
	}
	return nil
}
