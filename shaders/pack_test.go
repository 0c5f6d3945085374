package shaders_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// packedUse is the ops of a layer over one block type, with inputs in whole numbers.
type packedUse struct {
	name string
	op   func(packed bool) shaders.Op // on matrices of its own each time
	y    func(shaders.Op) shaders.Mat
}

// Products with inputs in whole numbers: the twins differ from those of plain inputs by the rounding of the inputs, and kernels from
// the twins by that of sums, however many tokens they take at once.
func TestPacked(t *testing.T) {
	for i, typ := range []quant.Type{quant.Q4_K, quant.Q5_K, quant.Q6_K} {
		t.Run(typ.String(), func(t *testing.T) {
			r := kerneltest.Rand(uint64(40 + i))
			fill := map[*shaders.Buffer][]byte{}
			step, rows, capacity := unevenStep(t, fill)
			const in, out, f, experts, k = 1024, 70, 256, 5, 3
			x := paddedMat("x", capacity, in, 3, 2, fill)
			setRows(x, kerneltest.Normal(r, capacity*in), fill)
			clear(shaders.F32(shaders.HostMemory(fill), x.View)[x.Stride : x.Stride+256]) // a block of zeros
			xs := shaders.Normed{Mat: x}
			h := paddedMat("h", capacity, k*f+f, 1, 0, fill)
			setRows(h, kerneltest.Normal(r, capacity*(k*f+f)), fill)
			gate := paddedMat("gate", capacity, 1, 0, 0, fill)
			setRows(gate, kerneltest.Normal(r, capacity), fill)
			ids := filledWords("ids", capacity*k, chosenExperts(r, capacity, k, experts), fill).View()
			wb := &shaders.Buffer{Name: "weights", Kind: shaders.Scratch, Size: int64(capacity*k) * 4}
			fill[wb] = kerneltest.Floats(kerneltest.Normal(r, capacity*k))
			group := groupOf(step, ids, capacity, k, experts, fill)
			w, wide := expertStack(r, "w", typ, in, out, 1, fill), expertStack(r, "f32", quant.F32, in, 9, 1, fill)
			w.Experts, wide.Experts = 0, 0
			g, u := expertStack(r, "gate", typ, in, f, experts, fill), expertStack(r, "up", typ, in, f, experts, fill)
			sg, su := expertStack(r, "sgate", typ, in, f, 1, fill), expertStack(r, "sup", typ, in, f, 1, fill)
			down, sd := expertStack(r, "down", typ, f, out, experts, fill), expertStack(r, "sdown", typ, f, out, 1, fill)
			sd.Experts = 0
			room := func(packed bool, width int) shaders.Mat {
				if !packed {
					return shaders.Mat{}
				}
				return shaders.NewPacked("packed", capacity, width)
			}
			to := func(name string, width int) shaders.Mat {
				y := paddedMat(name, capacity, width, 1, 2, fill)
				setRows(y, kerneltest.Normal(kerneltest.Rand(7), capacity*width), fill)
				return y
			}
			mul := func(packed bool, n int) shaders.Op {
				return &shaders.MatMul{Step: step, W: w, X: x, Y: to("y", out), Rows: n, Count: shaders.CountRows, Accumulate: true, Factor: gate, Packed: room(packed, in)}
			}
			gateUp := func(packed, tiled bool) shaders.Op {
				o := &shaders.ExpertGateUp{Step: step, Gate: g, Up: u, SharedGate: sg, SharedUp: su, X: xs, Ids: ids, H: to("act", k*f+f), Rows: capacity, K: k, Packed: room(packed, in)}
				if tiled {
					o.Tiles = group.Tiles
				}
				return o
			}
			downs := func(packed, tiled bool) shaders.Op {
				o := &shaders.ExpertDown{Step: step, W: down, Shared: sd, Gate: gate, H: h, Y: to("sum", out), Ids: ids, Weights: wb.View(), Rows: capacity, K: k,
					Parts: partsOf(capacity, k, out), Packed: room(packed, k*f+f)}
				if tiled {
					o.Tiles = group.Tiles
				}
				return o
			}
			uses := []packedUse{
				{"matmul", func(p bool) shaders.Op { return mul(p, capacity) }, func(o shaders.Op) shaders.Mat { return o.(*shaders.MatMul).Y }},
				{"project", func(p bool) shaders.Op {
					return &shaders.Project{Step: step, W: []shaders.Matrix{wide, w, w}, X: xs, Y: to("side", 9+2*out), Rows: capacity, Count: shaders.CountRows, Packed: room(p, in)}
				}, func(o shaders.Op) shaders.Mat { return o.(*shaders.Project).Y }},
				{"gate and up", func(p bool) shaders.Op { return gateUp(p, false) }, func(o shaders.Op) shaders.Mat { return o.(*shaders.ExpertGateUp).H }},
				{"tiles of gate and up", func(p bool) shaders.Op { return gateUp(p, true) }, func(o shaders.Op) shaders.Mat { return o.(*shaders.ExpertGateUp).H }},
				{"down", func(p bool) shaders.Op { return downs(p, false) }, func(o shaders.Op) shaders.Mat { return o.(*shaders.ExpertDown).Y }},
				{"tiles of down", func(p bool) shaders.Op { return downs(p, true) }, func(o shaders.Op) shaders.Mat { return o.(*shaders.ExpertDown).Y }},
			}
			c := kerneltest.Case{Name: typ.String(), Packed: true, Fill: fill, Ops: []shaders.Op{group}}
			var ys []shaders.Mat
			for n, use := range uses {
				// Elsewhere than where they are used, these kernels compile for seconds: a third of them for each type.
				if n/2 != i && os.Getenv("CALDERA_LONG") != "1" && !kerneltest.Spreads() {
					continue
				}
				packed, plain := use.op(true), use.op(false)
				m := runTwins(t, []shaders.Op{group, packed, plain}, fill)
				got, want := use.y(packed), use.y(plain)
				gv, wv := shaders.F32(m, got.View), shaders.F32(m, want.View)
				off, size := 0.0, 0.0
				for row := range rows {
					for j := range got.Width {
						a, b := float64(gv[row*got.Stride+j]), float64(wv[row*want.Stride+j])
						off, size = off+(a-b)*(a-b), size+b*b
					}
				}
				// A code is off by 0.29 units on average, and a unit is about 1/90 of normal inputs' deviation.
				if off = math.Sqrt(off / size); off == 0 || off > 0.008 {
					t.Errorf("%s: the twin's results are off by %.4f of theirs", use.name, off)
				}
				c.Ops, ys = append(c.Ops, packed), append(ys, got)
				c.Check = append(c.Check, kerneltest.Check{View: got.Buf.View(), Tol: 1e-5})
			}
			// One token at a time has the bits that several at once have.
			for n := range ys {
				if n%2 == 1 && ys[n].Width == ys[n-1].Width {
					c.Same = append(c.Same, [2]shaders.View{ys[n-1].Buf.View(), ys[n].Buf.View()})
				}
			}
			for _, n := range []int{1, 2, 3} {
				if _, ok := c.Ops[1].(*shaders.MatMul); !ok {
					break
				}
				o := mul(true, n).(*shaders.MatMul)
				c.Ops = append(c.Ops, atMost{o, n})
				y := ys[0].Slice(0, int64(4*(n-1)*ys[0].Stride+4*out))
				c.Same = append(c.Same, [2]shaders.View{o.Y.Slice(0, y.Len), y})
			}
			kerneltest.Run(t, c)
		})
	}
}

// atMost is an op that leaves its twin's rows beyond n as they are.
type atMost struct {
	*shaders.MatMul
	n int
}

func (atMost) Twin(shaders.Memory) error { return nil }

// What cannot be packed is refused before anything is recorded.
func TestPackRefuses(t *testing.T) {
	r := kerneltest.Rand(1)
	w, _ := randomMatrix(r, quant.Q4_K, 512, 8, 0)
	o := &shaders.MatMul{Step: (&shaders.Buffer{Size: 64}).View(), W: w, X: shaders.NewMat("x", shaders.Scratch, 2, 512), Y: shaders.NewMat("y", shaders.Scratch, 2, 8), Rows: 2,
		Packed: shaders.NewPacked("packed", 2, 512)}
	p := shaders.Profile{Subgroup: 8, CanSpread: true, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
	ds, err := o.Lower(&p)
	if err != nil || len(ds) != 2 || ds[0].Module != "pack" || ds[1].Module != "matmul.q4_k.packed" {
		t.Fatalf("%v, %v", ds, err)
	}
	for name, change := range map[string]func(*shaders.MatMul, *shaders.Profile){
		"no such kernels": func(_ *shaders.MatMul, p *shaders.Profile) { p.CanSpread = false },
		"lanes":           func(_ *shaders.MatMul, p *shaders.Profile) { p.LanesPerRow = true },
		"too few rows":    func(o *shaders.MatMul, _ *shaders.Profile) { o.Packed = shaders.NewPacked("packed", 1, 512) },
		"too narrow":      func(o *shaders.MatMul, _ *shaders.Profile) { o.Packed = shaders.NewPacked("packed", 2, 256) },
	} {
		q, v := p, *o
		change(&v, &q)
		if _, err := v.Lower(&q); err == nil || errors.Is(err, shaders.ErrNotPacked) == (v.Packed != o.Packed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Numbers that are none stay so.
func TestPackedNaN(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		r := kerneltest.Rand(2)
		fill := map[*shaders.Buffer][]byte{}
		step, _, capacity := unevenStep(t, fill)
		w := expertStack(r, "w", quant.Q4_K, 512, 8, 1, fill)
		w.Experts = 0
		x, y := paddedMat("x", capacity, 512, 0, 0, fill), paddedMat("y", capacity, 8, 0, 0, fill)
		v := kerneltest.Normal(r, capacity*512)
		v[300] = bad
		setRows(x, v, fill)
		o := &shaders.MatMul{Step: step, W: w, X: x, Y: y, Rows: capacity, Count: shaders.CountRows, Packed: shaders.NewPacked("packed", capacity, 512)}
		m := runTwins(t, []shaders.Op{o}, fill)
		for i, v := range shaders.F32(m, y.View)[:16] {
			if math.IsNaN(float64(v)) != (i < 8) {
				t.Errorf("of an input of %g comes %g in row %d", bad, v, i/8)
			}
		}
		kerneltest.Run(t, kerneltest.Case{Name: fmt.Sprint(bad), Packed: true, Ops: []shaders.Op{o}, Fill: fill, Check: []kerneltest.Check{{View: y.View, Tol: 1e-5}}})
	}
}
