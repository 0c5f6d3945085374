package quant

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// quantised is a line of the reference quantiser's results.
type quantised struct {
	Type, Input, Mode, File string
	Relative                float64 `json:"rel_rmse"`
	Weighted                float64 `json:"imatrix_weighted_rel_rmse"`
}

// relativeError returns ‖y−x‖/‖x‖, each square times its importance if there is one.
func relativeError(y, x, im []float32) float64 {
	var e, n float64
	for i := range x {
		w := 1.0
		if im != nil {
			w = float64(im[i%len(im)])
		}
		d := float64(y[i]) - float64(x[i])
		e += w * d * d
		n += w * float64(x[i]) * float64(x[i])
	}
	if n == 0 {
		return math.Sqrt(e)
	}
	return math.Sqrt(e / n)
}

// encodeRows encodes x row by row and returns the bytes and what they decode to.
func encodeRows(t testing.TB, typ Type, x []float32, columns int, im []float32) ([]byte, []float32) {
	t.Helper()
	row, err := typ.RowBytes(uint64(columns))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, int(row)*len(x)/columns)
	for i := range len(x) / columns {
		if err := QuantizeRow(typ, b[i*int(row):][:row], x[i*columns:][:columns], im); err != nil {
			t.Fatal(err)
		}
	}
	y := make([]float32, len(x))
	if err := Dequantize(typ, y, b); err != nil {
		t.Fatal(err)
	}
	return b, y
}

// TestQuantize compares every encoder with the bytes of the reference quantiser. The
// committed outlier input is the first row of the full one.
func TestQuantize(t *testing.T) {
	for _, dir := range vectorDirs() {
		for _, typ := range Types() {
			if !typ.CanQuantize() || typ == F32 {
				continue
			}
			for _, input := range []string{"edge", "gauss", "outlier"} {
				for _, mode := range []string{"plain", "imat"} {
					t.Run(fmt.Sprintf("%s/%v/%s/%s", dir, typ, input, mode), func(t *testing.T) {
						x := toFloats(read(t, dir, "input."+input+".f32.bin"))
						want := read(t, dir, fmt.Sprintf("q.%v.%s.%s.bin", typ, input, mode))
						var im []float32
						if mode == "imat" {
							im = toFloats(read(t, dir, "imatrix.f32.bin"))
						}
						got, y := encodeRows(t, typ, x, columns, im)
						compareBlocks(t, typ, got, want, y)
					})
				}
			}
		}
	}
}

// columns is the length of a row of the reference inputs.
const columns = 2048

// compareBlocks compares encoded blocks with the reference's; y is what got
// decodes to.
func compareBlocks(t *testing.T, typ Type, got, want []byte, y []float32) {
	t.Helper()
	z := make([]float32, len(y))
	if err := Dequantize(typ, z, want); err != nil {
		t.Fatal(err)
	}
	size, n, bad := typ.BlockBytes(), typ.BlockSize(), 0
	for i := range len(want) / size {
		g, w := got[i*size:][:size], want[i*size:][:size]
		switch {
		case bytes.Equal(g, w):
		case slices.Equal(y[i*n:][:n], z[i*n:][:n]) && y[i*n] == 0 && n > 1:
			// The stored scale is 0: the codes do not matter.
		case typ == NVFP4 && slices.Contains(w[:4], 7):
			// The reference does not round up to the smallest normal
			// scale (see toUE4M3).
		default:
			if bad++; bad < 4 {
				t.Errorf("block %d: got %x, want %x", i, g, w)
			}
		}
	}
	if bad > 0 {
		t.Errorf("%d of %d blocks differ", bad, len(want)/size)
	}
}

// TestQuantizeError holds every encoder to the error of the reference quantiser.
func TestQuantizeError(t *testing.T) {
	dir := oracle("quant")
	if dir == "" {
		t.Skip("no reference vectors: set CALDERA_ORACLE")
	}
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index struct{ Quantised []quantised }
	if err := json.Unmarshal(data, &index); err != nil {
		t.Fatal(err)
	}
	im := toFloats(read(t, dir, "imatrix.f32.bin"))
	ran := 0
	for _, q := range index.Quantised {
		typ, err := ParseType(q.Type)
		if err != nil {
			t.Fatal(err)
		}
		if !typ.CanQuantize() {
			continue
		}
		ran++
		t.Run(fmt.Sprintf("%v/%s/%s", typ, q.Input, q.Mode), func(t *testing.T) {
			x := toFloats(read(t, dir, "input."+q.Input+".f32.bin"))
			var v []float32
			if q.Mode == "imat" {
				v = im
			}
			_, y := encodeRows(t, typ, x, columns, v)
			got, want := relativeError(y, x, v), q.Relative
			if v != nil {
				want = q.Weighted
			}
			t.Logf("error %.6g, %.4f of the reference's", got, got/want)
			if !(got <= 1.01*want) {
				t.Errorf("error %.6g, want at most 1.01 × %.6g", got, want)
			}
		})
	}
	if ran < 40 {
		t.Errorf("only %d cases ran", ran)
	}
}

// encoders returns the block formats that can be written.
func encoders() []Type {
	return slices.DeleteFunc(Types(), func(t Type) bool { return !t.CanQuantize() || t.BlockSize() == 1 })
}

// steps bounds the error of an element without importance: relative to the
// largest magnitude of its block, and absolute where the scales are subnormal
// halves, in units of 2^-24.
var steps = map[Type]struct{ relative, absolute float64 }{
	Q4_0:   {1. / 8, 8},
	Q4_1:   {1. / 15, 16},
	Q5_0:   {1. / 16, 16},
	Q5_1:   {1. / 31, 32},
	Q8_0:   {0.5 / 127, 127},
	Q2_K:   {2. / 3, 60},
	Q3_K:   {1. / 4, 128},
	Q4_K:   {2. / 15, 1000},
	Q5_K:   {2. / 31, 2000},
	Q6_K:   {2. / 32, 4100},
	IQ4_NL: {12.5 / 113, 127},
	IQ4_XS: {16. / 113, 4100},
	MXFP4:  {1. / 4, 0x1p-104},
	NVFP4:  {0.18, 1 << 17}, // elements below 6·2^-10 may have scale 0
	TQ1_0:  {1. / 2, 1},
	TQ2_0:  {1. / 2, 1},
	Q2_0:   {1. / 2, 1},
	Q1_0:   {1, 1},
}

// patterns are rows of 512 elements.
func patterns() map[string][]float32 {
	r := rand.New(rand.NewPCG(7, 7))
	make512 := func(f func(i int) float64) []float32 {
		x := make([]float32, 512)
		for i := range x {
			x[i] = float32(f(i))
		}
		return x
	}
	normal := func(scale float64) []float32 {
		return make512(func(int) float64 { return scale * r.NormFloat64() })
	}
	p := map[string][]float32{
		"zero":          make512(func(int) float64 { return 0 }),
		"negative zero": make512(func(int) float64 { return math.Copysign(0, -1) }),
		"positive":      make512(func(int) float64 { return 0.3 }),
		"negative":      make512(func(int) float64 { return -0.3 }),
		"alternating":   make512(func(i int) float64 { return 0.1 * float64(1-2*(i&1)) }),
		"ramp":          make512(func(i int) float64 { return float64(i)/100 - 1 }),
		"all above":     make512(func(int) float64 { return 1 + r.Float64() }),
		"all below":     make512(func(int) float64 { return -1 - r.Float64() }),
		"spread":        make512(func(i int) float64 { return r.NormFloat64() * math.Pow(10, float64(i/16%32-28)) }),
		"large block":   make512(func(i int) float64 { return r.NormFloat64() * float64(1+i/256*9999) }),
		"normal":        normal(0.02),
		"huge":          normal(1e4),
		"half step":     normal(1e-6),
		"tiny":          normal(1e-9),
		"tinier":        normal(1e-25),
		"least normal":  normal(5e-39),
		"subnormal":     make512(func(i int) float64 { return math.SmallestNonzeroFloat32 * float64(i%13-6) }),
	}
	for _, at := range []int{0, 31, 77, 255, 511} {
		for _, v := range []float64{-3.25, 2} {
			p[fmt.Sprintf("%g at %d", v, at)] = make512(func(i int) float64 {
				if i == at {
					return v
				}
				return 0
			})
		}
	}
	return p
}

// TestQuantizeStep checks that no element moves by more than its step.
func TestQuantizeStep(t *testing.T) {
	for name, x := range patterns() {
		for _, typ := range encoders() {
			t.Run(fmt.Sprintf("%v/%s", typ, name), func(t *testing.T) {
				_, y := encodeRows(t, typ, x, len(x), nil)
				n := typ.BlockSize()
				for i := range x {
					amax, _ := extremes(x[i/n*n:][:n])
					if typ == NVFP4 && amax > 448*6 {
						t.Skip("beyond the format")
					}
					// 1/1000 is for the rounding of scales to halves.
					limit := (steps[typ].relative+1e-3)*float64(amax) + steps[typ].absolute*0x1p-24
					if amax == 0 {
						limit = 0
					}
					if e := math.Abs(float64(y[i]) - float64(x[i])); !(e <= limit) {
						t.Fatalf("element %d: %g became %g, by %.3g of the block's largest %g; the limit is %.3g",
							i, x[i], y[i], e/float64(amax), amax, limit/float64(amax))
					}
				}
			})
		}
	}
}

// TestQuantizeAgain encodes what was decoded: these formats give it back.
func TestQuantizeAgain(t *testing.T) {
	for name, x := range patterns() {
		for _, typ := range []Type{Q8_0, Q4_0, Q5_0, MXFP4, TQ1_0, TQ2_0, Q1_0, Q2_0} {
			_, y := encodeRows(t, typ, x, len(x), nil)
			_, z := encodeRows(t, typ, y, len(x), nil)
			for i := range y {
				if y[i] != z[i] {
					t.Errorf("%v of %s: element %d: %g became %g, then %g", typ, name, i, x[i], y[i], z[i])
					break
				}
			}
		}
	}
}

// usesImportance is the set of formats whose encoders make use of importance.
var usesImportance = []Type{Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS}

// TestQuantizeImportance checks that importance lowers the error of what is
// important, that only its ratios matter and that no vector of them is a problem.
func TestQuantizeImportance(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	x, im := make([]float32, 4096), make([]float32, 4096)
	for i := range x {
		x[i] = float32(r.NormFloat64() * 0.02)
		im[i] = float32(math.Exp(1.5 * r.NormFloat64()))
	}
	scaled := func(v []float32, f float32) []float32 {
		s := slices.Clone(v)
		for i := range s {
			s[i] *= f
		}
		return s
	}
	for _, typ := range encoders() {
		plain, y := encodeRows(t, typ, x, len(x), nil)
		b, z := encodeRows(t, typ, x, len(x), im)
		if !slices.Contains(usesImportance, typ) {
			if !bytes.Equal(plain, b) {
				t.Errorf("%v: importance changes the bytes", typ)
			}
			continue
		}
		before, after := relativeError(y, x, im), relativeError(z, x, im)
		t.Logf("%v: weighted error %.4f, with importance %.4f", typ, before, after)
		if !(after < 0.95*before) {
			t.Errorf("%v: weighted error %.4f, with importance %.4f", typ, before, after)
		}
		for _, f := range []float32{0x1p-90, 0x1p-3, 0x1p60, 0x1p110} {
			if got, _ := encodeRows(t, typ, x, len(x), scaled(im, f)); !bytes.Equal(got, b) {
				t.Errorf("%v: importance times %g gives other bytes", typ, f)
			}
		}
		// Zero rows of importance say nothing, so any sensible scale will do.
		for name, x := range patterns() {
			for what, im := range map[string][]float32{
				"zero":    make([]float32, len(x)),
				"one":     append(make([]float32, 77), append([]float32{1}, make([]float32, len(x)-78)...)...),
				"half":    append(make([]float32, len(x)/2), im[:len(x)/2]...),
				"largest": scaled(append([]float32{1}, make([]float32, len(x)-1)...), math.MaxFloat32),
				"tiniest": scaled(slices.Repeat([]float32{1}, len(x)), math.SmallestNonzeroFloat32),
			} {
				_, y := encodeRows(t, typ, x, len(x), im)
				if i := slices.IndexFunc(y, func(v float32) bool { return v-v != 0 }); i >= 0 {
					t.Errorf("%v of %s with importance %s: element %d is %g", typ, name, what, i, y[i])
				}
				if what != "zero" || name != "normal" {
					continue
				}
				_, z := encodeRows(t, typ, x, len(x), nil)
				if e, p := relativeError(y, x, nil), relativeError(z, x, nil); !(e <= 1.3*p) {
					t.Errorf("%v with importance zero: error %g, without %g", typ, e, p)
				}
			}
		}
	}
}

// TestQuantizeRows checks that rows are encoded on their own, into exactly their
// bytes and without allocating.
func TestQuantizeRows(t *testing.T) {
	p := patterns()
	x := slices.Concat(p["normal"], p["ramp"], p["zero"], p["huge"])
	for _, typ := range Types() {
		if !typ.CanQuantize() {
			continue
		}
		want, _ := encodeRows(t, typ, x, 512, nil)
		got := bytes.Repeat([]byte{0xa5}, len(want)+1)
		if err := Quantize(typ, got[:len(want)], x); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[:len(want)], want) {
			t.Errorf("%v: four rows at once differ from row by row", typ)
		}
		if got[len(want)] != 0xa5 {
			t.Errorf("%v: wrote beyond the row", typ)
		}
		im := slices.Repeat([]float32{1, 3}, len(x)/2)
		if n := testing.AllocsPerRun(1, func() { QuantizeRow(typ, want, x, im) }); n != 0 {
			t.Errorf("%v: %g allocations", typ, n)
		}
	}
}

func TestQuantizeRowRefuses(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	with := func(n, at int, v float32) []float32 {
		x := make([]float32, n)
		x[at] = v
		return x
	}
	for _, typ := range encoders() {
		size := 512 / typ.BlockSize() * typ.BlockBytes()
		for _, tt := range []struct {
			x, im []float32
			size  int
			want  string
		}{
			{make([]float32, 512), make([]float32, 511), size, "512 elements has 511 importance values"},
			{make([]float32, 512), []float32{}, size, "512 elements has 0 importance values"},
			{make([]float32, 512), with(512, 300, -1), size, "importance of element 300 is -1"},
			{make([]float32, 512), with(512, 7, nan), size, "importance of element 7 is NaN"},
			{make([]float32, 512), with(512, 511, inf), size, "importance of element 511 is +Inf"},
			{with(512, 411, nan), nil, size, "element 411 is NaN"},
			{with(512, 3, -inf), make([]float32, 512), size, "element 3 is -Inf"},
			{make([]float32, 512), nil, size - 1, "bytes, not"},
			{make([]float32, 511), nil, size, "not a multiple"},
		} {
			err := QuantizeRow(typ, make([]byte, tt.size), tt.x, tt.im)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), typ.String()) {
				t.Errorf("%v: got error %v, want one with %q", typ, err, tt.want)
			}
		}
		// Beyond any half scale. Two formats have other scales.
		x := with(512, 300, 1e38)
		x[301] = -3e38
		n := typ.BlockSize()
		where := fmt.Sprintf("elements %d to %d: the scale", 300/n*n, 300/n*n+n-1)
		err := Quantize(typ, make([]byte, size), x)
		if typ == MXFP4 || typ == NVFP4 {
			if err != nil {
				t.Errorf("%v: %v", typ, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), where) {
			t.Errorf("%v: got error %v, want one with %q", typ, err, where)
		}
	}
	if err := QuantizeRow(Type(4), nil, nil, nil); err == nil {
		t.Error("type 4: no error")
	}
}

// FuzzQuantize encodes any floats with any importance as any type: what is
// encoded decodes to finite values.
func FuzzQuantize(f *testing.F) {
	p := patterns()
	for _, name := range []string{"normal", "spread", "subnormal", "2 at 77"} {
		b := make([]byte, 4*512)
		encodeF32(b, p[name], nil)
		for _, typ := range encoders() {
			f.Add(uint32(typ), b, false)
			f.Add(uint32(typ), b[:4*256], true)
		}
	}
	weighed := make([]byte, 4*512) // a row and its importance
	encodeF32(weighed, slices.Concat(p["normal"][:256], p["all above"][:256]), nil)
	for _, typ := range encoders() {
		f.Add(uint32(typ), weighed, true)
	}
	f.Fuzz(func(t *testing.T, id uint32, data []byte, weighed bool) {
		typ := Type(id)
		if !typ.CanQuantize() {
			return
		}
		n := min(len(data)/4, 1024)
		x := toFloats(data[:4*n])
		var im []float32
		if weighed { // the second half is the importance
			x, im = x[:n/2], x[n/2:][:n/2]
		}
		n = len(x) / typ.BlockSize()
		x = x[:n*typ.BlockSize()]
		if im != nil {
			im = im[:len(x)]
		}
		b := make([]byte, n*typ.BlockBytes())
		if QuantizeRow(typ, b, x, im) != nil || typ.BlockSize() == 1 {
			return
		}
		y := make([]float32, len(x))
		if err := Dequantize(typ, y, b); err != nil {
			t.Fatal(err)
		}
		for i, v := range y {
			if v-v != 0 {
				t.Fatalf("%v: element %d: %g became %g", typ, i, x[i], v)
			}
		}
	})
}

// BenchmarkQuantize measures rows of 4096 elements in bytes of float32 input.
func BenchmarkQuantize(b *testing.B) {
	x, im := make([]float32, 4096), make([]float32, 4096)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range x {
		x[i], im[i] = float32(r.NormFloat64()*0.02), float32(r.ExpFloat64())
	}
	for _, typ := range Types() {
		if !typ.CanQuantize() {
			continue
		}
		dst := make([]byte, len(x)/typ.BlockSize()*typ.BlockBytes())
		for _, mode := range []string{"plain", "imat"} {
			v := im
			if mode == "plain" {
				v = nil
			}
			b.Run(typ.String()+"/"+mode, func(b *testing.B) {
				b.SetBytes(int64(4 * len(x)))
				b.ReportAllocs()
				for b.Loop() {
					if err := QuantizeRow(typ, dst, x, v); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
