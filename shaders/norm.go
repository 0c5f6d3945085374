package shaders

// Normed is rows of activations that are the RMSNorm of others. An op that takes it reads the rows themselves, or
// forms the norm of the others as it reads where the profile has that ([Profile.folds]); Lower decides. The rows are there
// to be read if the op that computes them, an [RMSNorm] with Folds, was lowered to a dispatch.
type Normed struct {
	Mat         // the norm's result
	Of     Mat  // what it is the norm of; zero for rows that are not normed
	Weight View // width float32
	Eps    float32
}

// Plain is a matrix that no norm goes before.
func Plain(m Mat) Normed { return Normed{Mat: m} }

// operands are what an op that takes the rows must name.
func (n Normed) operands() []Operand {
	if n.Of.Buf == nil {
		return []Operand{R(n.View)}
	}
	return []Operand{R(n.View), R(n.Of.View), R(n.Weight)}
}

// foldRows is the largest step whose kernels form norms as they read and take the shared expert among the others: a
// dispatch less is worth more than what each workgroup then computes for itself. In larger steps it is not.
const foldRows = 2

// FusedBuffers is how many buffers a kernel of the fused scheme binds at most.
const FusedBuffers = 11

// folds reports whether a step of so many rows has its norms formed by the kernels that read them.
func (p *Profile) folds(rows int) bool { return p.Fuse && p.LanesPerRow && rows <= foldRows }

// folds reports whether kernels of a step of so many rows form the norm as they read.
func (n Normed) folds(p *Profile, rows int) bool { return n.Of.Buf != nil && p.folds(rows) }
