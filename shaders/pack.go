package shaders

import (
	"fmt"
	"math"
	"slices"

	"github.com/calderaml/caldera/gguf/quant"
)

// Products of weights with inputs in whole numbers: an op that has room for its inputs' codes (Packed) turns each 256 of a
// row into codes of at most packedMost with a unit (pack.comp) and multiplies these (common/packed.glsl). A code has ten bits
// with its sign, since two of them times the codes of two weights just fit a word of 32. Only block types of 256 codes of six bits at most can do it: with others an op's Packed is not used.
const (
	packedBlock = 256
	packedWords = 152 // of a block; packed.glsl
	packedMost  = 511
	packedLeast = 1e-30 // a block of smaller inputs is zeros
)

// packedTypes are the block types that common/packed.glsl takes.
var packedTypes = []quant.Type{quant.Q4_K, quant.Q5_K, quant.Q6_K}

// Packs reports whether products with weights of this type can have inputs in whole numbers.
func Packs(t quant.Type) bool { return slices.Contains(packedTypes, t) }

// CanPack reports whether the device has kernels for inputs in whole numbers.
func (p *Profile) CanPack() bool { return p.CanSpread && !p.LanesPerRow && !p.NoPacked }

// NewPacked returns room for the codes of inputs of so many rows and columns, a multiple of 256.
func NewPacked(name string, rows, width int) Mat {
	return NewMat(name, Scratch, rows, width/packedBlock*packedWords)
}

// packedCols is the part of m that columns [from, from+n) of the inputs have.
func packedCols(m Mat, from, n int) Mat {
	return m.Cols(from/packedBlock*packedWords, n/packedBlock*packedWords)
}

// packs reports whether products of w take inputs from a Packed matrix.
func (m Matrix) packs(packed Mat) bool { return packed.Buf != nil && Packs(m.Type) }

// packedLast is the content of an operand of an op whose last one is Packed, if it packs.
func packedLast(o Op, packs bool, operand int) Content {
	if packs && operand == len(o.Operands())-1 {
		return Notes
	}
	return Values
}

func packModules() []Module {
	return []Module{{Name: "pack", Source: "pack.comp", Buffers: 3, Params: 4}}
}

// pack lowers the packing of x.
func (p *Profile) pack(step View, x, packed Mat, rows int, count Count) (Dispatch, error) {
	const lanes = 8
	blocks := x.Width / packedBlock
	switch {
	case !p.CanPack():
		return Dispatch{}, fmt.Errorf("pack: %w", ErrNotPacked)
	case x.Width%packedBlock != 0 || packed.Width != blocks*packedWords || !packed.holds(rows):
		return Dispatch{}, fmt.Errorf("pack: %d words in %d bytes for %d rows of %d inputs", packed.Width, packed.Len, rows, x.Width)
	}
	if err := p.loops("pack", packedBlock+packedBlock/4+packedBlock/16); err != nil {
		return Dispatch{}, err
	}
	groups, err := p.grid("pack", ceilDiv(blocks, lanes), rows, 1)
	return Dispatch{
		Module: "pack",
		Spec:   []uint32{lanes},
		Bind:   []Operand{R(step), R(x.View), W(packed.View)},
		Push:   []uint32{uint32(count), uint32(blocks), uint32(x.Stride), uint32(packed.Stride)},
		Groups: groups,
	}, err
}

// packedInput is a block of 256 inputs in whole numbers.
type packedInput struct {
	code [packedBlock]int32
	sum  [packedBlock / 16]float32 // of each 16 codes, in units of the inputs
	unit float32
}

func packBlock(x []float32) (p packedInput) {
	most := uint32(0)
	for _, v := range x {
		most = max(most, math.Float32bits(v)&^(1<<31))
	}
	largest := math.Float32frombits(most)
	p.unit = largest / packedMost
	per := float32(0)
	if largest > packedLeast {
		per = packedMost / largest
	}
	for i, v := range x {
		if !(math.Abs(float64(v)) <= math.MaxFloat32) {
			v = 0 // the unit says so
		}
		p.code[i] = int32(math.RoundToEven(float64(min(max(v*per, -packedMost), packedMost))))
		p.sum[i/16] += float32(p.code[i])
	}
	for i := range p.sum {
		p.sum[i] *= p.unit
	}
	return p
}

// times is the product with a block of codes as packed.glsl forms it, lower halves of words included. Wide is for
// codes of six bits, and centre what those of five and six are too large by.
func (p *packedInput) times(c *quant.Codes, wide bool, centre int32) float64 {
	sum, less := 0.0, 0.0
	for i, scale := range c.Scale {
		for j := 16 * i; j < 16*i+16; j += 4 {
			w, x := c.Code[j:j+4], p.code[j:j+4]
			even := (int32(w[0]) - centre + (int32(w[2])-centre)<<16) * (x[2] + x[0]<<16)
			odd := (int32(w[1]) - centre + (int32(w[3])-centre)<<16) * (x[3] + x[1]<<16)
			if wide {
				sum += float64(scale) * (float64(even) + float64(odd))
			} else {
				sum += float64(scale) * float64(even+odd)
			}
		}
		less += (float64(c.Less[i]) - float64(centre)*float64(scale)) * float64(p.sum[i])
	}
	return float64(p.unit)/(1<<16)*sum - less
}

// products are a matrix with the inputs that its rows are multiplied with, for twins.
type products struct {
	contents
	x      [][]float32
	packed [][]packedInput // of each row of x, where the matrix takes inputs in whole numbers
}

// products are those of m with n rows of x.
func (m Matrix) products(mem Memory, x, packed Mat, n int) *products {
	p := &products{contents: m.contents(mem)}
	from := F32(mem, x.View)
	for r := range n {
		p.x = append(p.x, x.row(from, r))
		if m.packs(packed) {
			var blocks []packedInput
			for block := range slices.Chunk(p.x[r], packedBlock) {
				blocks = append(blocks, packBlock(block))
			}
			p.packed = append(p.packed, blocks)
		}
	}
	return p
}

// A weightRow is a row of a matrix that is multiplied. Each goroutine has its own.
type weightRow struct {
	*products
	row   []float32
	codes []quant.Codes
}

func (p *products) weightRow() *weightRow { return &weightRow{products: p} }

// load takes row r of expert e.
func (w *weightRow) load(e, r int) error {
	if w.packed == nil {
		if w.row == nil {
			w.row = make([]float32, w.In)
		}
		return w.contents.row(w.row, e, r)
	}
	if w.codes == nil {
		w.codes = make([]quant.Codes, w.In/packedBlock)
	}
	off := int64(e)*w.expertBytes() + int64(r)*w.RowBytes()
	for i := range w.codes {
		if err := w.codes[i].Read(w.Type, w.data[off:off+w.RowBytes()], i); err != nil {
			return fmt.Errorf("tensor %s: %w", w.Name, err)
		}
	}
	return nil
}

// dot is the product with the inputs of row t from column at on.
func (w *weightRow) dot(t, at int) float64 {
	if w.packed == nil {
		return dot(w.row, w.x[t][at:at+w.In])
	}
	centre := int32(0)
	switch w.Type {
	case quant.Q5_K:
		centre = 16
	case quant.Q6_K:
		centre = 32
	}
	sum := 0.0
	for i := range w.codes {
		sum += w.packed[t][at/packedBlock+i].times(&w.codes[i], w.Type == quant.Q6_K, centre)
	}
	return sum
}
