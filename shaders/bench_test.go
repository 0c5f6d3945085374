package shaders_test

import (
	"fmt"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// BenchmarkMatMul measures matrix products of the 35B-A3B's widths for one row and for several, in bytes of weights
// a second over all processors. Eight matrices take turns, so that weights come from memory as in a model.
func BenchmarkMatMul(b *testing.B) {
	const in, out = 2048, 4096
	for _, typ := range []quant.Type{quant.F16, quant.Q8_0, quant.Q4_0, quant.Q3_K, quant.Q4_K, quant.Q5_K, quant.Q6_K, quant.IQ4_XS, quant.IQ3_S} {
		for _, rows := range []int{1, 4, 64} {
			r := kerneltest.Rand(1)
			w, data := randomMatrix(r, typ, in, out, 0)
			shape := shaders.StepShape{Rows: rows, Seqs: 1, Outs: 1, Pages: 1}
			step := shape.NewBuffer()
			sdata := shaders.AlignedBytes(step.Size)
			if err := shape.Write(shaders.Words(sdata), []shaders.Run{{Tokens: kerneltest.Tokens(rows), Pages: []int32{0}}}, nil); err != nil {
				b.Fatal(err)
			}
			x, y := shaders.NewMat("x", shaders.Scratch, rows, in), shaders.NewMat("y", shaders.Scratch, rows, out)
			fill := map[*shaders.Buffer][]byte{step: sdata, w.Buf: data, x.Buf: kerneltest.Floats(kerneltest.Normal(r, rows*in))}
			op := &shaders.MatMul{Step: step.View(), W: w, X: x, Y: y, Rows: rows, Count: shaders.CountRows}
			kerneltest.Bench(b, fmt.Sprintf("%v_%d", typ, rows), 4, op.Cost().Weights, fill, op)
			if shaders.Packs(typ) {
				packed := *op
				packed.Packed = shaders.NewPacked("packed", rows, in)
				kerneltest.Bench(b, fmt.Sprintf("%v_int8_%d", typ, rows), 4, op.Cost().Weights, fill, &packed)
			}
		}
	}
}
