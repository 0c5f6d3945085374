package shaders

import "fmt"

// ExpertDown adds the weighted outputs of the experts to the residual: Y[row] += sum over s < K of
// Weights[row][s] * (W H[row][s]), with W the matrix of expert Ids[row][s] (model-qwen35.md 5.3, step 5: the
// weight applies after the down projection). An id that names no expert adds nothing.
//
// A dispatch over rows adds up as it goes. With Tiles (see [ExpertGroup]), which let the rows of a step share
// weights, and where the stack takes several bindings, the products go to Parts first and another dispatch adds
// them up: in the order of the slots in every case, so that the sum has the same bits.
type ExpertDown struct {
	Step View
	W    Matrix // a stack of Out x F
	// Shared is the shared expert's matrix, of Out x FS, and Gate what its product is multiplied by the sigmoid of (step 6);
	// zero when absent. It is added after the others.
	Shared  Matrix
	Gate    Mat
	H       Mat  // rows x (K*F + FS), as from ExpertGateUp
	Ids     View // [Rows][K] uint32
	Weights View // [Rows][K] float32
	Tiles   View // of the Ids; zero when absent
	Parts   View // the op's own between its dispatches; of PartsBytes
	Y       Mat  // rows x Out, read and written
	Rows    int
	K       int
	Packed  Mat // the op's own, for H in whole numbers (see [NewPacked]); zero without
}

const (
	downRows  = iota // add up a row's experts
	downPairs        // products of pairs, one by one
	downTiles
)

// partsUnit is the fewest outputs that products are formed of at once, a multiple of what begins at a word in
// any block type; partsLimit is the memory that more of them may take.
const (
	partsUnit  = 32
	partsLimit = 32 << 20
)

// PartsBytes is a size of Parts for steps of at most so many rows: room for the products of all pairs, or of a run
// of the outputs where that is much.
func PartsBytes(rows, k, out int) int64 {
	column := 4 * int64(rows) * int64(k)
	units := max(partsLimit/(column*partsUnit), 1)
	return column * min(int64(out), units*partsUnit)
}

func expertDownModules() []Module {
	ms := weightModules("expert_down", 1, Module{Source: "expert_down.comp", Buffers: 6, Params: 10}, fusion{matrices: 1, buffers: 8, params: 13})
	return append(ms, Module{Name: "expert_sum", Source: "expert_sum.comp", Buffers: 5, Params: 4})
}

func (o *ExpertDown) Kernel() string { return "expert_down" }

func (o *ExpertDown) Operands() []Operand {
	ops := []Operand{R(o.Step), R(o.W.View), R(o.H.View), R(o.Ids), R(o.Weights), RW(o.Y.View), W(o.Parts)}
	if o.tiled() {
		ops = append(ops, R(o.Tiles))
	}
	ops = append(ops, o.W.operands()...)
	if o.hasShared() {
		ops = append(append(ops, R(o.Shared.View), R(o.Gate.View)), o.Shared.operands()...)
	}
	if o.packs() {
		ops = append(ops, W(o.Packed.View))
	}
	return ops
}

// packs reports whether a matrix takes inputs in whole numbers.
func (o *ExpertDown) packs() bool { return o.W.packs(o.Packed) || o.Shared.packs(o.Packed) }

func (o *ExpertDown) hasShared() bool { return o.Shared.Buf != nil }

// shared is the shared expert's part as an op of its own.
func (o *ExpertDown) shared() *MatMul {
	return &MatMul{Step: o.Step, W: o.Shared, X: o.H.Cols(o.K*o.W.In, o.Shared.In), Y: o.Y, Rows: o.Rows, Count: CountRows,
		Accumulate: true, Factor: o.Gate, Gate: true, Packed: o.packedCols(o.K*o.W.In, o.Shared.In)}
}

// packedCols is what columns of H have of Packed.
func (o *ExpertDown) packedCols(from, n int) Mat {
	if !o.packs() {
		return Mat{}
	}
	return packedCols(o.Packed, from, n)
}

// slots is the op without the shared expert.
func (o *ExpertDown) slots() *ExpertDown {
	s := *o
	s.Shared, s.Gate, s.H, s.Packed = Matrix{}, Mat{}, o.H.Cols(0, o.K*o.W.In), o.packedCols(0, o.K*o.W.In)
	return &s
}

// takes reports whether a kernel that adds up the slots' experts can add the shared one.
func (o *ExpertDown) takes(p *Profile, windows []rowWindow) bool {
	if !o.hasShared() || !p.folds(o.Rows) || o.tiled() || len(windows) != 1 || o.Shared.Type != o.W.Type || HasScale(o.W.Type) {
		return false
	}
	if p.way(o.use()).Group != p.way(o.shared().use()).Group {
		return false // by itself the shared expert would be added up in another order
	}
	ws, err := o.Shared.rowWindows(p.MaxBinding)
	return err == nil && len(ws) == 1
}

// Contents says that Parts and Packed are the dispatches' own.
func (o *ExpertDown) Contents(operand int) Content {
	if operand == 6 {
		return Notes
	}
	return packedLast(o, o.packs(), operand)
}

func (o *ExpertDown) tiled() bool { return o.Tiles.Buf != nil }

func (o *ExpertDown) Cost() Cost {
	r, k, f, e := int64(o.Rows), int64(o.K), int64(o.W.In), int64(o.W.Out)
	used := min(r*k, int64(o.W.stack()))
	c := Cost{Weights: used * o.W.used(), Bytes: 4 * r * (k*f + 2*k + 2*e), Flops: 2 * r * k * f * e}
	if o.tiled() {
		c.Bytes += 2 * 4 * r * k * e
	}
	if o.hasShared() {
		c = c.Plus(o.shared().Cost())
	}
	return c
}

func (o *ExpertDown) check() error {
	if err := o.W.checkStack(); err != nil {
		return err
	}
	pairs := int64(o.Rows) * int64(o.K) * 4
	if o.hasShared() {
		if err := o.Shared.check(); err != nil {
			return err
		}
		if o.Shared.Out != o.W.Out || o.Gate.Width != 1 || !o.Gate.holds(o.Rows) {
			return fmt.Errorf("expert_down %s: %d outputs for %d, and a gate of %d by %d bytes", o.Shared.Name, o.Shared.Out, o.W.Out, o.Gate.Width, o.Gate.Len)
		}
	}
	switch {
	case o.K < 1 || o.H.Width != o.K*o.W.In+o.Shared.In || o.Y.Width != o.W.Out:
		return fmt.Errorf("expert_down %s: %d x %d weights of %d experts between widths %d and %d", o.W.Name, o.W.Out, o.W.In, o.K, o.H.Width, o.Y.Width)
	case !o.H.holds(o.Rows) || !o.Y.holds(o.Rows):
		return fmt.Errorf("expert_down %s: matrices of %d and %d bytes do not hold %d rows", o.W.Name, o.H.Len, o.Y.Len, o.Rows)
	case o.Ids.Len < pairs || o.Weights.Len < pairs:
		return fmt.Errorf("expert_down %s: ids of %d and weights of %d bytes, %d rows of %d experts need %d", o.W.Name, o.Ids.Len, o.Weights.Len, o.Rows, o.K, pairs)
	case o.tiled() && o.Tiles.Len < TilesBytes(o.Rows, o.K, o.W.stack()):
		return fmt.Errorf("expert_down %s: tiles of %d bytes for %d rows of %d of %d experts", o.W.Name, o.Tiles.Len, o.Rows, o.K, o.W.stack())
	case o.Parts.Len < pairs*int64(min(o.W.Out, partsUnit)):
		return fmt.Errorf("expert_down %s: parts of %d bytes for %d rows of %d experts", o.W.Name, o.Parts.Len, o.Rows, o.K)
	}
	return nil
}

func (o *ExpertDown) Lower(p *Profile) ([]Dispatch, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	windows, err := o.W.expertWindows(p.MaxBinding)
	if err != nil {
		return nil, err
	}
	if o.hasShared() && !o.takes(p, windows) {
		ds, err := o.slots().Lower(p)
		if err != nil {
			return nil, err
		}
		rest, err := o.shared().Lower(p)
		return append(ds, rest...), err
	}
	var ds []Dispatch
	if o.W.packs(o.Packed) {
		d, err := p.pack(o.Step, o.H, o.Packed, o.Rows, CountRows)
		if err != nil {
			return nil, err
		}
		ds = append(ds, d)
	}
	if !o.tiled() && len(windows) == 1 {
		d, err := o.products(p, o.W, windows[0], downRows, 1, o.Rows, 0, RW(o.Y.View), o.Y.Stride)
		return append(ds, d), err
	}
	// A run of outputs after the other, as many as there is room for the products of.
	pairs := o.Rows * o.K
	cols := int(min(o.Parts.Len, p.MaxBinding)/int64(4*pairs)) / partsUnit * partsUnit
	if cols == 0 || cols > o.W.Out {
		cols = o.W.Out
	}
	for from := 0; from < o.W.Out; from += cols {
		n := min(cols, o.W.Out-from)
		run, err := o.run(p, from, n, o.Parts.Slice(0, int64(4*pairs*n)))
		if err != nil {
			return nil, err
		}
		ds = append(ds, run...)
	}
	return ds, nil
}

// run lowers n outputs from one on: the products of all experts and their sum.
func (o *ExpertDown) run(p *Profile, from, n int, parts View) ([]Dispatch, error) {
	w := o.W.Rows(from, n)
	windows, err := w.expertWindows(p.MaxBinding)
	if err != nil {
		return nil, err
	}
	t := tilesOf(o.Rows, o.K, o.W.stack())
	var ds []Dispatch
	add := func(d Dispatch, failed error) {
		ds = append(ds, d)
		if err == nil {
			err = failed
		}
	}
	for _, win := range windows {
		if !o.tiled() {
			add(o.products(p, w, win, downPairs, 1, o.Rows*o.K, 0, W(parts), n))
			continue
		}
		for kind, width := range tileWidths {
			if most := t.most(kind); most > 0 {
				add(o.products(p, w, win, downTiles, width, most, t.at(kind), W(parts), n))
			}
		}
	}
	add(o.sum(p, from, n, parts))
	return ds, err
}

// products lowers a dispatch over ny rows, pairs or tiles of so many pairs.
func (o *ExpertDown) products(p *Profile, w Matrix, win rowWindow, mode uint32, tokens, ny, tiles int, y Operand, stride int) (Dispatch, error) {
	turns := 1
	if mode == downRows {
		turns = o.K
	}
	if err := p.loops("expert_down "+w.Name, turns*(w.In/32+1)+o.Shared.In/32+1); err != nil {
		return Dispatch{}, err
	}
	way := p.way(o.use()).reading(o.H)
	if o.hasShared() {
		way.Scheme = fusedScheme
	}
	spec, gx := p.spec(way, w.Out, tokens)
	spec = append(spec, mode)
	if n := p.blocksAtOnce(way, w, tokens); n > 0 {
		spec = append(spec, n)
	}
	groups, err := p.grid("expert_down", gx, ny, 1)
	if err != nil {
		return Dispatch{}, err
	}
	h := o.H
	if o.W.packs(o.Packed) {
		h = o.Packed
	}
	ids := o.Ids
	if mode == downTiles {
		ids = o.Tiles
	}
	d := Dispatch{
		Module: weightModule("expert_down", w.Type, way.Scheme),
		Spec:   spec,
		Bind:   []Operand{R(o.Step), R(win.view), R(h.View), R(ids), R(o.Weights), y},
		Push: []uint32{uint32(w.Out), uint32(w.In), uint32(w.RowBytes()), uint32(w.expertBytes()),
			uint32(h.Stride), uint32(stride), uint32(o.K), uint32(win.first), uint32(win.rows), uint32(tiles)},
		Groups: groups,
		Use:    o.use(),
	}
	if way.Scheme == fusedScheme {
		d.Bind = append(d.Bind, R(o.Shared.View), R(o.Gate.View))
		d.Push = append(d.Push, uint32(o.Shared.In), uint32(o.Shared.RowBytes()), uint32(o.Gate.Stride))
	}
	d.Bind = append(d.Bind, extras(win.first, w)...)
	return d, nil
}

// sum lowers the addition of n outputs' products.
func (o *ExpertDown) sum(p *Profile, from, n int, parts View) (Dispatch, error) {
	if err := p.loops("expert_sum "+o.W.Name, o.K); err != nil {
		return Dispatch{}, err
	}
	const lanes = 64
	groups, err := p.grid("expert_sum", min(ceilDiv(n, lanes), int(p.MaxGroups[0])), o.Rows, 1)
	if err != nil {
		return Dispatch{}, err
	}
	return Dispatch{
		Module: "expert_sum",
		Spec:   []uint32{lanes},
		Bind:   []Operand{R(o.Step), R(parts), R(o.Ids), R(o.Weights), RW(o.Y.Cols(from, n).View)},
		Push:   []uint32{uint32(n), uint32(o.Y.Stride), uint32(o.K), uint32(o.W.stack())},
		Groups: groups,
	}, nil
}

func (o *ExpertDown) Twin(m Memory) error {
	if o.hasShared() {
		if err := o.slots().Twin(m); err != nil {
			return err
		}
		return o.shared().Twin(m)
	}
	tokens := ViewStep(m, o.Step).Rows()
	pairs, _ := pairsByExpert(U32(m, o.Ids)[:tokens*o.K], o.W.stack())
	if o.tiled() {
		pairs, _ = tilesOf(o.Rows, o.K, o.W.stack()).byExpert(U32(m, o.Tiles), tokens*o.K)
	}
	w, y, weights := o.W.products(m, o.H, o.Packed, tokens), F32(m, o.Y.View), F32(m, o.Weights)
	return parallel(o.W.Out, func(from, to int) error {
		row, sum := w.weightRow(), make([]float64, tokens)
		for r := from; r < to; r++ {
			clear(sum)
			for e, of := range pairs {
				if err := row.load(e, r); err != nil {
					return err
				}
				for _, i := range of {
					sum[i/o.K] += float64(weights[i]) * row.dot(i/o.K, i%o.K*o.W.In)
				}
			}
			for t, s := range sum {
				y[t*o.Y.Stride+r] = float32(float64(y[t*o.Y.Stride+r]) + s)
			}
		}
		return nil
	})
}
