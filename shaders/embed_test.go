package shaders_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// tinyBindings lowers an op as for a device with a smaller binding limit, its windows in reverse: each has
// its own rows, so that their order must not matter.
type tinyBindings struct {
	shaders.Op
	max int64
}

func (o tinyBindings) Lower(p *shaders.Profile) ([]shaders.Dispatch, error) {
	q := *p
	q.MaxBinding = o.max
	ds, err := o.Op.Lower(&q)
	slices.Reverse(ds)
	return ds, err
}

func TestEmbed(t *testing.T) {
	const table = 23 // odd: the last row of some types ends inside a word
	runs := []shaders.Run{
		{Tokens: []int32{3, 22, 0}, Pages: []int32{0}},
		{Tokens: []int32{7}, Pages: []int32{1}},
		{Tokens: []int32{23, 1, 8, 21, -1, 1 << 20}, Pages: []int32{2}}, // 23, -1 and 1<<20 are not in the table
		{Tokens: []int32{4, 5}, Pages: []int32{3}},
	}
	const rows = 12
	shape := shaders.StepShape{Rows: 16, Seqs: 4, Pages: 1}
	for _, typ := range fullTypes {
		for i, width := range []int{32, 96, 256, 1280} {
			if width%typ.BlockSize() != 0 {
				continue
			}
			name := fmt.Sprintf("%v/%d", typ, width)
			fill := map[*shaders.Buffer][]byte{}
			step, data := kerneltest.Step(t, shape, runs, nil)
			fill[step] = data
			y := paddedMat("y", shape.Rows, width, 1, 2, fill)
			bytes := randomTable(kerneltest.Rand(uint64(i)), typ, table, width)
			const before = 20 // bytes of another tensor
			wb := &shaders.Buffer{Name: "table", Kind: shaders.Weight, Size: (int64(before+len(bytes)) + 3) / 4 * 4}
			fill[wb] = append(append(shaders.AlignedBytes(wb.Size)[:before], bytes...), make([]byte, int(wb.Size)-before-len(bytes))...)
			w := shaders.Matrix{View: wb.View().Slice(before, int64(len(bytes))), Name: "token_embd.weight", Type: typ, In: width, Out: table}
			withFactors(kerneltest.Rand(uint64(i)), &w, fill)
			op := &shaders.Embed{Step: step.View(), W: w, Y: y, Rows: shape.Rows}

			want := make([]float32, table*width)
			if err := quant.Dequantize(typ, want, bytes); err != nil {
				t.Fatal(err)
			}
			for j := range want {
				want[j] *= factor(w, 0, fill)
			}
			got := shaders.F32(runTwins(t, []shaders.Op{op}, fill), y.View)
			row := 0
			for _, run := range runs {
				for _, tok := range run.Tokens {
					for j := range width {
						v := float32(0)
						if tok >= 0 && tok < table {
							v = want[int(tok)*width+j]
						}
						if g := got[row*y.Stride+j]; g != v {
							t.Fatalf("%s: token %d, column %d: the twin has %g, the table %g", name, tok, j, g, v)
						}
					}
					row++
				}
			}
			// Five rows of the table a window, or the four of them that make whole words, and all in one.
			windows := 5
			if w.RowBytes()%4 != 0 {
				windows = 6
			}
			for what, o := range map[string]shaders.Op{"whole": op, "windows": tinyBindings{op, 4096 + 5*w.RowBytes()}} {
				ds, err := o.Lower(&shaders.Profile{Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}})
				if n := map[string]int{"whole": 1, "windows": windows}[what]; err != nil || len(ds) != n {
					t.Fatalf("%s %s: %d dispatches, want %d (%v)", name, what, len(ds), n, err)
				}
				kerneltest.Run(t, kerneltest.Case{Name: name + "/" + what, Ops: []shaders.Op{o}, Fill: fill, Check: []kerneltest.Check{
					{View: y.Buf.View(), Tol: 1e-6},
					{View: rowsFrom(y, rows), Exact: true},
				}})
			}
		}
	}
}

func TestEmbedRefuses(t *testing.T) {
	step := shaders.StepShape{Rows: 4, Seqs: 1, Pages: 1}.NewBuffer()
	b := &shaders.Buffer{Name: "table", Kind: shaders.Weight, Size: 4 * 64 * 10}
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
	good := shaders.Embed{Step: step.View(), W: shaders.Matrix{View: b.View(), Name: "w", Type: quant.F32, In: 64, Out: 10}, Y: shaders.NewMat("y", shaders.Scratch, 4, 64), Rows: 4}
	if _, err := good.Lower(p); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(o *shaders.Embed){
		"type":    func(o *shaders.Embed) { o.W.Type = quant.Q8_1 },
		"width":   func(o *shaders.Embed) { o.Y = o.Y.Cols(0, 32) },
		"rows":    func(o *shaders.Embed) { o.Rows = 5 },
		"experts": func(o *shaders.Embed) { o.W.Experts = 2 },
		"memory":  func(o *shaders.Embed) { o.W.Off = 2 },
	} {
		o := good
		spoil(&o)
		if _, err := o.Lower(p); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}
