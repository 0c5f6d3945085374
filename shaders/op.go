package shaders

import (
	"errors"
	"fmt"
)

// Kind says what a buffer is for, which decides where it lives and for how long.
type Kind uint8

const (
	// Weight is read-only memory whose content comes from the model file.
	Weight Kind = iota
	// Scratch lives from its first write to its last read inside one step; the scheduler lets buffers
	// whose lifetimes do not meet share memory.
	Scratch
	// State outlives the step: KV pages and recurrent slots.
	State
	// StepInput is the step buffer, written by the host before each replay.
	StepInput
	// Result is read by the host after the step.
	Result
	// Table is read-only memory whose content a kernel brings along (Buffer.Content), such as the codebook
	// of a block type. A dispatch binds it without its op naming it.
	Table
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case Weight:
		return "weight"
	case Scratch:
		return "scratch"
	case State:
		return "state"
	case StepInput:
		return "step"
	case Result:
		return "result"
	case Table:
		return "table"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// A Buffer is a piece of memory that ops name. It has no address: the scheduler decides where it lives on
// a device and the reference executor where it lives in host memory.
type Buffer struct {
	Name string
	Kind Kind
	Size int64 // bytes
	// Content is what a Table holds; nil in other kinds.
	Content []byte
}

// View returns the whole buffer.
func (b *Buffer) View() View { return View{Buf: b, Len: b.Size} }

// A View is a range of bytes of a buffer. Off must be a multiple of 4: a kernel addresses words.
// A view of some columns of a matrix has a Pitch, the bytes from row to row, and touches only the first Row
// bytes of each; two views of different columns do not conflict.
type View struct {
	Buf        *Buffer
	Off        int64
	Len        int64
	Pitch, Row int64 // 0: every byte
}

// Slice returns n bytes of v starting at off.
func (v View) Slice(off, n int64) View { return View{Buf: v.Buf, Off: v.Off + off, Len: n} }

// Overlaps reports whether two views of the same buffer share a byte.
func (v View) Overlaps(w View) bool {
	if v.Buf != w.Buf || v.Len == 0 || w.Len == 0 || v.Off >= w.Off+w.Len || w.Off >= v.Off+v.Len {
		return false
	}
	if v.Pitch == 0 || v.Pitch != w.Pitch {
		return true
	}
	a, b := v.Off%v.Pitch, w.Off%w.Pitch
	if a+v.Row > v.Pitch || b+w.Row > w.Pitch {
		return true // a row that wraps around the pitch; no kernel makes one
	}
	return a < b+w.Row && b < a+v.Row
}

// Valid reports whether the view names a buffer and lies inside it.
func (v View) Valid() bool {
	return v.Buf != nil && v.Off >= 0 && v.Len >= 0 && v.Off%4 == 0 && v.Off <= v.Buf.Size && v.Len <= v.Buf.Size-v.Off
}

// Access says what a kernel does with an operand. Hazards are inferred from it.
type Access uint8

const (
	Read      Access = 1
	Write     Access = 2
	ReadWrite Access = Read | Write
)

// An Operand is a view with the way it is used.
type Operand struct {
	View
	Access Access
}

// R, W and RW make operands.
func R(v View) Operand  { return Operand{v, Read} }
func W(v View) Operand  { return Operand{v, Write} }
func RW(v View) Operand { return Operand{v, ReadWrite} }

// Content says what an op writes into an operand, for those that compare devices with twins. Ops whose
// outputs are not all values have a method Contents(operand int) Content.
type Content uint8

const (
	Values  Content = iota // float32, equal up to rounding
	Indices                // words, equal bit for bit
	Halves                 // pairs of halves, equal up to their rounding
	Notes                  // between the op's own dispatches; twins leave it alone
)

// Cost is what an op moves and computes when every row of the plan's capacity is in use. Weight bytes are
// counted once, as a kernel that reads each weight once would.
type Cost struct {
	Weights int64 // bytes of weights read
	Bytes   int64 // bytes of everything else, read and written
	Flops   int64 // multiply and add count as two
}

// Plus returns the sum of two costs.
func (c Cost) Plus(d Cost) Cost {
	return Cost{c.Weights + d.Weights, c.Bytes + d.Bytes, c.Flops + d.Flops}
}

// An Op is one call of a kernel inside a graph.
type Op interface {
	// Kernel is the kernel family's name, the base name of its .comp file.
	Kernel() string
	// Operands lists every range the op reads or writes, the step buffer included.
	Operands() []Operand
	// Cost of the op at the plan's row capacity.
	Cost() Cost
	// Lower turns the op into dispatches for a device. A tensor larger than the device's binding limit
	// becomes several dispatches over windows of whole rows or experts.
	Lower(p *Profile) ([]Dispatch, error)
	// Twin computes the op in host memory.
	Twin(m Memory) error
}

// A Dispatch is what gets recorded: a module with its constants, operands and grid.
type Dispatch struct {
	Module string    // name in the catalogue
	Spec   []uint32  // specialization constants 0..n-1; 0 is the workgroup size
	Bind   []Operand // bindings 0..n-1 of set 0
	Push   []uint32  // the kernel's parameters; they follow the operand offsets
	Groups [3]uint32
	Use    Use // of a weight kernel; zero for others
}

// A Profile is what a device offers to kernels, as far as they care.
type Profile struct {
	// LanesPerRow selects the scheme in which the lanes of a subgroup share a row and reduce; false
	// selects one row per lane, without reduction, which is what software devices run best.
	LanesPerRow bool
	// Subgroup is the number of lanes that reduce together: the workgroup size of reducing kernels.
	Subgroup uint32
	// OneSubgroup promises that a workgroup of Subgroup lanes is exactly one subgroup, so that a
	// subgroup reduction is a workgroup reduction. Without it kernels go through shared memory.
	OneSubgroup bool
	// Fuse says that kernels may bind FusedBuffers buffers: with LanesPerRow, small steps then take fewer dispatches, of
	// kernels that do more each.
	Fuse bool
	// Broadcast is the number of lanes of every subgroup, on devices where a kernel may pass a value from any lane
	// to all (Vulkan 1.2, whose SPIR-V 1.5 has broadcasts from a lane that is no constant) and gains by it; 0 on others,
	// and where it does not divide the 32 weights of a group or is no multiple of the 4 codes of a word.
	Broadcast uint32
	// Spread says that a read through an address by all lanes costs next to nothing, and that subgroups have 8 lanes:
	// weight kernels then spread the bytes of a word pair over the lanes.
	Spread bool
	// Texels says that weights and inputs are best read from texel buffers.
	Texels bool
	// Turn is how many weights, times tokens, a turn of the loop of a kernel takes that reads rows from their beginning to their end (common/tile.glsl):
	// many make the loop's code long, which some drivers compile slowly, and its turns few.
	Turn int
	// Matrices is the shape of the cooperative matrices that products of many rows are formed with, zero where they are formed as
	// those of few. CanMatrices is what it could be: the bits of a row then depend on how many rows its step has, and so it
	// has to be asked for.
	Matrices, CanMatrices MatrixShape
	// CanShare, CanSpread and CanTexels are what Broadcast, Spread and Texels could be, whether the device gains by them or not.
	CanShare             uint32
	CanSpread, CanTexels bool
	// Tuned are the ways of weight kernels that were found best on this very device; other uses go their plain way. All
	// passed CheckWay.
	Tuned map[Use]Way
	// MaxBinding is the largest range one binding may cover, in bytes.
	MaxBinding int64
	// MaxGroups is the largest grid in x, y and z.
	MaxGroups [3]uint32
	// MaxLoops is how many times an invocation may go around all its loops together, 0 for no limit.
	// Beyond it llvmpipe leaves every loop without an error (Mesa's LP_MAX_TGSI_LOOP_ITERATIONS), so
	// kernels whose loops grow with the step are cut into dispatches that stay below.
	MaxLoops int
	// NoPacked says that kernels for inputs in whole numbers are not to be used though the device could, and NoSubgroups the
	// same of subgroup operations: reductions then go through shared memory alone, and there are no schemes but row and
	// texel. With NoHalves the scheduler replaces the conversion of halves to float in all kernels. These are for drivers
	// that get them wrong.
	NoPacked, NoSubgroups, NoHalves bool
}

// ErrLoops reports that an op would go around its loops more often than the device allows.
var ErrLoops = errors.New("an invocation has too many loops to run")

// ErrNotPacked reports that a device has no kernels for inputs in whole numbers (see [Profile.CanPack]).
var ErrNotPacked = errors.New("the device has no kernels for int8 activations")

// ErrNoMatrices reports that a device has no cooperative matrices that kernels can use.
var ErrNoMatrices = errors.New("the device has no cooperative matrices of halves, 16x16x16 or 8x8x8, that the kernels could use")

// span is a part [first, first+count) of something that a kernel goes over.
type span struct{ first, count int }

// spans cuts n turns of a loop into dispatches: each turn goes around inner loops up to each times, and
// what is outside the turns up to fixed times.
func (p *Profile) spans(n, each, fixed int) ([]span, error) {
	per := n
	if p.MaxLoops > 0 {
		per = (p.MaxLoops - fixed) / each
	}
	if per < 1 {
		return nil, fmt.Errorf("%w: one turn goes around %d, the device allows %d", ErrLoops, each+fixed, p.MaxLoops)
	}
	var ss []span
	for f := 0; f < n; f += per {
		ss = append(ss, span{f, min(per, n-f)})
	}
	return ss, nil
}

// ReduceSpec returns the two constants that begin the specialization of every reducing kernel (see
// common/reduce_any.glsl): the workgroup size, and whether it is a single subgroup or has to do without subgroup
// operations.
func (p *Profile) ReduceSpec() []uint32 {
	one := uint32(0)
	switch {
	case p.NoSubgroups:
		one = 2
	case p.OneSubgroup:
		one = 1
	}
	return []uint32{p.Subgroup, one}
}

// loops refuses an op whose invocations go around their loops n times in all where the device allows fewer.
func (p *Profile) loops(kernel string, n int) error {
	if p.MaxLoops > 0 && n > p.MaxLoops {
		return fmt.Errorf("%s: %w: it goes around %d times, the device allows %d", kernel, ErrLoops, n, p.MaxLoops)
	}
	return nil
}

// grid checks a grid against the device's limits.
func (p *Profile) grid(kernel string, x, y, z int) ([3]uint32, error) {
	g := [3]int{x, y, z}
	for i, n := range g {
		if n < 1 || uint64(n) > uint64(p.MaxGroups[i]) {
			return [3]uint32{}, fmt.Errorf("%s: grid %dx%dx%d is outside the device's limit %v", kernel, x, y, z, p.MaxGroups)
		}
	}
	return [3]uint32{uint32(x), uint32(y), uint32(z)}, nil
}

// ceilDiv returns a/b rounded up.
func ceilDiv(a, b int) int { return (a + b - 1) / b }
