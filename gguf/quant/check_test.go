package quant

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestCheckFields puts something bad into every field and expects its name and
// the number of the block.
func TestCheckFields(t *testing.T) {
	half := []byte{0x00, 0xfc} // -Inf
	for _, tt := range []struct {
		typ    Type
		offset int
		bytes  []byte
		want   string
	}{
		{F32, 0, []byte{0, 0, 0x80, 0x7f}, "element 5: the value is +Inf"},
		{F32, 0, []byte{1, 0, 0x80, 0x7f}, "element 5: the value is NaN"},
		{F16, 0, half, "element 5: the value is -Inf"},
		{BF16, 0, []byte{0xc0, 0x7f}, "element 5: the value is NaN"},
		{F64, 0, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x7f}, "element 5: the value is +Inf"},
		{Q4_0, 0, half, "block 5: the scale d is -Inf"},
		{Q4_1, 0, half, "block 5: the scale d is -Inf"},
		{Q4_1, 2, half, "block 5: the scale m is -Inf"},
		{Q5_0, 0, half, "block 5: the scale d is -Inf"},
		{Q5_1, 0, half, "block 5: the scale d is -Inf"},
		{Q5_1, 2, half, "block 5: the scale m is -Inf"},
		{Q8_0, 0, []byte{0x01, 0x7c}, "block 5: the scale d is NaN"},
		{Q8_1, 0, half, "block 5: the scale d is -Inf"},
		{Q8_1, 2, half, "block 5: the scale s is -Inf"},
		{Q2_K, 80, half, "block 5: the scale d is -Inf"},
		{Q2_K, 82, half, "block 5: the scale dmin is -Inf"},
		{Q3_K, 108, half, "block 5: the scale d is -Inf"},
		{Q4_K, 0, half, "block 5: the scale d is -Inf"},
		{Q4_K, 2, half, "block 5: the scale dmin is -Inf"},
		{Q5_K, 0, half, "block 5: the scale d is -Inf"},
		{Q5_K, 2, half, "block 5: the scale dmin is -Inf"},
		{Q6_K, 208, half, "block 5: the scale d is -Inf"},
		{Q8_K, 0, []byte{0, 0, 0x80, 0xff}, "block 5: the scale d is -Inf"},
		{IQ2_XXS, 0, half, "block 5: the scale d is -Inf"},
		{IQ2_XS, 0, half, "block 5: the scale d is -Inf"},
		{IQ3_XXS, 0, half, "block 5: the scale d is -Inf"},
		{IQ1_S, 0, half, "block 5: the scale d is -Inf"},
		{IQ4_NL, 0, half, "block 5: the scale d is -Inf"},
		{IQ3_S, 0, half, "block 5: the scale d is -Inf"},
		{IQ2_S, 0, half, "block 5: the scale d is -Inf"},
		{IQ4_XS, 0, half, "block 5: the scale d is -Inf"},
		{IQ1_M, 48, []byte{0, 0, 0, 0, 0, 0xc0, 0, 0xf0}, "block 5: the scale d is -Inf"},
		{TQ1_0, 52, half, "block 5: the scale d is -Inf"},
		{TQ2_0, 64, half, "block 5: the scale d is -Inf"},
		{MXFP4, 0, []byte{255}, "block 5: the exponent E is 255"},
		{Q1_0, 0, half, "block 5: the scale d is -Inf"},
		{Q2_0, 0, half, "block 5: the scale d is -Inf"},
	} {
		size := tt.typ.BlockBytes()
		row := make([]byte, 7*size)
		if err := Check(tt.typ, row); err != nil {
			t.Errorf("zeros: %v", err)
		}
		copy(row[5*size+tt.offset:], tt.bytes)
		if err := Check(tt.typ, row); err == nil || !strings.HasSuffix(err.Error(), tt.typ.String()+": "+tt.want) {
			t.Errorf("%v: got %v, want %q", tt.typ, err, tt.want)
		}
	}
	for _, tt := range []struct {
		typ  Type
		n    int
		want string
	}{
		{Type(4), 18, "type 4 is unknown"},
		{Type(1 << 31), 18, "is unknown"},
		{Q4_0, 17, "not whole blocks of 18 bytes"},
		{I8, 3, ""},
		{NVFP4, 72, ""},
		{Q4_0, 0, ""},
	} {
		row := make([]byte, tt.n)
		for i := range row {
			row[i] = 0xff
		}
		err := Check(tt.typ, row)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, %d bytes: got %v, want %q", tt.typ, tt.n, err, tt.want)
		}
	}
}

// TestCheckMatchesDecoder: the block that Check names is the first one of random
// bytes that does not decode to finite values.
func TestCheckMatchesDecoder(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	for _, typ := range Types() {
		if !typ.CanDequantize() {
			continue
		}
		named := 0
		for range 300 {
			row := make([]byte, 8*typ.BlockBytes())
			for i := range row {
				row[i] = byte(rng.Uint32())
			}
			err := Check(typ, row)
			if err != nil {
				named++
			}
			if what := checkAgainstDecoder(typ, row, err); what != "" {
				t.Errorf("%v: %s (Check: %v)", typ, what, err)
				break
			}
		}
		if named == 0 && typ != NVFP4 {
			t.Errorf("%v: no bad block in the test", typ)
		}
	}
}

// checkAgainstDecoder says what is wrong with err, the result of Check for row,
// which is whole blocks of a type that decodes.
func checkAgainstDecoder(typ Type, row []byte, err error) string {
	n, size := typ.BlockSize(), typ.BlockBytes()
	want := -1 // the first bad block
	y := make([]float32, n)
	for i := 0; i < len(row)/size && want < 0; i++ {
		b := row[i*size:][:size]
		switch typ {
		case MXFP4: // the exponents 253 and 254 are valid but may overflow
			if b[0] == 255 {
				want = i
			}
			if b[0] > 252 {
				continue
			}
		case Q8_K: // as is a huge d
			d := math.Float32frombits(binary.LittleEndian.Uint32(b))
			if d-d != 0 {
				want = i
			}
			if d > math.MaxFloat32/128 || d < -math.MaxFloat32/128 {
				continue
			}
		case Q8_1: // s is not part of the values
			if s := f16At(b[2:]); s-s != 0 {
				want = i
			}
		}
		if e := Dequantize(typ, y, b); e != nil {
			return e.Error()
		}
		for _, v := range y {
			if v-v != 0 {
				want = i
			}
		}
	}
	switch {
	case want < 0 && err != nil:
		return "refused, but all values are finite"
	case want >= 0 && err == nil:
		return fmt.Sprintf("block %d is bad, but passes", want)
	case want >= 0 && !strings.Contains(err.Error(), fmt.Sprintf(" %d: ", want)):
		return fmt.Sprintf("the first bad block is %d", want)
	}
	return ""
}
