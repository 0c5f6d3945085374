package shaders

import (
	"fmt"

	"github.com/calderaml/caldera/gguf/quant"
)

// The matrix scheme forms products of many rows with cooperative matrices, as tensor cores have them (matmul_matrix.comp,
// common/matrix.glsl). Their operands are halves, but inputs and weights are taken as two halves each, or as codes with a scale, so
// that results are those of float32 but for the last bits.

// A MatrixShape is that of a product of cooperative matrices: MxK by KxN.
type MatrixShape struct{ M, N, K int }

func (s MatrixShape) String() string { return fmt.Sprintf("%dx%dx%d", s.M, s.N, s.K) }

// MatrixShapes are those that kernels can be made for, the best first.
func MatrixShapes() []MatrixShape { return []MatrixShape{{16, 16, 16}, {8, 8, 8}} }

// A subgroup takes matrixTiles^2 matrices and a workgroup has matrixSplit^2 subgroups (TILES, SPLIT of matmul_matrix.comp).
const (
	matrixTiles = 2
	matrixSplit = 2
)

// rows and tokens are the weight rows and the tokens of a workgroup.
func (s MatrixShape) rows() int   { return matrixSplit * matrixTiles * s.M }
func (s MatrixShape) tokens() int { return matrixSplit * matrixTiles * s.N }

// Lanes are those of a workgroup. They have to be as many as its weight rows, which they are if subgroups have M.
func (s MatrixShape) Lanes(subgroup int) int { return matrixSplit * matrixSplit * subgroup }

// MinRows is the number of rows that a plan has to have for its products to take cooperative matrices: the tokens of one
// subgroup. Of fewer most of the work would be of zeros.
func (s MatrixShape) MinRows() int { return matrixTiles * s.N }

// SharedBytes is the shared memory of a workgroup, for the block type that needs most of it.
func (s MatrixShape) SharedBytes() int {
	const pitch = 80                                          // bytes of 32 halves (PAIRS of matrix.glsl)
	const vectors = 4 * 3                                     // two scales and a minimum
	return 2*pitch*(s.rows()+s.tokens()) + vectors*s.rows() + // weights and inputs, each as two halves
		4*s.tokens() + // the inputs' exponents
		4*matrixSplit*matrixSplit*s.M*s.N // results
}

// wholeHalves are the block types whose weights are halves but for a power of two.
var wholeHalves = map[quant.Type]bool{quant.F16: true, quant.BF16: true}

func matrixModules() []Module {
	var ms []Module
	for _, t := range kernelTypes {
		m := blockModule(Module{Source: "matmul_matrix.comp", Buffers: 5, Params: 8, SPIRV15: true, Matrices: true}, t, 1)
		m.Name = weightModule("matmul", t, matrixScheme)
		if wholeHalves[t] {
			m.Defines = append(m.Defines, "WHOLE_HALVES")
		}
		ms = append(ms, m)
	}
	return ms
}

// takesMatrices reports whether a product is formed with cooperative matrices.
func (p *Profile) takesMatrices(o *MatMul) bool {
	s := p.Matrices
	return s != MatrixShape{} && o.Rows >= s.MinRows() && !o.W.packs(o.Packed) && p.loops("matmul", p.matrixLoops(o.W.In)) == nil
}

// matrixSpec are the specialization constants of the scheme.
func (p *Profile) matrixSpec() []uint32 {
	s := p.Matrices
	return []uint32{uint32(s.Lanes(int(p.Subgroup))), uint32(s.M), uint32(s.N), uint32(s.K)}
}

// matrixLoops is how often an invocation goes around its loops for rows of so many weights: for the exponents of its subgroup's
// tokens, for the groups of 32 with their blocks and chunks, and for its results.
func (p *Profile) matrixLoops(in int) int {
	s, lanes := p.Matrices, int(p.Subgroup)
	exponents := ceilDiv(s.tokens(), matrixSplit*matrixSplit) * (1 + ceilDiv(in, lanes))
	staged := ceilDiv(16*s.tokens(), s.Lanes(lanes))
	results := matrixTiles * matrixTiles * ceilDiv(s.M*s.N, lanes)
	return exponents + in/32*(3+staged+32/s.K) + results
}
