package shaders

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Router chooses the experts of each token (model-qwen35.md 5.3, steps 1 to 4): softmax over all logits, the
// K most probable experts in descending order (of equal ones the lowest index first), and their weights
// p / max(sum of the chosen p, 2^-14) times Scale.
//
// A NaN logit ranks with -infinity and infinities count as the largest finite values, so that whatever the
// logits are the ids are K distinct experts and the weights are finite.
type Router struct {
	Step    View
	Logits  Mat  // rows x experts
	Ids     View // [Rows][K] uint32
	Weights View // [Rows][K] float32
	Rows    int
	Experts int
	K       int
	Scale   float32 // expert_weights_scale; 0 and 1 mean none
}

// routerFloor bounds the sum that weights are divided by.
const routerFloor = 1.0 / (1 << 14)

func routerModules() []Module {
	return []Module{{Name: "router", Source: "router.comp", Buffers: 4, Params: 4}}
}

func (o *Router) Kernel() string { return "router" }

func (o *Router) Operands() []Operand {
	return []Operand{R(o.Step), R(o.Logits.View), W(o.Ids), W(o.Weights)}
}

// Contents says that the ids are indices.
func (o *Router) Contents(operand int) Content {
	if operand == 2 {
		return Indices
	}
	return Values
}

func (o *Router) Cost() Cost {
	r, x, k := int64(o.Rows), int64(o.Experts), int64(o.K)
	return Cost{Bytes: 4 * r * (x + 2*k), Flops: r * (3*x + 2*k)}
}

func (o *Router) scale() float32 {
	if o.Scale == 0 {
		return 1
	}
	return o.Scale
}

func (o *Router) Lower(p *Profile) ([]Dispatch, error) {
	switch need := int64(o.Rows) * int64(o.K) * 4; {
	case o.K < 1 || o.K > o.Experts || o.Logits.Width != o.Experts:
		return nil, fmt.Errorf("router: %d of %d experts from %d logits", o.K, o.Experts, o.Logits.Width)
	case !o.Logits.holds(o.Rows):
		return nil, fmt.Errorf("router: a matrix of %d bytes does not hold %d rows of logits", o.Logits.Len, o.Rows)
	case o.Ids.Len < need || o.Weights.Len < need:
		return nil, fmt.Errorf("router: ids of %d and weights of %d bytes, %d rows of %d experts need %d", o.Ids.Len, o.Weights.Len, o.Rows, o.K, need)
	}
	if err := p.loops("router", (o.K+2)*(ceilDiv(o.Experts, int(p.Subgroup))+1)); err != nil {
		return nil, err
	}
	groups, err := p.grid("router", o.Rows, 1, 1)
	if err != nil {
		return nil, err
	}
	return []Dispatch{{
		Module: "router",
		Spec:   p.ReduceSpec(),
		Bind:   o.Operands(),
		Push:   []uint32{uint32(o.Experts), uint32(o.Logits.Stride), uint32(o.K), math.Float32bits(o.scale())},
		Groups: groups,
	}}, nil
}

func (o *Router) Twin(m Memory) error {
	logits, ids, weights := F32(m, o.Logits.View), U32(m, o.Ids), F32(m, o.Weights)
	order := make([]int, o.Experts)
	for t := range ViewStep(m, o.Step).Rows() {
		// NaN to the lowest value first, as clamping it would keep it.
		value := func(e int) float64 {
			v := float64(o.Logits.row(logits, t)[e])
			if v != v {
				v = math.Inf(-1)
			}
			return v
		}
		for e := range order {
			order[e] = e
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(value(b), value(a)) })
		finite := func(e int) float64 { return max(-math.MaxFloat32, min(value(e), math.MaxFloat32)) }
		prob := func(e int) float64 { return math.Exp(finite(e) - finite(order[0])) }
		total, chosen := 0.0, 0.0
		for e := range order {
			total += prob(e)
		}
		for _, e := range order[:o.K] {
			chosen += prob(e) / total
		}
		for s, e := range order[:o.K] {
			ids[t*o.K+s] = uint32(e)
			weights[t*o.K+s] = float32(prob(e) / total / max(chosen, routerFloor) * float64(o.scale()))
		}
	}
	return nil
}
