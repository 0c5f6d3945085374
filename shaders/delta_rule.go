package shaders

import (
	"fmt"
	"math"
)

// DeltaRule runs the gated delta rule over the rows of each run, with the state carried in the sequence's
// slot (model-qwen35.md 5.2 step 5). Per value head, with S the Dim x Dim state (key index by value index):
//
//	S = decay S;  delta = beta (v - S'k);  S = S + k delta';  o = S'q / sqrt(Dim)
//
// A fresh run begins with S = 0 whatever the slot holds. The state is float32, and rounded to it after each
// row, so that a result does not depend on how a sequence is split into steps.
type DeltaRule struct {
	Step    View
	QKV     Mat  // rows x (2 KHeads Dim + VHeads Dim + 2 VHeads): q, k, v, decay, beta, as from GDNConv
	S       View // state, [Slots][VHeads][Dim value columns][Dim key indices] (model-qwen35.md 6.1)
	O       Mat  // rows x VHeads Dim
	Rows    int  // capacity
	Seqs    int  // capacity
	Slots   int
	KHeads  int
	VHeads  int // a multiple of KHeads
	Dim     int
	Grouped bool // value head h uses key head h / (VHeads/KHeads) (qwen3next), else h mod KHeads (qwen35*)
	// Norm is the gated norm of O, or nil without. A kernel may form it without leaving anything in O.
	Norm *GatedNorm
}

// headLanes is the workgroup that takes all columns of a head, and headColumns the most that it takes (delta_rule.comp).
const (
	headLanes   = 256
	headColumns = 512
)

// deltaColumns is the number of value columns that a lane works on in the row scheme, or that the lanes of a
// workgroup share in the other: enough to use a load of k or q several times and to hide one reduction
// behind the other, few enough that the columns stay in registers.
const deltaColumns = 4

func deltaRuleModules() []Module {
	m := Module{Source: "delta_rule.comp", Buffers: 4, Params: 11}
	row, lanes, head := m, m, m
	row.Name = "delta_rule.row"
	lanes.Name, lanes.Defines = "delta_rule.lanes", []string{"LANES_PER_ROW"}
	head.Name, head.Defines = "delta_rule.head", []string{"HEAD"}
	head.Buffers, head.Params = 6, 13
	spread := m
	spread.Name, spread.Defines = "delta_rule.spread", []string{"SPREAD"}
	spread.SPIRV15, spread.Addresses = true, []int{1, 2}
	return []Module{row, lanes, head, spread}
}

// keyHead is the key head of value head h.
func (o *DeltaRule) keyHead(h int) int {
	if o.Grouped {
		return h / (o.VHeads / o.KHeads)
	}
	return h % o.KHeads
}

func (o *DeltaRule) width() int { return (2*o.KHeads+o.VHeads)*o.Dim + 2*o.VHeads }

func (o *DeltaRule) Kernel() string { return "delta_rule" }

func (o *DeltaRule) Operands() []Operand {
	ops := []Operand{R(o.Step), R(o.QKV.View), RW(o.S), W(o.O.View)}
	if n := o.Norm; n != nil {
		ops = append(ops, R(n.Z.View), R(n.Weight), W(n.Y.View))
	}
	return ops
}

// Contents says that O is between the op's dispatches if a norm follows.
func (o *DeltaRule) Contents(operand int) Content {
	if operand == 3 && o.Norm != nil {
		return Notes
	}
	return Values
}

func (o *DeltaRule) Cost() Cost {
	r, h, d := int64(o.Rows), int64(o.VHeads), int64(o.Dim)
	c := Cost{
		Bytes: 4*int64(o.Seqs)*2*h*d*d + 4*r*(int64(o.width())+h*d),
		Flops: 7 * r * h * d * d,
	}
	if o.Norm != nil {
		c = c.Plus(o.Norm.Cost())
	}
	return c
}

func (o *DeltaRule) Lower(p *Profile) ([]Dispatch, error) {
	switch {
	case o.KHeads <= 0 || o.VHeads <= 0 || o.Dim <= 0 || o.Slots <= 0 || o.VHeads%o.KHeads != 0:
		return nil, fmt.Errorf("delta_rule: %d key heads and %d value heads of %d in %d slots", o.KHeads, o.VHeads, o.Dim, o.Slots)
	case o.QKV.Width != o.width() || o.O.Width != o.VHeads*o.Dim:
		return nil, fmt.Errorf("delta_rule: widths %d and %d, want %d and %d", o.QKV.Width, o.O.Width, o.width(), o.VHeads*o.Dim)
	case o.Norm != nil && (o.Norm.O.View != o.O.View || o.Norm.Heads != o.VHeads || o.Norm.Dim != o.Dim || o.Norm.Rows != o.Rows):
		return nil, fmt.Errorf("delta_rule: the norm is not of the op's %d heads of %d in %d rows", o.VHeads, o.Dim, o.Rows)
	}
	grouped := uint32(0)
	if o.Grouped {
		grouped = uint32(o.VHeads / o.KHeads)
	}
	// loops counts the turns of the loops inside a row's, whether or not a compiler unrolls them.
	module, spec, columns := "delta_rule.row", []uint32{rowGroup, uint32(o.Dim)}, rowGroup*deltaColumns
	loops, fixed := 2*o.Dim+deltaColumns+1, (2+deltaColumns)*o.Dim
	spread := p.Spread && !p.LanesPerRow && o.Dim%spreadLanes == 0
	if p.LanesPerRow || spread {
		lanes := int(p.Subgroup)
		module, spec = "delta_rule.lanes", p.ReduceSpec()
		if spread {
			lanes, module, spec = spreadLanes, "delta_rule.spread", []uint32{spreadLanes, 1}
		}
		per := ceilDiv(o.Dim, lanes)
		columns = deltaColumns
		spec = append(spec, uint32(per), deltaColumns)
		loops, fixed = per+deltaColumns*(2*per+5)+1, 2*deltaColumns*(per+1)
	}
	head := o.Norm != nil && p.folds(o.Rows) && p.OneSubgroup && o.Dim <= headColumns/2
	if head {
		subgroups := max(min(ceilDiv(o.Dim, deltaColumns), headLanes/int(p.Subgroup)), 1)
		per, cols := ceilDiv(o.Dim, int(p.Subgroup)), ceilDiv(o.Dim, subgroups)
		module, columns = "delta_rule.head", o.Dim
		spec = []uint32{uint32(subgroups) * p.Subgroup, p.Subgroup, uint32(per), uint32(cols)}
		loops, fixed = 2*per+cols*(2*per+5)+ceilDiv(o.Dim, subgroups*int(p.Subgroup))+1, 2*cols*(per+1)
	}
	rows, err := p.spans(o.Rows, loops, fixed)
	if err != nil {
		return nil, fmt.Errorf("delta_rule: %w", err)
	}
	groups, err := p.grid("delta_rule", ceilDiv(o.Dim, columns), o.VHeads, o.Seqs)
	if err != nil {
		return nil, err
	}
	windows, err := slotWindows(o.S, 4*int64(o.VHeads)*int64(o.Dim)*int64(o.Dim), o.Slots, p.MaxBinding)
	if err != nil {
		return nil, fmt.Errorf("delta_rule: %w", err)
	}
	out := o.O
	if head {
		out = o.Norm.Y
	}
	var ds []Dispatch
	for _, w := range windows {
		for _, r := range rows {
			d := Dispatch{
				Module: module,
				Spec:   spec,
				Bind:   []Operand{R(o.Step), R(o.QKV.View), RW(w.view), W(out.View)},
				Push: []uint32{uint32(o.QKV.Stride), uint32(out.Stride), uint32(o.KHeads), uint32(o.VHeads), uint32(o.Dim),
					grouped, uint32(w.first), uint32(w.slots), uint32(r.first), uint32(r.count),
					math.Float32bits(float32(1 / math.Sqrt(float64(o.Dim))))},
				Groups: groups,
			}
			if head {
				d.Bind = append(d.Bind, R(o.Norm.Z.View), R(o.Norm.Weight))
				d.Push = append(d.Push, uint32(o.Norm.Z.Stride), math.Float32bits(o.Norm.Eps))
			}
			ds = append(ds, d)
		}
	}
	if o.Norm == nil {
		return ds, nil
	}
	norm, err := o.Norm.Lower(p) // which also checks it
	if err != nil || head {
		return ds, err
	}
	return append(ds, norm...), nil
}

func (o *DeltaRule) Twin(m Memory) error {
	step, d, nk, nv := ViewStep(m, o.Step), o.Dim, o.KHeads, o.VHeads
	in, state, out := F32(m, o.QKV.View), F32(m, o.S), F32(m, o.O.View)
	for seq := range step.Seqs() {
		if slot := step.RunSlot(seq); slot >= o.Slots {
			return fmt.Errorf("delta_rule: sequence %d has slot %d of %d", seq, slot, o.Slots)
		}
	}
	err := parallel(step.Seqs()*nv, func(from, to int) error {
		for i := from; i < to; i++ {
			seq, h := i/nv, i%nv
			at := (step.RunSlot(seq)*nv + h) * d * d
			s := state[at : at+d*d]
			if step.RunFresh(seq) {
				clear(s)
			}
			for r := step.RunStart(seq); r < step.RunStart(seq)+step.RunLen(seq); r++ {
				x, y := o.QKV.row(in, r), o.O.row(out, r)[h*d:(h+1)*d]
				q, k, v := x[o.keyHead(h)*d:][:d], x[(nk+o.keyHead(h))*d:][:d], x[(2*nk+h)*d:][:d]
				gates := x[(2*nk+nv)*d:]
				decay, beta := float64(gates[h]), float64(gates[nv+h])
				for j := range d {
					col := s[j*d : (j+1)*d]
					delta := beta * (float64(v[j]) - decay*dot(col, k))
					for i := range col {
						col[i] = float32(decay*float64(col[i]) + float64(k[i])*delta)
					}
					y[j] = float32(dot(col, q) / math.Sqrt(float64(d)))
				}
			}
		}
		return nil
	})
	if err != nil || o.Norm == nil {
		return err
	}
	return o.Norm.Twin(m)
}

// slotWindow is a run of recurrent slots that fits one binding.
type slotWindow struct {
	first, slots int
	view         View
}

// slotWindows cuts a pool of slots into windows of at most max bytes. A kernel over a window leaves the
// sequences whose slot is elsewhere to the others. Room is left for the descriptor's alignment.
func slotWindows(v View, slotBytes int64, slots int, max int64) ([]slotWindow, error) {
	const slack = 4096
	if int64(slots)*slotBytes > v.Len {
		return nil, fmt.Errorf("%d slots of %d bytes in a view of %d", slots, slotBytes, v.Len)
	}
	per := slots
	if int64(slots)*slotBytes+slack > max {
		per = int((max - slack) / slotBytes)
	}
	if per <= 0 {
		return nil, fmt.Errorf("a slot of %d bytes does not fit a binding of %d bytes", slotBytes, max)
	}
	var ws []slotWindow
	for f := 0; f < slots; f += per {
		n := min(per, slots-f)
		ws = append(ws, slotWindow{f, n, v.Slice(int64(f)*slotBytes, int64(n)*slotBytes)})
	}
	return ws, nil
}
