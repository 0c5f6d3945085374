package shaders_test

import (
	"math"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// gdnRun makes a run of n tokens; positions do not matter to recurrent kernels.
func gdnRun(slot, n int, fresh bool) shaders.Run {
	return shaders.Run{Slot: slot, Tokens: kerneltest.Tokens(n), Pages: []int32{0}, Fresh: fresh}
}

// gdnSteps lays several steps out in one step buffer, so that the ops of one case can be steps that follow
// each other. It returns a view of each.
func gdnSteps(t *testing.T, shape shaders.StepShape, steps [][]shaders.Run) (*shaders.Buffer, []byte, []shaders.View) {
	t.Helper()
	size := int64(shape.Words()) * 4
	buf := &shaders.Buffer{Name: "step", Kind: shaders.StepInput, Size: size * int64(len(steps))}
	data := shaders.AlignedBytes(buf.Size)
	var views []shaders.View
	for i, runs := range steps {
		views = append(views, buf.View().Slice(int64(i)*size, size))
		if err := shape.Write(shaders.Words(data)[i*shape.Words():(i+1)*shape.Words()], runs, nil); err != nil {
			t.Fatal(err)
		}
	}
	return buf, data, views
}

// gdnStale leaves runs of an earlier step in a step's unused entries, which no kernel may take for its own.
func gdnStale(step []byte, seqs, capacity int) {
	w := shaders.Words(step)
	runs := w[w[8]:] // first row, rows, slot, flags (shaders/step.go)
	for i := seqs; i < capacity; i++ {
		copy(runs[4*i:], []uint32{0, 1, uint32(i) - 1, shaders.RunFresh})
	}
}

// gdnScheme runs an op under its own choice of scheme and limits, whatever the device's profile says.
type gdnScheme struct {
	shaders.Op
	lanes      bool
	subgroup   uint32 // workgroup size of reducing kernels, in which case reductions go through shared memory
	maxBinding int64  // 0: the device's
}

func (s gdnScheme) Lower(p *shaders.Profile) ([]shaders.Dispatch, error) {
	q := *p
	q.LanesPerRow = s.lanes
	q.NoSubgroups = q.NoSubgroups && !s.lanes // which has no form without
	if s.subgroup > 0 {
		q.Subgroup, q.OneSubgroup = s.subgroup, false
	}
	if s.maxBinding > 0 {
		q.MaxBinding = s.maxBinding
	}
	return s.Op.Lower(&q)
}

// gdnNear fails unless got is want within tol of want's largest magnitude.
func gdnNear(t *testing.T, what string, got []float32, want []float64, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	scale := 0.0
	for _, w := range want {
		scale = max(scale, math.Abs(w))
	}
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - w); !(d <= tol*scale) {
			t.Fatalf("%s: value %d is %g, want %g (tolerance %g of %g)", what, i, got[i], w, tol, scale)
		}
	}
}

// gdnTwin runs ops on their twins over a copy of the initial memory.
func gdnTwin(t *testing.T, fill map[*shaders.Buffer][]byte, ops ...shaders.Op) shaders.HostMemory {
	t.Helper()
	m := shaders.HostMemory{}
	for b, data := range fill {
		m[b] = append(shaders.AlignedBytes(b.Size)[:0], data...)
	}
	for _, o := range ops {
		if err := o.Twin(m); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// gdnConst returns n times v.
func gdnConst(n int, v float32) []float32 {
	f := make([]float32, n)
	for i := range f {
		f[i] = v
	}
	return f
}

// gdnDiffer returns an op that computes a - b, two ranges of n floats that follow each other in one buffer. The
// result is exactly zero, in whatever order the sum is taken, if and only if they are equal.
func gdnDiffer(step shaders.View, both shaders.View, n int, fill map[*shaders.Buffer][]byte) (shaders.Op, shaders.View) {
	padded := (2*n + 31) / 32 * 32 // the columns beyond 2n meet zero weights
	w := make([]float32, n*padded)
	for i := range n {
		w[i*padded+i], w[i*padded+n+i] = 1, -1
	}
	m := shaders.Matrix{Name: "difference", Type: quant.F32, In: padded, Out: n}
	buf := &shaders.Buffer{Name: "difference", Kind: shaders.Weight, Size: int64(len(w)) * 4}
	m.View = buf.View()
	fill[buf] = kerneltest.Floats(w)
	y := shaders.NewMat("difference result", shaders.Result, 1, n)
	fill[y.Buf] = kerneltest.Floats(gdnConst(n, 7))
	return &shaders.MatMul{Step: step, W: m, X: shaders.Mat{View: both, Width: padded, Stride: padded}, Y: y, Rows: 1}, y.View
}

// convCase is a GDNConv op with its memory.
type convCase struct {
	op   *shaders.GDNConv
	fill map[*shaders.Buffer][]byte
	// The contents that the formula is computed from.
	wide, conv, a, dt, tail []float32
	first, stride           int // float where the wide matrix begins, its width
	uCol, betaCol, alphaCol int
}

type convShape struct{ nk, nv, d, rows, seqs, slots int }

// newConvCase fills memory for a shape. Rows at or beyond used hold NaN, as do the tails of fresh slots.
func newConvCase(seed uint64, s convShape, used int, fresh []int) *convCase {
	r := kerneltest.Rand(seed)
	c := (2*s.nk + s.nv) * s.d
	k := &convCase{fill: map[*shaders.Buffer][]byte{}}
	// beta | gap | u | gap | alpha | gap, beginning at a word that no descriptor can begin at.
	k.first, k.betaCol, k.uCol, k.alphaCol = 5, 0, s.nv+3, s.nv+3+c+2
	k.stride = k.alphaCol + s.nv + 1
	k.wide = kerneltest.Normal(r, k.first+s.rows*k.stride)
	nan := float32(math.NaN())
	copy(k.wide[k.first+used*k.stride:], gdnConst((s.rows-used)*k.stride, nan))
	k.conv, k.a, k.dt = kerneltest.Normal(r, 4*c), make([]float32, s.nv), kerneltest.Normal(r, s.nv)
	for h := range k.a {
		k.a[h] = -float32(math.Exp(3 * r.NormFloat64()))
	}
	// A head whose softplus lives on its last bits: e^-16 times a large A. And one with softplus(x) = x.
	k.a[0], k.dt[0] = -3e6, -16
	k.a[s.nv-1], k.dt[s.nv-1] = -0.01, 30
	k.tail = kerneltest.Normal(r, s.slots*3*c)
	for _, slot := range fresh {
		copy(k.tail[slot*3*c:(slot+1)*3*c], gdnConst(3*c, nan))
	}
	// A head shorter than eps, and one of zeros, in the first run of the last k head.
	for i := range s.d {
		at := k.first + k.uCol + (2*s.nk-1)*s.d + i
		k.wide[at] *= 1e-7
		if used > 1 {
			for row := 1; row < min(used, 5); row++ {
				k.wide[at+row*k.stride] = 0
			}
		}
	}
	buffer := func(name string, kind shaders.Kind, f []float32) *shaders.Buffer {
		b := &shaders.Buffer{Name: name, Kind: kind, Size: int64(len(f)) * 4}
		k.fill[b] = kerneltest.Floats(f)
		return b
	}
	wide := buffer("projections", shaders.State, k.wide)
	m := shaders.Mat{View: wide.View().Slice(int64(k.first)*4, wide.Size-int64(k.first)*4), Width: k.stride, Stride: k.stride}
	out := shaders.NewMat("out", shaders.Scratch, s.rows, c+2*s.nv+3)
	k.fill[out.Buf] = kerneltest.Floats(gdnConst(s.rows*(c+2*s.nv+3), 0.125))
	k.op = &shaders.GDNConv{
		P: m.Cols(k.uCol, c), Beta: m.Cols(k.betaCol, s.nv), Alpha: m.Cols(k.alphaCol, s.nv),
		Conv: buffer("conv", shaders.Weight, k.conv).View(), A: buffer("a", shaders.Weight, k.a).View(),
		DtBias: buffer("dt", shaders.Weight, k.dt).View(), Tail: buffer("tail", shaders.State, k.tail).View(),
		Out: out.Cols(1, c+2*s.nv), Rows: s.rows, Seqs: s.seqs, Slots: s.slots,
		KHeads: s.nk, VHeads: s.nv, Dim: s.d, Eps: 1e-6,
	}
	return k
}

// checks compares the rows in use and the tails by value, what must not change bit for bit.
func (k *convCase) checks(used int) []kerneltest.Check {
	o := k.op
	w := int64(o.Out.Stride) * 4
	out := o.Out.Buf.View()
	return []kerneltest.Check{
		{View: out.Slice(0, int64(used)*w), Tol: 2e-6},
		{View: out.Slice(int64(used)*w, int64(o.Rows-used)*w), Exact: true},
		{View: o.Tail, Exact: true}, // inputs are copied
	}
}

// formula computes rows of out and tails as model-qwen35.md 5.2 steps 2 to 4 say, in float64. What no run
// touches stays as memory holds it.
func (k *convCase) formula(runs []shaders.Run) (out, tail []float64) {
	o := k.op
	nk, nv, d := o.KHeads, o.VHeads, o.Dim
	c := (2*nk + nv) * d
	width := c + 2*nv
	for _, v := range k.tail {
		tail = append(tail, float64(v))
	}
	at := func(row, col int) float64 { return float64(k.wide[k.first+row*k.stride+col]) }
	row := 0
	for _, run := range runs {
		history := make([][]float64, c) // per channel: the carried inputs, then the run's
		for ch := range history {
			for i := range 3 {
				u := 0.0
				if !run.Fresh {
					u = float64(k.tail[(run.Slot*3+i)*c+ch])
				}
				history[ch] = append(history[ch], u)
			}
			for i := range run.Tokens {
				history[ch] = append(history[ch], at(row+i, k.uCol+ch))
			}
			for i := range 3 {
				tail[(run.Slot*3+i)*c+ch] = history[ch][len(run.Tokens)+i]
			}
		}
		for t := range run.Tokens {
			y := make([]float64, width)
			for ch := range c {
				w := 0.0
				for i := range 4 {
					w += float64(k.conv[i+4*ch]) * history[ch][t+i]
				}
				y[ch] = w / (1 + math.Exp(-w))
			}
			for h := range 2 * nk {
				head, norm := y[h*d:(h+1)*d], 0.0
				for _, v := range head {
					norm = math.Hypot(norm, v)
				}
				for i := range head {
					head[i] /= math.Max(norm, float64(o.Eps))
				}
			}
			for h := range nv {
				x := at(row+t, k.alphaCol+h) + float64(k.dt[h])
				y[c+h] = math.Exp(float64(k.a[h]) * (math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))))
				y[c+nv+h] = 1 / (1 + math.Exp(-at(row+t, k.betaCol+h)))
			}
			out = append(out, y...)
		}
		row += len(run.Tokens)
	}
	return out, tail
}

func TestGDNConv(t *testing.T) {
	for i, c := range []struct {
		name  string
		shape convShape
		runs  []shaders.Run
	}{
		{"one row", convShape{1, 1, 32, 1, 1, 1}, []shaders.Run{gdnRun(0, 1, true)}},
		{"carried", convShape{1, 2, 32, 4, 2, 2}, []shaders.Run{gdnRun(1, 1, false)}},
		// The head dimension divides no subgroup; runs shorter and longer than the tail, slots out of order.
		{"ragged", convShape{2, 4, 21, 24, 7, 9}, []shaders.Run{
			gdnRun(4, 2, false), gdnRun(0, 1, true), gdnRun(8, 3, false), gdnRun(1, 7, true), gdnRun(3, 1, false), gdnRun(6, 4, true)}},
		{"small heads", convShape{1, 3, 2, 8, 3, 3}, []shaders.Run{gdnRun(2, 3, true), gdnRun(0, 5, false)}},
		{"model heads", convShape{2, 6, 128, 16, 4, 4}, []shaders.Run{gdnRun(3, 1, false), gdnRun(0, 6, true), gdnRun(1, 5, false)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			used, fresh := 0, []int(nil)
			for _, r := range c.runs {
				used += len(r.Tokens)
				if r.Fresh {
					fresh = append(fresh, r.Slot)
				}
			}
			k := newConvCase(uint64(i), c.shape, used, fresh)
			step, data := kerneltest.Step(t, shaders.StepShape{Rows: c.shape.rows, Seqs: c.shape.seqs, Pages: 1}, c.runs, nil)
			gdnStale(data, len(c.runs), c.shape.seqs)
			k.op.Step = step.View()
			k.fill[step] = data

			out, tail := k.formula(c.runs)
			m := gdnTwin(t, k.fill, k.op)
			o := k.op.Out
			all := shaders.F32(m, o.View)
			var got []float32
			for r := range used {
				got = append(got, all[r*o.Stride:r*o.Stride+o.Width]...)
			}
			gdnNear(t, "twin's out", got, out, 2e-7)
			gdnNear(t, "twin's tail", shaders.F32(m, k.op.Tail), tail, 0)

			ops := []struct {
				name string
				op   shaders.Op
			}{
				{"plain", k.op},
				{"shared32", gdnScheme{k.op, true, 32, 0}}, // several subgroups on software devices
				{"shared64", gdnScheme{k.op, true, 64, 0}}, // more lanes than channels
				// Two slots a binding.
				{"windows", gdnScheme{k.op, false, 0, 4096 + 2*12*int64((2*c.shape.nk+c.shape.nv)*c.shape.d)}},
			}
			for _, x := range ops {
				kerneltest.Run(t, kerneltest.Case{Name: x.name, Ops: []shaders.Op{x.op}, Fill: k.fill, Check: k.checks(used)})
			}
		})
	}
}

// TestGDNConvSplit checks that a sequence's outputs and tail do not depend, in any bit, on how its rows are
// split into steps.
func TestGDNConvSplit(t *testing.T) {
	s := convShape{1, 2, 20, 12, 1, 2}
	c := (2*s.nk + s.nv) * s.d
	k := newConvCase(40, s, s.rows, nil)
	copy(k.tail[3*c:], k.tail[:3*c])
	k.fill[k.op.Tail.Buf] = kerneltest.Floats(k.tail)
	steps := [][]shaders.Run{{gdnRun(0, s.rows, false)}}
	for _, n := range []int{1, 2, 5, 1, 3} {
		steps = append(steps, []shaders.Run{gdnRun(1, n, false)})
	}
	steps = append(steps, []shaders.Run{gdnRun(0, 1, false)}) // for the comparisons
	step, data, views := gdnSteps(t, shaders.StepShape{Rows: s.rows, Seqs: 1, Pages: 1}, steps)
	k.fill[step] = data

	// The whole run writes the first half of a buffer, the parts the second.
	n := s.rows * (c + 2*s.nv)
	both := &shaders.Buffer{Name: "both", Kind: shaders.Scratch, Size: int64(2*n+32) * 4}
	k.fill[both] = kerneltest.Floats(make([]float32, 2*n+32))
	k.op.Out = shaders.Mat{View: both.View().Slice(0, int64(n)*4), Width: c + 2*s.nv, Stride: c + 2*s.nv}
	var ops []shaders.Op
	row := 0
	for i, runs := range steps[:len(steps)-1] {
		op := *k.op
		op.Step = views[i]
		if i > 0 {
			down := func(m shaders.Mat) shaders.Mat {
				m.Off += int64(row*m.Stride) * 4
				m.Len -= int64(row*m.Stride) * 4
				return m
			}
			op.P, op.Beta, op.Alpha = down(op.P), down(op.Beta), down(op.Alpha)
			op.Out.View = both.View().Slice(int64(n+row*op.Out.Stride)*4, int64(n-row*op.Out.Stride)*4)
			row += len(runs[0].Tokens)
		}
		ops = append(ops, &op)
	}
	m := gdnTwin(t, k.fill, ops...)
	all, tails := shaders.F32(m, both.View()), shaders.F32(m, k.op.Tail)
	for i := range n {
		if all[i] != all[n+i] {
			t.Fatalf("twin: output %d is %g in one step and %g in several", i, all[i], all[n+i])
		}
	}
	for i := range 3 * c {
		if tails[i] != tails[3*c+i] {
			t.Fatalf("twin: tail %d is %g in one step and %g in several", i, tails[i], tails[3*c+i])
		}
	}
	last := views[len(views)-1]
	diff, dv := gdnDiffer(last, both.View(), n, k.fill)
	kerneltest.Run(t, kerneltest.Case{Name: "split", Ops: append(ops, diff), Fill: k.fill, Check: []kerneltest.Check{
		{View: dv, Exact: true},
		{View: k.op.Tail, Exact: true},
	}})
}

func TestGDNConvRefusals(t *testing.T) {
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
	for _, c := range []struct {
		name  string
		spoil func(o *shaders.GDNConv)
	}{
		{"beta elsewhere", func(o *shaders.GDNConv) { o.Beta = shaders.NewMat("beta", shaders.Scratch, 4, 2) }},
		{"another stride", func(o *shaders.GDNConv) { o.Alpha.Stride++ }},
		{"another row", func(o *shaders.GDNConv) { o.Alpha.Off += int64(o.Alpha.Stride) * 4 }},
		{"short conv", func(o *shaders.GDNConv) { o.Conv.Len -= 4 }},
		{"narrow out", func(o *shaders.GDNConv) { o.Out.Width-- }},
		{"few slots", func(o *shaders.GDNConv) { o.Slots++ }},
		{"a slot over the binding", func(o *shaders.GDNConv) { p.MaxBinding = 4096 + 8 }},
	} {
		k := newConvCase(1, convShape{1, 2, 16, 4, 2, 2}, 4, nil)
		if _, err := k.op.Lower(p); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		c.spoil(k.op)
		if _, err := k.op.Lower(p); err == nil {
			t.Errorf("%s: not refused", c.name)
		}
	}
}
