package shaders

import (
	"fmt"
	"math"
)

// GDNConv turns one layer's projections into the inputs of the gated delta rule (model-qwen35.md 5.2,
// steps 2 to 4) and carries the convolution's tail. Per row and channel c of C = 2 KHeads Dim + VHeads Dim,
// channels in the order q, k, v:
//
//	w_c = silu(sum over i of conv[c][i] u_c[t-3+i]), i = 0..3
//
// with the inputs u of earlier rows from the tail or, in a fresh run, zeros before the first row; q and k
// are divided per head by max(norm, Eps). Per value head: decay = exp(A softplus(alpha + DtBias)) and
// beta = sigmoid(b).
type GDNConv struct {
	Step        View
	P           Mat  // rows x C: u, usually the first columns of a wide projection
	Beta, Alpha Mat  // rows x VHeads: b and alpha, columns of the same buffer and rows as P
	Conv        View // [C][4], tap 0 belongs to the oldest input
	A, DtBias   View // [VHeads]; A holds -exp(A_log)
	Tail        View // state, [Slots][3][C]: the last three u, oldest first
	Out         Mat  // rows x (C + 2 VHeads): q, k, v, decay, beta
	Rows        int  // capacity
	Seqs        int  // capacity
	Slots       int
	KHeads      int // heads of q and of k
	VHeads      int
	Dim         int // channels of a head
	Eps         float32
}

func gdnConvModules() []Module {
	return []Module{{Name: "gdn_conv", Source: "gdn_conv.comp", Buffers: 7, Params: 13}}
}

// channels is C, the number of convolved channels.
func (o *GDNConv) channels() int { return (2*o.KHeads + o.VHeads) * o.Dim }

func (o *GDNConv) Kernel() string { return "gdn_conv" }

func (o *GDNConv) Operands() []Operand {
	return []Operand{R(o.Step), R(o.P.Cols(0, o.channels()).View), R(o.Beta.View), R(o.Alpha.View),
		R(o.Conv), R(o.A), R(o.DtBias), RW(o.Tail), W(o.Out.View)}
}

func (o *GDNConv) Cost() Cost {
	c, r, h := int64(o.channels()), int64(o.Rows), int64(o.VHeads)
	return Cost{
		Weights: 16*c + 8*h,
		Bytes:   4*r*2*(c+2*h) + 4*int64(o.Seqs)*2*3*c,
		Flops:   r * (12*c + 30*h),
	}
}

func (o *GDNConv) Lower(p *Profile) ([]Dispatch, error) {
	c := o.channels()
	switch {
	case o.KHeads <= 0 || o.VHeads <= 0 || o.Dim <= 0 || o.Slots <= 0:
		return nil, fmt.Errorf("gdn_conv: %d key heads and %d value heads of %d channels in %d slots", o.KHeads, o.VHeads, o.Dim, o.Slots)
	case o.P.Width < c || o.Beta.Width != o.VHeads || o.Alpha.Width != o.VHeads || o.Out.Width != c+2*o.VHeads:
		return nil, fmt.Errorf("gdn_conv: widths %d, %d, %d and %d do not fit %d channels and %d value heads", o.P.Width, o.Beta.Width, o.Alpha.Width, o.Out.Width, c, o.VHeads)
	case o.Conv.Len < 16*int64(c) || o.A.Len < 4*int64(o.VHeads) || o.DtBias.Len < 4*int64(o.VHeads):
		return nil, fmt.Errorf("gdn_conv: weights of %d, %d and %d bytes are too short for %d channels and %d value heads", o.Conv.Len, o.A.Len, o.DtBias.Len, c, o.VHeads)
	case o.Beta.Buf != o.P.Buf || o.Alpha.Buf != o.P.Buf || o.Beta.Stride != o.P.Stride || o.Alpha.Stride != o.P.Stride:
		// One binding serves all three, within the limit of eight.
		return nil, fmt.Errorf("gdn_conv: u, beta and alpha are not columns of one matrix")
	}
	u := o.P.Cols(0, c)
	from := min(u.Off, o.Beta.Off, o.Alpha.Off)
	uCol, betaCol, alphaCol := (u.Off-from)/4, (o.Beta.Off-from)/4, (o.Alpha.Off-from)/4
	row := max(uCol+int64(c), betaCol+int64(o.VHeads), alphaCol+int64(o.VHeads))
	if row > int64(o.P.Stride) {
		return nil, fmt.Errorf("gdn_conv: u, beta and alpha do not begin in the same row")
	}
	all := View{Buf: o.P.Buf, Off: from, Pitch: 4 * int64(o.P.Stride), Row: 4 * row,
		Len: max(u.Off+u.Len, o.Beta.Off+o.Beta.Len, o.Alpha.Off+o.Alpha.Len) - from}
	windows, err := slotWindows(o.Tail, 3*4*int64(c), o.Slots, p.MaxBinding)
	if err != nil {
		return nil, fmt.Errorf("gdn_conv: %w", err)
	}
	// One group more than heads computes the gates.
	groups, err := p.grid("gdn_conv", 2*o.KHeads+o.VHeads+1, o.Seqs, 1)
	if err != nil {
		return nil, err
	}
	per := ceilDiv(o.Dim, int(p.Subgroup))
	// The loops of a row's channels and, in the group of the gates, of its heads.
	rows, err := p.spans(o.Rows, max(2*per+1, ceilDiv(o.VHeads, int(p.Subgroup))), 2*per+1)
	if err != nil {
		return nil, fmt.Errorf("gdn_conv: %w", err)
	}
	var ds []Dispatch
	for _, w := range windows {
		for _, r := range rows {
			ds = append(ds, Dispatch{
				Module: "gdn_conv",
				Spec:   append(p.ReduceSpec(), uint32(per)),
				Bind:   []Operand{R(o.Step), R(all), R(o.Conv), R(o.A), R(o.DtBias), RW(w.view), W(o.Out.View)},
				Push: []uint32{uint32(o.P.Stride), uint32(uCol), uint32(betaCol), uint32(alphaCol), uint32(o.Out.Stride),
					uint32(o.KHeads), uint32(o.VHeads), uint32(o.Dim), uint32(w.first), uint32(w.slots),
					uint32(r.first), uint32(r.count), math.Float32bits(o.Eps)},
				Groups: groups,
			})
		}
	}
	return ds, nil
}

func (o *GDNConv) Twin(m Memory) error {
	step, nv, c := ViewStep(m, o.Step), o.VHeads, o.channels()
	p, beta, alpha, out := F32(m, o.P.View), F32(m, o.Beta.View), F32(m, o.Alpha.View), F32(m, o.Out.View)
	conv, a, dt := F32(m, o.Conv), F32(m, o.A), F32(m, o.DtBias)
	w := make([]float64, c)
	for seq := range step.Seqs() {
		slot := step.RunSlot(seq)
		if slot >= o.Slots {
			return fmt.Errorf("gdn_conv: sequence %d has slot %d of %d", seq, slot, o.Slots)
		}
		tail := F32(m, o.Tail)[slot*3*c : (slot+1)*3*c]
		if step.RunFresh(seq) {
			clear(tail)
		}
		for r := step.RunStart(seq); r < step.RunStart(seq)+step.RunLen(seq); r++ {
			u, y := o.P.row(p, r), o.Out.row(out, r)
			for i := range w {
				k := conv[4*i : 4*i+4]
				v := float64(k[0])*float64(tail[i]) + float64(k[1])*float64(tail[c+i]) +
					float64(k[2])*float64(tail[2*c+i]) + float64(k[3])*float64(u[i])
				w[i] = v * sigmoid(v)
			}
			for h := range 2*o.KHeads + nv {
				head, scale := w[h*o.Dim:(h+1)*o.Dim], 1.0
				if h < 2*o.KHeads {
					sum := 0.0
					for _, v := range head {
						sum += v * v
					}
					scale = 1 / max(math.Sqrt(sum), float64(o.Eps))
				}
				for i, v := range head {
					y[h*o.Dim+i] = float32(v * scale)
				}
			}
			for h := range nv {
				x := float64(o.Alpha.row(alpha, r)[h]) + float64(dt[h])
				y[c+h] = float32(math.Exp(float64(a[h]) * softplus(x)))
				y[c+nv+h] = float32(sigmoid(float64(o.Beta.row(beta, r)[h])))
			}
			copy(tail, tail[c:])
			copy(tail[2*c:], u[:c])
		}
	}
	return nil
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// softplus is log(1 + e^x), which beyond 20 is x.
func softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}
