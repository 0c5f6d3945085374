package shaders

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/calderaml/caldera/gguf/quant"
)

// A Use is what a weight kernel is used for in a model. Matrices that one dispatch may take together are one use.
type Use struct {
	Kernel string
	Type   quant.Type
	In     int  // weights in a row
	Packed bool // with inputs in whole numbers, for which there is one way
}

func (u Use) String() string {
	packed := ""
	if u.Packed {
		packed = "packed "
	}
	return fmt.Sprintf("%s %v %srows of %d", u.Kernel, u.Type, packed, u.In)
}

// A Way is how a weight kernel goes about a use. Scheme and Group decide the order in which products are added up, and so
// the bits of the result: they do not depend on how many rows a step has, as a sequence's tokens must not depend on
// what else runs.
type Way struct {
	Scheme Scheme
	Group  int // lanes of a workgroup
	// Tokens are how many tokens the kernel takes at once where the op does not say, in steps of 1, 2, 4, .. rows; the
	// last stands for larger ones.
	Tokens []int
}

// TokensAtOnce are the numbers of tokens that a way may take at once. More do not fit the registers of any device.
var TokensAtOnce = []int{1, 2, 4, 8}

// TokensAt is how many tokens to take at once in steps of so many rows.
func (w Way) TokensAt(rows int) int {
	return w.Tokens[min(bits.Len(uint(max(rows, 1)-1)), len(w.Tokens)-1)]
}

// plainTokens are the tokens at once that nobody has measured.
var plainTokens = []int{1, matmulTokens}

// way is how a kernel goes about a use: what was found best on the device, or what suits devices of its kind.
func (p *Profile) way(u Use) Way {
	if w, ok := p.Tuned[u]; ok {
		return w
	}
	return p.PlainWay(u)
}

// reading is the way for inputs x: those that begin or lie between texels are not read as texels.
func (w Way) reading(x Mat) Way {
	if w.Scheme == texelScheme && (x.Off%texelBytes != 0 || 4*x.Stride%texelBytes != 0) {
		w.Scheme = rowScheme
	}
	return w
}

// texelBytes are the bytes of a texel: four words (common/inputs.glsl).
const texelBytes = 16

// blocksAtOnce is how many blocks of a row of m a turn of the kernel's loop takes (AT_ONCE of common/tile.glsl): as many as the
// device's turns are long. It changes no bit. Kernels that take rows side by side have none, and get 0.
func (p *Profile) blocksAtOnce(w Way, m Matrix, tokens int) uint32 {
	if w.Scheme != packedScheme && (w.Scheme != spreadScheme || !inOrder(m.Type)) {
		return 0
	}
	n := max(p.Turn/(tokens*m.Type.BlockSize()), 1)
	for m.In/m.Type.BlockSize()%n != 0 {
		n /= 2
	}
	return uint32(n)
}

// inOrder reports whether the spread scheme takes the rows of a block type one after the other: those whose blocks are one
// group of 32 codes (common/dequant/one_group.glsl).
func inOrder(t quant.Type) bool { return slices.Contains(codeTypes, t) && t.BlockSize() == 32 }

// packedTokens are the tokens at once of inputs in whole numbers, where one more costs half of what the first does.
var packedTokens = []int{1, 2, 4, 8}

// PlainWay is the way of weight kernels for a use on devices of this kind.
func (p *Profile) PlainWay(u Use) Way {
	switch {
	case u.Packed:
		return Way{packedScheme, spreadLanes, packedTokens}
	case p.Spread && !p.LanesPerRow && spreads(u.Type):
		return Way{spreadScheme, spreadLanes, plainTokens}
	case p.LanesPerRow:
		return Way{lanesScheme, int(p.Subgroup), plainTokens}
	case p.Texels:
		return Way{texelScheme, rowGroup, plainTokens}
	case p.Broadcast > 0 && !spreads(u.Type):
		return Way{shareScheme, int(p.Broadcast), plainTokens}
	}
	return Way{rowScheme, rowGroup, plainTokens}
}

// Ways are those that a device has for a use, the plain one first; what they take at once is left open.
func (p *Profile) Ways(u Use) []Way {
	plain := p.PlainWay(u)
	plain.Tokens = nil
	ways := []Way{plain}
	if u.Packed {
		return ways
	}
	add := func(s Scheme, group int) {
		if s != plain.Scheme || group != plain.Group {
			ways = append(ways, Way{Scheme: s, Group: group})
		}
	}
	if p.LanesPerRow {
		// Where small steps are fused, their kernels form the norm of an input with the lanes of a row; those have to be as many
		// as RMSNorm's, which large steps use. The input of expert_down has no norm.
		if !p.Fuse || u.Kernel == "expert_down" {
			for n := 1; n <= 8 && n*int(p.Subgroup) <= maxGroup; n *= 2 {
				add(lanesScheme, n*int(p.Subgroup))
			}
		}
		if p.Fuse {
			return ways
		}
	}
	add(rowScheme, rowGroup)
	add(rowScheme, 64)
	if p.CanShare > 0 && !spreads(u.Type) {
		add(shareScheme, int(p.CanShare))
	}
	if p.CanTexels {
		add(texelScheme, rowGroup)
	}
	if p.CanSpread && spreads(u.Type) {
		add(spreadScheme, spreadLanes)
	}
	return ways
}

// maxGroup is the largest workgroup that every device has (vulkan-platform.md).
const maxGroup = 256

// CheckWay refuses a way that the device does not have.
func (p *Profile) CheckWay(u Use, w Way) error {
	if !HasKernel(u.Type) || u.In < 1 || !slices.Contains(weightKernels, u.Kernel) || u.Packed && !(Packs(u.Type) && p.CanPack()) {
		return fmt.Errorf("%s: there is no such kernel", u)
	}
	if !slices.ContainsFunc(p.Ways(u), func(x Way) bool { return x.Scheme == w.Scheme && x.Group == w.Group }) {
		return fmt.Errorf("%s: the device does not have scheme %q with groups of %d", u, w.Scheme, w.Group)
	}
	if len(w.Tokens) == 0 || slices.ContainsFunc(w.Tokens, func(n int) bool { return !slices.Contains(TokensAtOnce, n) }) {
		return fmt.Errorf("%s: %v tokens at once, which may be %v", u, w.Tokens, TokensAtOnce)
	}
	return nil
}

// weightKernels are the kernels with several ways.
var weightKernels = []string{"matmul", "expert_gate_up", "expert_down"}

// spec are the specialization constants of a weight kernel over rows weight rows that takes so many tokens at once, and
// groups the number of workgroups: constants are the workgroup size (and the single-subgroup flag in the schemes of lanes)
// and the tokens.
func (p *Profile) spec(w Way, rows, tokens int) (spec []uint32, groups int) {
	switch w.Scheme {
	case lanesScheme, fusedScheme:
		one := uint32(0)
		if p.OneSubgroup && w.Group == int(p.Subgroup) {
			one = 1
		}
		return []uint32{uint32(w.Group), one, uint32(tokens)}, min(rows, int(p.MaxGroups[0]))
	case matrixScheme:
		return p.matrixSpec(), ceilDiv(rows, p.Matrices.rows())
	case spreadScheme, packedScheme:
		return []uint32{spreadLanes, uint32(tokens)}, min(ceilDiv(rows, spreadRows), int(p.MaxGroups[0]))
	}
	return []uint32{uint32(w.Group), uint32(tokens)}, min(ceilDiv(rows, w.Group*tileRows), int(p.MaxGroups[0]))
}

func (o *MatMul) use() Use     { return Use{"matmul", o.W.Type, o.W.In, o.W.packs(o.Packed)} }
func (o *ExpertDown) use() Use { return Use{"expert_down", o.W.Type, o.W.In, o.W.packs(o.Packed)} }
func (o *ExpertGateUp) use(m Matrix) Use {
	return Use{"expert_gate_up", m.Type, m.In, m.packs(o.Packed)}
}
