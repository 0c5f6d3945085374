package shaders_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
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

// randomTable returns rows of random blocks whose scales are moderate halves.
func randomTable(r *rand.Rand, typ quant.Type, rows, width int) []byte {
	blocks := rows * width / typ.BlockSize()
	b := shaders.AlignedBytes(int64(blocks * typ.BlockBytes()))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	// Where the halves of a block are; F32, F16 and BF16 are made of values instead.
	halves, ok := map[quant.Type][]int{
		quant.Q8_0: {0}, quant.Q4_0: {0}, quant.Q4_K: {0, 2}, quant.Q5_K: {0, 2}, quant.Q6_K: {208},
	}[typ]
	if !ok {
		if err := quant.Quantize(typ, b, kerneltest.Normal(r, rows*width)); err != nil {
			panic(err)
		}
		return b
	}
	for i := range blocks {
		for _, h := range halves {
			binary.LittleEndian.PutUint16(b[i*typ.BlockBytes()+h:], quant.F32ToF16(float32(r.NormFloat64()*0.01)))
		}
	}
	return b
}

func TestEmbed(t *testing.T) {
	types := []quant.Type{quant.F32, quant.F16, quant.BF16, quant.Q8_0, quant.Q4_0, quant.Q4_K, quant.Q5_K, quant.Q6_K}
	const table = 23 // odd: the last row of some types ends inside a word
	runs := []shaders.Run{
		{Tokens: []int32{3, 22, 0}, Pages: []int32{0}},
		{Tokens: []int32{7}, Pages: []int32{1}},
		{Tokens: []int32{23, 1, 8, 21, -1, 1 << 20}, Pages: []int32{2}}, // 23, -1 and 1<<20 are not in the table
		{Tokens: []int32{4, 5}, Pages: []int32{3}},
	}
	const rows = 12
	shape := shaders.StepShape{Rows: 16, Seqs: 4, Pages: 1}
	for _, typ := range types {
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
			op := &shaders.Embed{Step: step.View(), W: w, Y: y, Rows: shape.Rows}

			want := make([]float32, table*width)
			if err := quant.Dequantize(typ, want, bytes); err != nil {
				t.Fatal(err)
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
			// Four rows of the table a window, and all in one.
			for what, o := range map[string]shaders.Op{"whole": op, "windows": tinyBindings{op, 4096 + 5*w.RowBytes()}} {
				ds, err := o.Lower(&shaders.Profile{Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}})
				if n := map[string]int{"whole": 1, "windows": 6}[what]; err != nil || len(ds) != n {
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
		"type":    func(o *shaders.Embed) { o.W.Type = quant.Q2_K },
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
