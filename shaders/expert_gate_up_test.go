package shaders_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// expertStack returns a stack of random matrices that begins somewhere in its buffer; experts = 0 makes a plain
// matrix.
func expertStack(r *rand.Rand, name string, typ quant.Type, in, out, experts int, fill map[*shaders.Buffer][]byte) shaders.Matrix {
	data := randomTable(r, typ, max(experts, 1)*out, in)
	off, size := int64(4+4*r.IntN(20)), int64(len(data))
	b := &shaders.Buffer{Name: name, Kind: shaders.Weight, Size: (off + size + 3) &^ 3}
	fill[b] = shaders.AlignedBytes(b.Size)
	copy(fill[b][off:], data)
	m := shaders.Matrix{View: b.View().Slice(off, size), Name: name, Type: typ, In: in, Out: out, Experts: experts}
	withFactors(r, &m, fill)
	return m
}

// smallDevice lowers an op as for a device with smaller limits on a binding and on groups in x.
type smallDevice struct {
	shaders.Op
	max    int64
	groups uint32
}

func (o smallDevice) Lower(p *shaders.Profile) ([]shaders.Dispatch, error) {
	q := *p
	q.MaxBinding, q.MaxGroups[0] = o.max, o.groups
	return o.Op.Lower(&q)
}

// inWindows returns an op whose weights are bound in windows, even where it has two passes: bindings hold
// max bytes besides the room for alignment.
func inWindows(t *testing.T, o shaders.Op, max int64) shaders.Op {
	t.Helper()
	w := smallDevice{o, max + 4096, 65535}
	ds, err := w.Lower(&shaders.Profile{MaxGroups: [3]uint32{65535, 65535, 65535}})
	if err != nil || len(ds) <= 2 {
		t.Fatalf("%d dispatches with bindings of %d bytes: %v", len(ds), max, err)
	}
	return w
}

// weightRow decodes row r of expert e of a stack and applies the expert's factor.
func weightRow(t *testing.T, m shaders.Matrix, e, r int, fill map[*shaders.Buffer][]byte) []float32 {
	t.Helper()
	per := m.ExpertRows
	if per == 0 {
		per = m.Out
	}
	row := make([]float32, m.In)
	off := m.Off + int64(e*per+r)*m.RowBytes()
	if err := quant.Dequantize(m.Type, row, fill[m.Buf][off:off+m.RowBytes()]); err != nil {
		t.Fatal(err)
	}
	for i := range row {
		row[i] *= factor(m, e, fill)
	}
	return row
}

// product is the plain sum of products, and the sum of their magnitudes, which bounds its rounding.
func product(a, b []float32) (sum, size float64) {
	for i := range a {
		v := float64(a[i]) * float64(b[i])
		sum += v
		size += math.Abs(v)
	}
	return sum, size
}

// chosenExperts returns ids for rows of k different experts each.
func chosenExperts(r *rand.Rand, rows, k, experts int) []uint32 {
	var ids []uint32
	for range rows {
		for _, e := range r.Perm(experts)[:k] {
			ids = append(ids, uint32(e))
		}
	}
	return ids
}

// firstRow is an op over a step's first row alone. Its twin leaves memory as it is.
type firstRow struct{ shaders.Op }

func (firstRow) Twin(shaders.Memory) error { return nil }

// checkGateUp compares an op's twin with the formula and devices with the twin, as lower makes them lower it. What
// has ids runs over tiles as well, which must make no difference.
func checkGateUp(t *testing.T, name string, o *shaders.ExpertGateUp, rows int, fill map[*shaders.Buffer][]byte, lower func(shaders.Op) shaders.Op, few bool, turn int) {
	t.Helper()
	if lower == nil {
		lower = func(o shaders.Op) shaders.Op { return o }
	}
	m := runTwins(t, []shaders.Op{o}, fill)
	x, h := shaders.F32(m, o.X.View), shaders.F32(m, o.H.View)
	f := o.Gate.Out
	for row := range rows {
		for s := range o.K {
			e := uint32(0)
			if o.Ids.Buf != nil {
				e = shaders.U32(m, o.Ids)[row*o.K+s]
			}
			for j := range f {
				want, scale := 0.0, 1.0
				if int64(e) < int64(max(o.Gate.Experts, 1)) {
					xr := x[row*o.X.Stride:][:o.X.Width]
					g, gs := product(weightRow(t, o.Gate, int(e), j, fill), xr)
					u, us := product(weightRow(t, o.Up, int(e), j, fill), xr)
					want, scale = g*u/(1+math.Exp(-g)), gs*us
				}
				near(t, fmt.Sprintf("%s row %d slot %d output %d", name, row, s, j), h[row*o.H.Stride+s*f+j], want, scale, 1e-6)
			}
		}
	}
	c := kerneltest.Case{Name: name, Few: few, Turn: turn, Ops: []shaders.Op{lower(o)}, Fill: fill, Check: []kerneltest.Check{
		{View: o.H.Buf.View(), Tol: 1e-5},
		{View: rowsFrom(o.H, rows), Exact: true},
	}}
	if o.Ids.Buf == nil && o.Rows > 1 {
		// A row alone, which is not one of four at once.
		one := *o
		one.Rows, one.H = 1, sameMat("h of one row", o.H, fill)
		c.Ops = append(c.Ops, firstRow{lower(&one)})
		c.Same = append(c.Same, [2]shaders.View{one.H.Slice(0, int64(one.H.Width)*4), o.H.Slice(0, int64(o.H.Width)*4)})
	}
	// Two passes over tiles are three kernels each to compile, and differ between types in nothing that others do not.
	twoPasses := o.Gate.Type != o.Up.Type || o.Gate.ExpertRows != o.Up.ExpertRows
	if o.Ids.Buf != nil && (!twoPasses || o.Up.Type == quant.F32) {
		tiled := *o
		group := groupOf(o.Step, o.Ids, o.Rows, o.K, o.Gate.Experts, fill)
		tiled.Ids, tiled.Tiles, tiled.H = shaders.View{}, group.Tiles, sameMat("tiled h", o.H, fill)
		c.Ops = append(c.Ops, group, lower(&tiled))
		c.Check = append(c.Check, kerneltest.Check{View: tiled.H.Buf.View(), Tol: 1e-5})
		c.Same = append(c.Same, [2]shaders.View{tiled.H.Buf.View(), o.H.Buf.View()})
	}
	kerneltest.Run(t, c)
}

func TestExpertGateUp(t *testing.T) {
	type mix struct{ gate, up quant.Type }
	var mixes []mix
	for _, typ := range weightTypes() {
		mixes = append(mixes, mix{typ, typ})
	}
	mixes = append(mixes, mix{quant.Q4_K, quant.Q6_K}, mix{quant.F32, quant.Q8_0})
	type gateUpCase struct {
		in, out, experts, k int
		fused               int // experts hold gate and up: 1 both matrices, 2 the gate alone
		windows             bool
	}
	cases := []gateUpCase{
		{in: 512, out: 70, experts: 5, k: 2, fused: 1}, // the case of types that have but one
		{in: 256, out: 34, experts: 6, k: 3, windows: true},
		{in: 256, out: 36, experts: 5, k: 4, fused: 1, windows: true},
		{in: 256, out: 36, experts: 3, k: 1, fused: 2, windows: true},
	}
	for i, w := range mixes {
		n := casesOf(w.gate, len(cases))
		if w.gate == w.up && slices.Contains([]quant.Type{quant.Q8_0, quant.Q4_K, quant.IQ3_S}, w.gate) {
			n = 1 // what passes and windows do is up to the size of rows, of which there are enough
		}
		for _, c := range cases[:n] {
			name := fmt.Sprintf("%v %v %d of %d, %d x %d fused %d", w.gate, w.up, c.k, c.experts, c.out, c.in, c.fused)
			r := kerneltest.Rand(uint64(i))
			fill := map[*shaders.Buffer][]byte{}
			step, rows, capacity := unevenStep(t, fill)
			x := paddedMat("x", capacity, c.in, 1, 2, fill)
			setRows(x, kerneltest.Normal(r, capacity*c.in), fill)
			h := paddedMat("h", capacity, c.k*c.out, 2, 1, fill)
			ids := chosenExperts(r, capacity, c.k, c.experts)
			// Some name no expert. The first row's are the first and the last expert.
			ids[0] = uint32(c.experts - 1)
			ids[c.k] = uint32(c.experts)
			ids[3*c.k-1] = math.MaxUint32
			ids[5*c.k-1] = 1 << 31
			idb := filledWords("ids", capacity*c.k+1, append([]uint32{1}, ids...), fill)
			o := &shaders.ExpertGateUp{Step: step, X: shaders.Plain(x), H: h, Ids: idb.View().Slice(4, int64(capacity*c.k)*4), Rows: capacity, K: c.k}
			o.Gate = expertStack(r, "gate", w.gate, c.in, c.out, c.experts, fill)
			o.Up = expertStack(r, "up", w.up, c.in, c.out, c.experts, fill)
			if c.fused > 0 {
				both := expertStack(r, "gate and up", w.gate, c.in, 2*c.out, c.experts, fill)
				o.Gate = both.Rows(0, c.out)
				if c.fused == 1 {
					o.Up = both.Rows(c.out, c.out)
				}
			}
			var lower func(shaders.Op) shaders.Op
			if c.windows {
				// Two experts fit a binding.
				bytes := 2 * int64(c.out) * max(o.Gate.RowBytes(), o.Up.RowBytes())
				if c.fused > 0 {
					bytes *= 2
				}
				lower = func(o shaders.Op) shaders.Op { return inWindows(t, o, bytes) }
			}
			checkGateUp(t, name, o, rows, fill, lower, few(w.gate), turn(w.gate, i))
		}
	}
}

// Without ids the op is the first half of a dense or shared FFN.
func TestExpertGateUpDense(t *testing.T) {
	for i, typ := range []quant.Type{quant.F32, quant.Q6_K, quant.NVFP4} {
		for _, c := range []struct {
			in, out, experts, rows int
			window                 int // rows of a binding; 0: all
			up                     quant.Type
		}{
			{in: 256, out: 34, rows: 12, up: typ},
			{in: 256, out: 46, rows: 12, window: 20, up: typ},
			{in: 256, out: 34, rows: 12, up: quant.Q8_0, window: 12},
			{in: 2560, out: 3, experts: 2, rows: 1, up: typ},
		} {
			name := fmt.Sprintf("dense %v %v %d x %d", typ, c.up, c.out, c.in)
			r := kerneltest.Rand(uint64(i))
			fill := map[*shaders.Buffer][]byte{}
			step, rows, _ := unevenStep(t, fill)
			if c.rows == 1 {
				b, data := kerneltest.Step(t, shaders.StepShape{Rows: 1, Seqs: 1, Pages: 1},
					[]shaders.Run{{Tokens: kerneltest.Tokens(1), Pages: []int32{0}}}, nil)
				delete(fill, step.Buf)
				step, rows, fill[b] = b.View(), 1, data
			}
			x := paddedMat("x", c.rows, c.in, 3, 0, fill)
			setRows(x, kerneltest.Normal(r, c.rows*c.in), fill)
			h := paddedMat("h", c.rows, c.out, 1, 4, fill)
			gate := expertStack(r, "gate", typ, c.in, c.out, c.experts, fill)
			up := expertStack(r, "up", c.up, c.in, c.out, c.experts, fill)
			o := &shaders.ExpertGateUp{Step: step, X: shaders.Plain(x), H: h, Rows: c.rows, K: 1,
				Gate: gate, Up: up}
			var lower func(shaders.Op) shaders.Op
			if c.window > 0 {
				lower = func(o shaders.Op) shaders.Op {
					return inWindows(t, o, max(gate.RowBytes(), up.RowBytes())*int64(c.window))
				}
			}
			checkGateUp(t, name, o, rows, fill, lower, few(typ), 0)
		}
	}
}

// A row of 32 weights is less than a subgroup has lanes, rows beyond a step of one are most of a plan, and a
// grid may be shorter than the outputs.
func TestExpertGateUpNarrow(t *testing.T) {
	r := kerneltest.Rand(1)
	fill := map[*shaders.Buffer][]byte{}
	step, data := kerneltest.Step(t, shaders.StepShape{Rows: 9, Seqs: 2, Pages: 1},
		[]shaders.Run{{Tokens: kerneltest.Tokens(1), Pages: []int32{0}}}, nil)
	fill[step] = data
	x := paddedMat("x", 9, 32, 0, 0, fill)
	// Arguments of silu from -600 to 600.
	values := kerneltest.Normal(r, 32)
	for i := range values {
		values[i] *= 100
	}
	setRows(x, values, fill)
	h := paddedMat("h", 9, 2*40, 0, 0, fill)
	ids := filledWords("ids", 18, []uint32{1, 0}, fill)
	o := &shaders.ExpertGateUp{Step: step.View(), X: shaders.Plain(x), H: h, Ids: ids.View(), Rows: 9, K: 2,
		Gate: expertStack(r, "gate", quant.F32, 32, 40, 2, fill), Up: expertStack(r, "up", quant.F32, 32, 40, 2, fill)}
	checkGateUp(t, "narrow", o, 1, fill, func(o shaders.Op) shaders.Op { return smallDevice{o, 1 << 27, 1} }, false, 0)
}

func TestExpertGateUpRefuses(t *testing.T) {
	p := &shaders.Profile{MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
	for name, spoil := range map[string]func(o *shaders.ExpertGateUp) int64{
		"":            func(o *shaders.ExpertGateUp) int64 { return 1 << 27 },
		"without ids": func(o *shaders.ExpertGateUp) int64 { o.Ids = shaders.View{}; return 1 << 27 },
		"ids":         func(o *shaders.ExpertGateUp) int64 { o.Ids.Len -= 4; return 1 << 27 },
		"slots":       func(o *shaders.ExpertGateUp) int64 { o.K = 0; return 1 << 27 },
		"width of X":  func(o *shaders.ExpertGateUp) int64 { o.X.Mat = o.X.Cols(0, 32); return 1 << 27 },
		"width of H":  func(o *shaders.ExpertGateUp) int64 { o.H = o.H.Cols(0, 79); return 1 << 27 },
		"rows":        func(o *shaders.ExpertGateUp) int64 { o.Rows = 5; return 1 << 27 },
		"experts":     func(o *shaders.ExpertGateUp) int64 { o.Up.Experts = 2; return 1 << 27 },
		"outputs":     func(o *shaders.ExpertGateUp) int64 { o.Up = o.Up.Rows(0, 38); return 1 << 27 },
		"short stack": func(o *shaders.ExpertGateUp) int64 { o.Gate.Len -= 4; return 1 << 27 },
		"block type":  func(o *shaders.ExpertGateUp) int64 { o.Up.Type = quant.Q8_1; return 1 << 27 },
		"one expert":  func(o *shaders.ExpertGateUp) int64 { return 4096 + 40*64*4 - 1 },
		"grid in y":   func(o *shaders.ExpertGateUp) int64 { p.MaxGroups[1] = 7; return 1 << 27 },
		"tiles": func(o *shaders.ExpertGateUp) int64 {
			o.Tiles = filledWords("tiles", int(shaders.TilesBytes(4, 2, 3))/4-1, nil, map[*shaders.Buffer][]byte{}).View()
			return 1 << 27
		},
		"other layout": func(o *shaders.ExpertGateUp) int64 { o.Up.ExpertRows = 41; return 1 << 27 },
	} {
		fill := map[*shaders.Buffer][]byte{}
		r := kerneltest.Rand(1)
		o := &shaders.ExpertGateUp{Step: shaders.StepShape{Rows: 4, Seqs: 1, Pages: 1}.NewBuffer().View(),
			X: shaders.Plain(paddedMat("x", 4, 64, 0, 0, fill)), H: paddedMat("h", 4, 80, 0, 0, fill), Ids: filledWords("ids", 8, nil, fill).View(), Rows: 4, K: 2,
			Gate: expertStack(r, "gate", quant.F32, 64, 40, 3, fill), Up: expertStack(r, "up", quant.F32, 64, 40, 3, fill)}
		p.MaxGroups = [3]uint32{65535, 65535, 65535}
		p.MaxBinding = spoil(o)
		if _, err := o.Lower(p); (err == nil) != (name == "") {
			t.Errorf("%q: error %v", name, err)
		}
	}
}
