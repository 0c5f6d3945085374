package shaders_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// fullTypes get every case of the weight kernels' tests: one for each way to address blocks (words, halves, bytes),
// one with a codebook and one with factors. The kernels are the same for the others but for load32, which
// TestBlockTypes goes through, so that they get one case each.
var fullTypes = []quant.Type{quant.F32, quant.Q8_0, quant.Q4_K, quant.Q6_K, quant.MXFP4, quant.NVFP4, quant.IQ3_S}

// weightTypes are the types that kernels read.
func weightTypes() []quant.Type {
	return slices.DeleteFunc(quant.Types(), func(t quant.Type) bool { return !shaders.HasKernel(t) })
}

// few says that a type's cases run on few rigs. On all of them run the simplest type and one whose blocks
// begin inside words.
func few(t quant.Type) bool { return t != quant.F32 && t != quant.Q8_0 }

// turn makes the expert kernels of types with one case run on one rig each; their products run on several.
func turn(t quant.Type, i int) int {
	if slices.Contains(fullTypes, t) {
		return 0
	}
	return i + 1
}

// casesOf is how many of n cases a type gets.
func casesOf(t quant.Type, n int) int {
	if slices.Contains(fullTypes, t) {
		return n
	}
	return 1
}

// blockHalves are the byte offsets of a block's halves. IQ1_M spreads its half over four words, MXFP4 and NVFP4
// have bytes instead; F32, F16 and BF16 are made of values.
var blockHalves = map[quant.Type][]int{
	quant.Q8_0: {0}, quant.Q4_0: {0}, quant.Q4_1: {0, 2}, quant.Q5_0: {0}, quant.Q5_1: {0, 2},
	quant.Q2_K: {80, 82}, quant.Q3_K: {108}, quant.Q4_K: {0, 2}, quant.Q5_K: {0, 2}, quant.Q6_K: {208},
	quant.IQ4_NL: {0}, quant.IQ4_XS: {0}, quant.MXFP4: {}, quant.NVFP4: {},
	quant.IQ3_XXS: {0}, quant.IQ3_S: {0}, quant.IQ2_XXS: {0}, quant.IQ2_XS: {0}, quant.IQ2_S: {0},
	quant.IQ1_S: {0}, quant.IQ1_M: {}, quant.TQ1_0: {52}, quant.TQ2_0: {64}, quant.Q1_0: {0}, quant.Q2_0: {0},
}

// randomTable returns rows of random blocks whose scales are moderate.
func randomTable(r *rand.Rand, typ quant.Type, rows, width int) []byte {
	half := func() uint16 { return quant.F32ToF16(float32(r.NormFloat64() * 0.01)) }
	scale := func() byte { return byte(118 + r.IntN(8)) } // exponents of MXFP4
	if typ == quant.NVFP4 {
		scale = func() byte { return byte(16 + r.IntN(24)) } // 2^-6 to nearly 2^-3
	}
	return randomBlocks(r, typ, rows*width/typ.BlockSize(), half, scale)
}

// wildTable returns rows of random blocks with scales of any size, subnormal and overflowing ones among them.
func wildTable(r *rand.Rand, typ quant.Type, rows, width int) []byte {
	half := func() uint16 {
		h := uint16(r.Uint32())
		if h&0x7c00 == 0x7c00 {
			h &^= 0x4000 // finite
		}
		return h
	}
	return randomBlocks(r, typ, rows*width/typ.BlockSize(), half, func() byte { return byte(r.Uint32()) })
}

func randomBlocks(r *rand.Rand, typ quant.Type, blocks int, half func() uint16, scale func() byte) []byte {
	b := shaders.AlignedBytes(int64(blocks * typ.BlockBytes()))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	halves, ok := blockHalves[typ]
	if !ok {
		if err := quant.Quantize(typ, b, kerneltest.Normal(r, blocks*typ.BlockSize())); err != nil {
			panic(err)
		}
		return b
	}
	for block := range slices.Chunk(b, typ.BlockBytes()) {
		for _, h := range halves {
			binary.LittleEndian.PutUint16(block[h:], half())
		}
		switch typ {
		case quant.IQ1_M: // a nibble at the top of each of four words
			h := half()
			for i := range 4 {
				block[49+2*i] = block[49+2*i]&15 | byte(h>>(4*i))<<4
			}
		case quant.MXFP4:
			block[0] = scale()
		case quant.NVFP4:
			for i := range 4 {
				block[i] = scale()
			}
		}
	}
	return b
}

// withFactors gives a matrix of a type that has them factors that begin inside a buffer.
func withFactors(r *rand.Rand, m *shaders.Matrix, fill map[*shaders.Buffer][]byte) {
	if !shaders.HasScale(m.Type) {
		return
	}
	n := max(m.Experts, 1)
	f := kerneltest.Normal(r, n+3)
	b := &shaders.Buffer{Name: m.Name + " factors", Kind: shaders.Weight, Size: int64(n+3) * 4}
	fill[b] = kerneltest.Floats(f)
	m.Scale = b.View().Slice(8, int64(n)*4)
}

// factor is that of a matrix, or of an expert, 1 where there is none.
func factor(m shaders.Matrix, e int, fill map[*shaders.Buffer][]byte) float32 {
	if m.Scale.Buf == nil {
		return 1
	}
	return shaders.Floats(fill[m.Scale.Buf])[int(m.Scale.Off)/4+e]
}

// vectors returns a type's reference blocks: those beside the decoders' tests, and the full set in
// $CALDERA_ORACLE, or shared/oracle beside the repository, where there is one.
func vectors(t *testing.T, typ quant.Type) []byte {
	t.Helper()
	root := os.Getenv("CALDERA_ORACLE")
	if root == "" {
		root = "../../shared/oracle"
	}
	var all []byte
	for _, dir := range []string{"../gguf/quant/testdata/quant", filepath.Join(root, "quant")} {
		b, err := os.ReadFile(filepath.Join(dir, typ.String()+".blocks.bin"))
		if os.IsNotExist(err) && len(all) > 0 {
			t.Logf("no full set of reference blocks: %v", err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}

// Every block type is decoded bit for bit as the decoders of gguf/quant do it, wherever a block begins. All
// products of the formulas (weights.md 2.2) fit a float32's 24 bits and at most one sum rounds, so that neither the
// order of evaluation nor a fused multiply and add changes a bit. What is left to devices is whether a subnormal scale
// is zero, which MXFP4 has: 2^-128 and 2^-127, of which a value is at most 12 times.
func TestBlockTypes(t *testing.T) {
	for i, typ := range weightTypes() {
		r := kerneltest.Rand(uint64(i))
		one := max(typ.BlockSize(), 32)
		tiny := float32(0)
		if typ == quant.MXFP4 {
			tiny = 0x1p-123
		}
		blocks := append(vectors(t, typ), randomTable(r, typ, 160, one)...)
		blocks = append(blocks, wildTable(r, typ, 160, one)...)
		// Rows of one block begin at every address that blocks of the type can have; in rows of three some do that
		// are not the first.
		for _, width := range []int{one, 3 * one} {
			rowBytes, err := typ.RowBytes(uint64(width))
			if err != nil {
				t.Fatal(err)
			}
			rows := len(blocks) / int(rowBytes)
			fill := map[*shaders.Buffer][]byte{}
			shape := shaders.StepShape{Rows: rows, Seqs: 1, Pages: (rows + shaders.PageTokens - 1) / shaders.PageTokens}
			run := shaders.Run{Pages: make([]int32, shape.Pages)}
			for row := range rows {
				run.Tokens = append(run.Tokens, int32(row))
			}
			step, data := kerneltest.Step(t, shape, []shaders.Run{run}, nil)
			fill[step] = data
			size := int64(rows) * int64(rowBytes)
			wb := &shaders.Buffer{Name: "table", Kind: shaders.Weight, Size: (size + 3) &^ 3}
			fill[wb] = shaders.AlignedBytes(wb.Size)
			copy(fill[wb], blocks[:size])
			w := shaders.Matrix{View: shaders.View{Buf: wb, Len: size}, Name: "blocks", Type: typ, In: width, Out: rows}
			withFactors(r, &w, fill)
			y := paddedMat("y", rows, width, 0, 0, fill)
			kerneltest.Run(t, kerneltest.Case{
				Name: typ.String(), Few: few(typ),
				Ops:   []shaders.Op{&shaders.Embed{Step: step.View(), W: w, Y: y, Rows: rows}},
				Fill:  fill,
				Check: []kerneltest.Check{{View: y.View, Exact: true, Tiny: tiny}},
			})
		}
	}
}

// A matrix of a type with factors needs one for each expert, and others have none.
func TestMatrixFactors(t *testing.T) {
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
	r := kerneltest.Rand(1)
	for _, c := range []struct {
		name string
		typ  quant.Type
		set  func(m *shaders.Matrix, scale shaders.View)
		ok   bool
	}{
		{"NVFP4 with a factor", quant.NVFP4, func(m *shaders.Matrix, s shaders.View) {}, true},
		{"NVFP4 without", quant.NVFP4, func(m *shaders.Matrix, s shaders.View) { m.Scale = shaders.View{} }, false},
		{"too few", quant.NVFP4, func(m *shaders.Matrix, s shaders.View) { m.Scale.Len -= 4 }, false},
		{"outside the buffer", quant.NVFP4, func(m *shaders.Matrix, s shaders.View) { m.Scale.Off += 16 }, false},
		{"a type without factors", quant.Q8_0, func(m *shaders.Matrix, s shaders.View) { m.Scale = s }, false},
	} {
		w, _ := randomMatrix(r, c.typ, 256, 5, 0)
		fill := map[*shaders.Buffer][]byte{}
		n, _ := randomMatrix(r, quant.NVFP4, 256, 5, 0)
		withFactors(r, &w, fill)
		withFactors(r, &n, fill)
		c.set(&w, n.Scale)
		x, y := shaders.NewMat("x", shaders.Scratch, 1, 256), shaders.NewMat("y", shaders.Scratch, 1, 5)
		o := &shaders.MatMul{Step: (&shaders.Buffer{Size: 64}).View(), W: w, X: x, Y: y, Rows: 1}
		if _, err := o.Lower(p); (err == nil) != c.ok {
			t.Errorf("%s: error %v", c.name, err)
		}
	}
}

// Rows of MXFP4 begin at any byte: windows hold as many of them, or as many experts, as take whole words.
func TestOddRows(t *testing.T) {
	r := kerneltest.Rand(5)
	fill := map[*shaders.Buffer][]byte{}
	step, rows, capacity := unevenStep(t, fill)
	const in, out, experts, k = 32, 33, 10, 3
	stack := expertStack(r, "stack", quant.MXFP4, in, out, experts, fill)
	plain := expertStack(r, "plain", quant.MXFP4, 3*in, out, 0, fill)
	window := 7 * stack.RowBytes() * out // four experts
	x := paddedMat("x", capacity, in, 1, 2, fill)
	setRows(x, kerneltest.Normal(r, capacity*in), fill)
	ids := filledWords("ids", capacity*k, chosenExperts(r, capacity, k, experts), fill)
	gateUp := &shaders.ExpertGateUp{Step: step, X: shaders.Plain(x), H: paddedMat("h", capacity, k*out, 2, 1, fill), Ids: ids.View(), Rows: capacity, K: k,
		Gate: stack, Up: expertStack(r, "up", quant.MXFP4, in, out, experts, fill)}
	checkGateUp(t, "gate and up", gateUp, rows, fill, func(o shaders.Op) shaders.Op { return inWindows(t, o, window) }, true, 0)

	wide := paddedMat("wide", capacity, 3*in, 1, 0, fill)
	setRows(wide, kerneltest.Normal(r, capacity*3*in), fill)
	weights := paddedMat("weights", capacity, k, 0, 0, fill)
	setRows(weights, kerneltest.Normal(r, capacity*k), fill)
	down := &shaders.ExpertDown{Step: step, W: stack, H: wide, Ids: ids.View(), Weights: weights.View, Parts: partsOf(capacity, k, out), Rows: capacity, K: k,
		Y: paddedMat("down", capacity, out, 0, 3, fill)}
	product := &shaders.MatMul{Step: step, W: plain, X: wide, Rows: capacity, Y: paddedMat("product", capacity, out, 3, 0, fill)}
	kerneltest.Run(t, kerneltest.Case{
		Name:  "down and product",
		Few:   true,
		Ops:   []shaders.Op{inWindows(t, down, window), inWindows(t, product, 11*plain.RowBytes())},
		Fill:  fill,
		Check: []kerneltest.Check{{View: down.Y.Buf.View(), Tol: 1e-5}, {View: product.Y.Buf.View(), Tol: 1e-5}},
	})
}
