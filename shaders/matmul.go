package shaders

import "fmt"

// A Mat is a float32 matrix of activations: row r of Width floats begins at float r*Stride of the view.
type Mat struct {
	View
	Width  int
	Stride int
}

// NewMat returns a matrix of rows x width floats over a new scratch buffer.
func NewMat(name string, kind Kind, rows, width int) Mat {
	b := &Buffer{Name: name, Kind: kind, Size: int64(rows) * int64(width) * 4}
	return Mat{View: b.View(), Width: width, Stride: width}
}

// Cols returns columns [from, from+n) of every row.
func (m Mat) Cols(from, n int) Mat {
	v := m.Slice(int64(from)*4, m.Len-int64(from)*4)
	v.Pitch, v.Row = int64(m.Stride)*4, int64(n)*4
	return Mat{View: v, Width: n, Stride: m.Stride}
}

func (m Mat) row(f []float32, r int) []float32 { return f[r*m.Stride : r*m.Stride+m.Width] }

// MatMul computes Y = W X for each token, optionally times a factor per token, or added
// to what Y holds. Rows is the capacity in tokens and Count says which of the step's counts limits it.
type MatMul struct {
	Step       View
	W          Matrix
	X, Y       Mat
	Rows       int
	Count      Count
	Accumulate bool
	Factor     Mat  // width 1; zero when absent
	Gate       bool // the factor is the sigmoid of what Factor holds
	Packed     Mat  // the op's own, for its inputs in whole numbers (see [NewPacked]); zero without
	isPacked   bool // they are there already
}

// matmulTokens is the number of tokens a matrix kernel takes at once when there are several: weights are
// dequantised once for all of them.
const matmulTokens = 4

const (
	matmulAccumulate = 1 << iota
	matmulFactor
	matmulGate
)

func matmulModules() []Module {
	return append(weightModules("matmul", 1, Module{Source: "matmul.comp", Buffers: 5, Params: 8}, fusion{matrices: 2, buffers: 7, params: 10}), matrixModules()...)
}

// rowGroup is the workgroup size of the row-per-lane scheme, and tileRows the number of weight rows that an
// invocation of it takes (ROWS of common/tile.glsl). A value that is loaded is used for all of them: on
// llvmpipe 22 a load costs some 20 cycles a lane and four rows are 3 to 5 times as fast as one, eight slower
// again; on llvmpipe 26 four and one are alike. Groups are small so that short matrices still
// occupy every processor; between 8 and 512 software devices do not care (vulkan-platform.md 6).
const (
	rowGroup = 8
	tileRows = 4
)

// spreadLanes is the subgroup that the spread scheme is made for, and spreadRows the number of weight rows that it takes
// (ROWS of common/tile.glsl): enough to share the loading of inputs, and few enough that the code of a turn stays in
// the processor's caches for instructions, beyond which it runs at a third of the speed.
const (
	spreadLanes = 8
	spreadRows  = 8
)

func (o *MatMul) Kernel() string { return "matmul" }

func (o *MatMul) Operands() []Operand {
	y := W(o.Y.View)
	// A partial row (a column range of a wider matrix) leaves its neighbours alone, which for hazards is
	// still a write of the range.
	if o.Accumulate {
		y = RW(o.Y.View)
	}
	ops := []Operand{R(o.Step), R(o.W.View), R(o.X.View), y}
	if o.Factor.Buf != nil {
		ops = append(ops, R(o.Factor.View))
	}
	ops = append(ops, o.W.operands()...)
	if o.W.packs(o.Packed) {
		ops = append(ops, W(o.Packed.View))
	}
	return ops
}

// Contents says that what is Packed is the dispatches' own.
func (o *MatMul) Contents(operand int) Content { return packedLast(o, o.W.packs(o.Packed), operand) }

func (o *MatMul) Cost() Cost {
	r := int64(o.Rows)
	return Cost{Weights: o.W.used(), Bytes: 4 * r * int64(o.W.In+o.W.Out), Flops: 2 * r * int64(o.W.In) * int64(o.W.Out)}
}

func (o *MatMul) Lower(p *Profile) ([]Dispatch, error) {
	if err := o.W.check(); err != nil {
		return nil, err
	}
	if o.X.Width != o.W.In || o.Y.Width != o.W.Out || o.Gate && o.Factor.Buf == nil {
		return nil, fmt.Errorf("matmul %s: %d x %d weights between widths %d and %d, gate %t", o.W.Name, o.W.Out, o.W.In, o.X.Width, o.Y.Width, o.Gate)
	}
	if err := p.loops("matmul "+o.W.Name, o.W.In/32+1); err != nil {
		return nil, err
	}
	windows, err := o.W.rowWindows(p.MaxBinding)
	if err != nil {
		return nil, err
	}
	mode, factor := uint32(0), R(o.X.View)
	if o.Accumulate {
		mode |= matmulAccumulate
	}
	if o.Factor.Buf != nil {
		mode |= matmulFactor
		factor = R(o.Factor.View)
	}
	if o.Gate {
		mode |= matmulGate
	}
	way := p.way(o.use()).reading(o.X)
	at := way.TokensAt(o.Rows)
	var ds []Dispatch
	x := o.X
	if o.W.packs(o.Packed) {
		x = o.Packed
		if !o.isPacked {
			d, err := p.pack(o.Step, o.X, o.Packed, o.Rows, o.Count)
			if err != nil {
				return nil, err
			}
			ds = append(ds, d)
		}
	}
	if p.takesMatrices(o) {
		way, at = Way{Scheme: matrixScheme}, p.Matrices.tokens()
	}
	for _, w := range windows {
		spec, gx := p.spec(way, w.rows, at)
		if n := p.blocksAtOnce(way, o.W, at); n > 0 {
			spec = append(spec, 0, n)
		}
		groups, err := p.grid("matmul", gx, ceilDiv(o.Rows, at), 1)
		if err != nil {
			return nil, err
		}
		y := o.Y.Cols(w.first, w.rows)
		yo := Operand{y.View, o.Operands()[3].Access}
		ds = append(ds, Dispatch{
			Module: weightModule("matmul", o.W.Type, way.Scheme),
			Spec:   spec,
			Bind:   append([]Operand{R(o.Step), R(w.view), R(x.View), yo, factor}, extras(0, o.W)...),
			Push: []uint32{uint32(o.Count), uint32(w.rows), uint32(o.W.In), uint32(o.W.RowBytes()),
				uint32(x.Stride), uint32(o.Y.Stride), uint32(o.Factor.Stride), mode},
			Groups: groups,
			Use:    o.use(),
		})
	}
	return ds, nil
}

func (o *MatMul) Twin(m Memory) error {
	tokens := ViewStep(m, o.Step).Count(o.Count)
	w, y := o.W.products(m, o.X, o.Packed, tokens), F32(m, o.Y.View)
	var factor []float32
	if o.Factor.Buf != nil {
		factor = F32(m, o.Factor.View)
	}
	return parallel(o.W.Out, func(from, to int) error {
		row := w.weightRow()
		for r := from; r < to; r++ {
			if err := row.load(0, r); err != nil {
				return err
			}
			for t := range tokens {
				v := row.dot(t, 0)
				if factor != nil {
					f := float64(factor[t*o.Factor.Stride])
					if o.Gate {
						f = sigmoid(f)
					}
					v *= f
				}
				i := t*o.Y.Stride + r
				if o.Accumulate {
					v += float64(y[i])
				}
				y[i] = float32(v)
			}
		}
		return nil
	})
}
