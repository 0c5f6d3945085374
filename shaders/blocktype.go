package shaders

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/calderaml/caldera/gguf/quant"
)

// kernelTypes are the block types that kernels read. Each has its GLSL in common/dequant/TYPE/block.glsl
// and its decoder in gguf/quant.
var kernelTypes = []quant.Type{
	quant.F32, quant.F16, quant.BF16,
	quant.Q8_0, quant.Q4_0, quant.Q4_1, quant.Q5_0, quant.Q5_1,
	quant.Q2_K, quant.Q3_K, quant.Q4_K, quant.Q5_K, quant.Q6_K,
	quant.IQ4_NL, quant.IQ4_XS, quant.MXFP4, quant.NVFP4,
	quant.IQ3_XXS, quant.IQ3_S, quant.IQ2_XXS, quant.IQ2_XS, quant.IQ2_S, quant.IQ1_S, quant.IQ1_M,
	quant.TQ1_0, quant.TQ2_0, quant.Q1_0, quant.Q2_0,
}

// HasKernel reports whether kernels read weights of this type.
func HasKernel(t quant.Type) bool {
	for _, k := range kernelTypes {
		if k == t {
			return true
		}
	}
	return false
}

// HasScale reports whether matrices of this type carry a factor of their own, one for each expert, that
// multiplies their products (see [Matrix.Scale]): NVFP4, whose block scales have no exponent to spare.
func HasScale(t quant.Type) bool { return t == quant.NVFP4 }

// blockDir is the include folder of a type's dequantisation.
func blockDir(t quant.Type) string { return "common/dequant/" + typeName(t) }

func typeName(t quant.Type) string { return strings.ToLower(t.String()) }

// blockModule gives the module of a weight kernel what a block type needs: its include folder and its extra
// bindings (common/extra.glsl), of which a factor is one for each matrix the kernel reads.
func blockModule(m Module, t quant.Type, matrices int) Module {
	m.Include = append(append([]string{}, m.Include...), blockDir(t))
	m.Defines = append([]string{}, m.Defines...)
	switch {
	case t.Codebook() != nil:
		m.Defines = append(m.Defines, fmt.Sprintf("CODEBOOK_BINDING=%d", m.Buffers))
		m.Buffers++
	case HasScale(t):
		for i, name := range []string{"SCALE_BINDING", "SCALE2_BINDING"}[:matrices] {
			m.Defines = append(m.Defines, fmt.Sprintf("%s=%d", name, m.Buffers+i))
		}
		m.Buffers += matrices
	}
	return m
}

// A Scheme is how the invocations of a weight kernel share the work (common/tile.glsl).
type Scheme string

const (
	rowScheme   Scheme = "row"   // an invocation takes whole rows
	shareScheme Scheme = "share" // and the lanes of a subgroup load its inputs together; for types that are not spread
	texelScheme Scheme = "texel" // an invocation takes whole rows, and reads weights and inputs from texel buffers
	lanesScheme Scheme = "lanes" // a workgroup takes a row
	fusedScheme Scheme = "fused" // and forms the norm of its input; kernels take more matrices at once, and bind more

	spreadScheme Scheme = "spread" // a subgroup takes rows, and a lane of it a byte of each eight codes (common/spread.glsl)
	packedScheme Scheme = "packed" // likewise a word, with inputs in whole numbers (common/packed.glsl)

	matrixScheme Scheme = "matrix" // subgroups multiply cooperative matrices (matmul_matrix.go), for steps of many rows of dense products
)

// codeTypes are the block types that common/codes.glsl takes: those whose weights are codes of a byte at most with a scale.
var codeTypes = []quant.Type{quant.Q8_0, quant.Q4_0, quant.Q4_K, quant.Q5_K, quant.Q6_K}

// spreads reports whether a block type has the spread scheme: those of codes have, and float32.
func spreads(t quant.Type) bool { return t == quant.F32 || slices.Contains(codeTypes, t) }

// fusion is what a kernel has in the fused scheme: matrices with a factor of their own, bindings and parameters.
type fusion struct{ matrices, buffers, params int }

// weightModules returns a module of a weight kernel for each block type and scheme.
func weightModules(kernel string, matrices int, base Module, fused fusion) []Module {
	var ms []Module
	for _, t := range kernelTypes {
		for _, s := range []Scheme{rowScheme, shareScheme, texelScheme, lanesScheme, fusedScheme, spreadScheme, packedScheme} {
			if s == spreadScheme && !spreads(t) || s == shareScheme && spreads(t) || s == packedScheme && !Packs(t) {
				continue
			}
			m := blockModule(base, t, matrices)
			if s == fusedScheme {
				m = base
				m.Buffers, m.Params = fused.buffers, fused.params
				m = blockModule(m, t, fused.matrices)
			}
			m.Name = weightModule(kernel, t, s)
			switch s {
			case shareScheme:
				m.Defines, m.SPIRV15 = append(m.Defines, "SHARE_X"), true
			case texelScheme:
				m.Defines = append(m.Defines, "TEXELS")
				for i := range matrices + 1 {
					m.Texels = append(m.Texels, 1+i)
				}
				if t.Codebook() != nil {
					m.Texels = append(m.Texels, m.Buffers-1)
				}
			case lanesScheme:
				m.Defines = append(m.Defines, "LANES_PER_ROW")
			case fusedScheme:
				m.Defines = append(m.Defines, "LANES_PER_ROW", "FUSED")
			case spreadScheme, packedScheme:
				m.Defines, m.SPIRV15 = append(m.Defines, "SPREAD"), true
				if s == packedScheme {
					m.Defines = append(m.Defines, "PACKED")
				}
				// The matrices and then the input, which kernels bind from 1 on.
				for i := range matrices + 1 {
					m.Addresses = append(m.Addresses, 1+i)
				}
			}
			ms = append(ms, m)
		}
	}
	return ms
}

// weightModule is the name of a weight kernel's module.
func weightModule(kernel string, t quant.Type, s Scheme) string {
	return kernel + "." + typeName(t) + "." + string(s)
}

// extras are the operands behind the extra bindings of a weight kernel for matrices of one block type, from
// expert first on.
func extras(first int, ms ...Matrix) []Operand {
	t := ms[0].Type
	if c := t.Codebook(); c != nil {
		return []Operand{R(codebookTable(c).View())}
	}
	var ops []Operand
	if HasScale(t) {
		for _, m := range ms {
			ops = append(ops, R(m.Scale.Slice(int64(first)*4, m.Scale.Len-int64(first)*4)))
		}
	}
	return ops
}

var (
	codebookMu     sync.Mutex
	codebookTables = map[*quant.Codebook]*Buffer{}
)

// codebookTable returns the table of a codebook, the same for all who ask: its points as 16-bit words.
func codebookTable(c *quant.Codebook) *Buffer {
	codebookMu.Lock()
	defer codebookMu.Unlock()
	b := codebookTables[c]
	if b == nil {
		b = &Buffer{Name: "codebook " + c.Name, Kind: Table, Size: int64(2 * len(c.Codes))}
		for _, code := range c.Codes {
			b.Content = binary.LittleEndian.AppendUint16(b.Content, code)
		}
		codebookTables[c] = b
	}
	return b
}
