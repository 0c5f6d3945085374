package shaders_test

import (
	"math"
	"testing"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// deltaCase is a DeltaRule op with its memory.
type deltaCase struct {
	op     *shaders.DeltaRule
	fill   map[*shaders.Buffer][]byte
	in, s  []float32
	stride int
}

type deltaShape struct {
	nk, nv, d         int
	grouped           bool
	rows, seqs, slots int
}

// newDeltaCase fills memory: q and k of unit length, decays from 0 to 1, beta in (0, 1). Rows at or beyond used
// and the state of fresh slots hold NaN.
func newDeltaCase(seed uint64, s deltaShape, used int, fresh []int) *deltaCase {
	r := kerneltest.Rand(seed)
	width := (2*s.nk+s.nv)*s.d + 2*s.nv
	k := &deltaCase{fill: map[*shaders.Buffer][]byte{}, stride: width + 5}
	for range s.rows {
		row := kerneltest.Normal(r, k.stride)
		for h := range 2 * s.nk {
			head, norm := row[h*s.d:(h+1)*s.d], 0.0
			for _, v := range head {
				norm = math.Hypot(norm, float64(v))
			}
			for i := range head {
				head[i] /= float32(norm)
			}
		}
		gates := row[(2*s.nk+s.nv)*s.d:]
		for h := range s.nv {
			// From a head that hardly forgets to one that forgets at once (model-qwen35.md 6.4).
			a := math.Pow(10, -2+4.5*float64(h)/float64(max(1, s.nv-1)))
			gates[h] = float32(math.Exp(-a * math.Log1p(math.Exp(r.NormFloat64()-2))))
			gates[s.nv+h] = float32(1 / (1 + math.Exp(-r.NormFloat64())))
		}
		k.in = append(k.in, row...)
	}
	nan := float32(math.NaN())
	copy(k.in[used*k.stride:], gdnConst((s.rows-used)*k.stride, nan))
	k.s = kerneltest.Normal(r, s.slots*s.nv*s.d*s.d)
	for i := range k.s {
		k.s[i] *= 0.3
	}
	for _, slot := range fresh {
		n := s.nv * s.d * s.d
		copy(k.s[slot*n:(slot+1)*n], gdnConst(n, nan))
	}
	in := shaders.NewMat("in", shaders.State, s.rows, k.stride)
	k.fill[in.Buf] = kerneltest.Floats(k.in)
	state := &shaders.Buffer{Name: "state", Kind: shaders.State, Size: int64(len(k.s)) * 4}
	k.fill[state] = kerneltest.Floats(k.s)
	out := shaders.NewMat("out", shaders.Scratch, s.rows, s.nv*s.d+3)
	k.fill[out.Buf] = kerneltest.Floats(gdnConst(s.rows*out.Stride, 0.125))
	k.op = &shaders.DeltaRule{
		QKV: in.Cols(0, width), S: state.View(), O: out.Cols(2, s.nv*s.d),
		Rows: s.rows, Seqs: s.seqs, Slots: s.slots, KHeads: s.nk, VHeads: s.nv, Dim: s.d, Grouped: s.grouped,
	}
	return k
}

// formula computes outputs and states as model-qwen35.md 5.2 step 5 says, in float64 with S indexed by key, then
// value. What no run touches stays as memory holds it.
func (k *deltaCase) formula(runs []shaders.Run) (out, state []float64) {
	o := k.op
	nk, nv, d := o.KHeads, o.VHeads, o.Dim
	for _, v := range k.s {
		state = append(state, float64(v))
	}
	row := 0
	for _, run := range runs {
		out = append(out, make([]float64, len(run.Tokens)*nv*d)...)
		for h := range nv {
			kh := h % nk
			if o.Grouped {
				kh = h * nk / nv
			}
			at := (run.Slot*nv + h) * d * d
			S := make([][]float64, d)
			for i := range S {
				S[i] = make([]float64, d)
				for j := range S[i] {
					if !run.Fresh {
						S[i][j] = float64(k.s[at+j*d+i])
					}
				}
			}
			for t := range run.Tokens {
				x := k.in[(row+t)*k.stride:]
				q, key, v := x[kh*d:], x[nk*d+kh*d:], x[2*nk*d+h*d:]
				decay, beta := float64(x[(2*nk+nv)*d+h]), float64(x[(2*nk+nv)*d+nv+h])
				for j := range d {
					r := 0.0
					for i := range d {
						S[i][j] *= decay
						r += S[i][j] * float64(key[i])
					}
					y := 0.0
					for i := range d {
						S[i][j] += float64(key[i]) * beta * (float64(v[j]) - r)
						y += S[i][j] * float64(q[i])
					}
					out[((row+t)*nv+h)*d+j] = y / math.Sqrt(float64(d))
				}
			}
			for i := range d {
				for j := range d {
					state[at+j*d+i] = S[i][j]
				}
			}
		}
		row += len(run.Tokens)
	}
	return out, state
}

func TestDeltaRule(t *testing.T) {
	for i, c := range []struct {
		name  string
		shape deltaShape
		runs  []shaders.Run
	}{
		{"one row", deltaShape{1, 1, 32, false, 1, 1, 1}, []shaders.Run{gdnRun(0, 1, true)}},
		{"carried", deltaShape{1, 2, 32, false, 4, 2, 2}, []shaders.Run{gdnRun(1, 1, false)}},
		{"tiled", deltaShape{2, 6, 16, false, 6, 2, 2}, []shaders.Run{gdnRun(1, 3, false), gdnRun(0, 2, true)}},
		{"grouped", deltaShape{2, 6, 16, true, 6, 2, 2}, []shaders.Run{gdnRun(1, 3, false), gdnRun(0, 2, true)}},
		// The head dimension divides neither a subgroup nor the columns of a workgroup.
		{"ragged", deltaShape{2, 4, 21, false, 40, 7, 9}, []shaders.Run{
			gdnRun(4, 2, false), gdnRun(0, 1, true), gdnRun(8, 3, false), gdnRun(1, 20, true), gdnRun(3, 1, false), gdnRun(6, 4, true)}},
		{"small heads", deltaShape{1, 3, 2, false, 8, 3, 3}, []shaders.Run{gdnRun(2, 3, true), gdnRun(0, 5, false)}},
		{"model heads", deltaShape{2, 4, 128, false, 24, 4, 4}, []shaders.Run{gdnRun(3, 1, false), gdnRun(0, 13, true), gdnRun(1, 5, false)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			used, fresh := 0, []int(nil)
			touched := map[int]bool{}
			for _, r := range c.runs {
				used += len(r.Tokens)
				touched[r.Slot] = true
				if r.Fresh {
					fresh = append(fresh, r.Slot)
				}
			}
			s := c.shape
			k := newDeltaCase(uint64(100+i), s, used, fresh)
			step, data := kerneltest.Step(t, shaders.StepShape{Rows: s.rows, Seqs: s.seqs, Pages: 1}, c.runs, nil)
			gdnStale(data, len(c.runs), s.seqs)
			k.op.Step = step.View()
			k.fill[step] = data

			out, state := k.formula(c.runs)
			m := gdnTwin(t, k.fill, k.op)
			o := k.op.O
			all := shaders.F32(m, o.View)
			var got []float32
			for r := range used {
				got = append(got, all[r*o.Stride:r*o.Stride+o.Width]...)
			}
			gdnNear(t, "twin's out", got, out, 1e-6)
			gdnNear(t, "twin's state", shaders.F32(m, k.op.S), state, 1e-6)

			w := int64(o.Stride) * 4
			checks := []kerneltest.Check{
				{View: o.Buf.View().Slice(0, int64(used)*w), Tol: 2e-6},
				{View: o.Buf.View().Slice(int64(used)*w, int64(s.rows-used)*w), Exact: true},
			}
			slot := int64(s.nv*s.d*s.d) * 4
			for i := range s.slots {
				v := k.op.S.Slice(int64(i)*slot, slot)
				checks = append(checks, kerneltest.Check{View: v, Tol: 2e-6, Exact: !touched[i]})
			}
			for _, x := range []struct {
				name string
				op   shaders.Op
			}{
				{"plain", k.op},
				{"shared32", gdnScheme{k.op, true, 32, 0}}, // several subgroups on software devices
				{"shared64", gdnScheme{k.op, true, 64, 0}}, // more lanes than key indices
				{"windows", gdnScheme{k.op, false, 0, 4096 + 2*slot}},
				{"windows lanes", gdnScheme{k.op, true, 8, 4096 + slot}},
			} {
				kerneltest.Run(t, kerneltest.Case{Name: x.name, Ops: []shaders.Op{x.op}, Fill: k.fill, Check: checks})
			}
		})
	}
}

// TestDeltaRuleSplit checks that 200 rows give the same outputs and state, in every bit, in one step and in
// several, beside the error that 200 rows may gather.
func TestDeltaRuleSplit(t *testing.T) {
	s := deltaShape{1, 1, 16, false, 200, 1, 2}
	k := newDeltaCase(200, s, s.rows, nil)
	n := s.d * s.d
	copy(k.s[n:], k.s[:n])
	k.fill[k.op.S.Buf] = kerneltest.Floats(append(k.s, make([]float32, 32)...)) // room for the comparison
	k.op.S.Buf.Size += 32 * 4
	steps := [][]shaders.Run{{gdnRun(0, s.rows, false)}}
	for _, n := range []int{1, 7, 64, 65, 63} {
		steps = append(steps, []shaders.Run{gdnRun(1, n, false)})
	}
	steps = append(steps, []shaders.Run{gdnRun(0, 1, false)}) // for the comparisons
	step, data, views := gdnSteps(t, shaders.StepShape{Rows: s.rows, Seqs: 1, Pages: 1}, steps)
	k.fill[step] = data

	// The whole run writes the first half of each row of a buffer, the parts the second.
	both := shaders.NewMat("both", shaders.Scratch, s.rows, 2*s.d)
	k.fill[both.Buf] = kerneltest.Floats(make([]float32, s.rows*2*s.d))
	var ops []shaders.Op
	row := 0
	for i, runs := range steps[:len(steps)-1] {
		op := *k.op
		op.Step, op.O = views[i], both.Cols(0, s.d)
		if i > 0 {
			op.QKV.Off += int64(row*op.QKV.Stride) * 4
			op.QKV.Len -= int64(row*op.QKV.Stride) * 4
			op.O = both.Cols(s.d, s.d)
			op.O.Off += int64(row*op.O.Stride) * 4
			op.O.Len -= int64(row*op.O.Stride) * 4
			row += len(runs[0].Tokens)
		}
		ops = append(ops, &op)
	}
	m := gdnTwin(t, k.fill, ops...)
	out, state := k.formula(steps[0])
	all, got := shaders.F32(m, both.View), []float32(nil)
	for r := range s.rows {
		for j := range s.d {
			a, b := all[r*both.Stride+j], all[r*both.Stride+s.d+j]
			if a != b {
				t.Fatalf("twin: row %d is %g in one step and %g in several", r, a, b)
			}
			got = append(got, a)
		}
	}
	gdnNear(t, "twin's out", got, out, 1e-6)
	twin := shaders.F32(m, k.op.S)
	gdnNear(t, "twin's state", twin[:n], state[:n], 1e-6)
	for i := range n {
		if twin[i] != twin[n+i] {
			t.Fatalf("twin: state %d is %g in one step and %g in several", i, twin[i], twin[n+i])
		}
	}
	// Every row of outputs, its two halves, and the two slots.
	diff, _ := gdnDiffer(views[0], both.View, s.d, k.fill)
	mm := diff.(*shaders.MatMul)
	mm.Rows = s.rows
	mm.Y = shaders.NewMat("differences", shaders.Result, s.rows, s.d)
	k.fill[mm.Y.Buf] = kerneltest.Floats(gdnConst(s.rows*s.d, 7))
	sdiff, sv := gdnDiffer(views[len(views)-1], k.op.S.Buf.View(), n, k.fill)
	for _, x := range []struct {
		name     string
		lanes    bool
		subgroup uint32
	}{{"row", false, 0}, {"lanes", true, 0}, {"shared32", true, 32}} {
		var run []shaders.Op
		for _, op := range ops {
			run = append(run, gdnScheme{op, x.lanes, x.subgroup, 0})
		}
		kerneltest.Run(t, kerneltest.Case{Name: x.name, Ops: append(run, diff, sdiff), Fill: k.fill, Check: []kerneltest.Check{
			{View: mm.Y.View, Exact: true},
			{View: sv, Exact: true},
			{View: both.View, Tol: 2e-6},
			{View: k.op.S.Slice(0, int64(n)*8), Tol: 2e-6},
		}})
	}
}

// TestDeltaRuleLong carries a state over several steps of model-sized heads through both kernels, conv and
// rule, of which the second reads what the first writes.
func TestDeltaRuleLong(t *testing.T) {
	conv := convShape{1, 2, 128, 40, 2, 3}
	k := newConvCase(300, conv, conv.rows, []int{2})
	var steps [][]shaders.Run
	for i, n := range []int{9, 1, 23} {
		steps = append(steps, []shaders.Run{gdnRun(2, n, i == 0), gdnRun(0, 2*i+1, false)})
	}
	step, data, views := gdnSteps(t, shaders.StepShape{Rows: conv.rows, Seqs: 2, Pages: 1}, steps)
	k.fill[step] = data
	state := &shaders.Buffer{Name: "state", Kind: shaders.State, Size: int64(conv.slots*conv.nv*128*128) * 4}
	r := kerneltest.Rand(301)
	k.fill[state] = kerneltest.Floats(kerneltest.Normal(r, int(state.Size/4)))
	var ops []shaders.Op
	var checks []kerneltest.Check
	for i, runs := range steps {
		used := len(runs[0].Tokens) + len(runs[1].Tokens)
		c := *k.op
		c.Step = views[i]
		c.Out = shaders.NewMat("inputs", shaders.Scratch, conv.rows, k.op.Out.Width)
		k.fill[c.Out.Buf] = kerneltest.Floats(make([]float32, c.Out.Buf.Size/4))
		o := shaders.NewMat("outputs", shaders.Scratch, conv.rows, 256)
		k.fill[o.Buf] = kerneltest.Floats(make([]float32, o.Buf.Size/4))
		ops = append(ops, &c, &shaders.DeltaRule{Step: views[i], QKV: c.Out, S: state.View(), O: o,
			Rows: conv.rows, Seqs: 2, Slots: conv.slots, KHeads: 1, VHeads: 2, Dim: 128})
		checks = append(checks, kerneltest.Check{View: o.Slice(0, int64(used)*256*4), Tol: 4e-6})
	}
	checks = append(checks, kerneltest.Check{View: state.View(), Tol: 4e-6}, kerneltest.Check{View: k.op.Tail, Exact: true})
	kerneltest.Run(t, kerneltest.Case{Name: "long", Ops: ops, Fill: k.fill, Check: checks})
}

func TestDeltaRuleRefusals(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(o *shaders.DeltaRule, p *shaders.Profile)
	}{
		{"uneven heads", func(o *shaders.DeltaRule, p *shaders.Profile) { o.KHeads = 3 }},
		{"narrow input", func(o *shaders.DeltaRule, p *shaders.Profile) { o.QKV.Width-- }},
		{"narrow output", func(o *shaders.DeltaRule, p *shaders.Profile) { o.O.Width-- }},
		{"few slots", func(o *shaders.DeltaRule, p *shaders.Profile) { o.Slots++ }},
		{"a slot over the binding", func(o *shaders.DeltaRule, p *shaders.Profile) { p.MaxBinding = 4096 + 8 }},
		{"grid", func(o *shaders.DeltaRule, p *shaders.Profile) { p.MaxGroups[2] = 1 }},
	} {
		for _, lanes := range []bool{false, true} {
			p := &shaders.Profile{LanesPerRow: lanes, Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
			k := newDeltaCase(1, deltaShape{2, 4, 16, false, 4, 2, 2}, 4, nil)
			if _, err := k.op.Lower(p); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			c.spoil(k.op, p)
			if _, err := k.op.Lower(p); err == nil {
				t.Errorf("%s: not refused", c.name)
			}
		}
	}
}
