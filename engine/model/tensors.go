package model

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
)

// binder finds tensors by name, checks their shapes, and collects the buffers that they become. It keeps
// the first error, so that a family's list of tensors reads as a list.
type binder struct {
	f       *gguf.File
	weights []weights.Item
	used    map[string]bool
	err     error
}

func (b *binder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

func (b *binder) has(name string) bool {
	_, ok := b.f.Tensor(name)
	return ok
}

// tensor finds a tensor and checks its dimensions; trailing ones may be missing or extra.
func (b *binder) tensor(name string, dims ...int) *gguf.Tensor {
	t, ok := b.f.Tensor(name)
	if !ok {
		b.fail("tensor %s is missing", name)
		return nil
	}
	for i := range max(len(dims), 4) {
		want := uint64(1)
		if i < len(dims) {
			want = uint64(dims[i])
		}
		if t.Ne(i) != want {
			b.fail("tensor %s has dimensions %v, the metadata asks for %v", name, t.Dims, dims)
			return nil
		}
	}
	b.used[name] = true
	return t
}

// add makes a weight buffer of the given size.
func (b *binder) add(name string, size int64, t *gguf.Tensor, bytes func() ([]byte, error)) shaders.View {
	buf := &shaders.Buffer{Name: name, Kind: shaders.Weight, Size: (size + 3) &^ 3}
	b.weights = append(b.weights, weights.Item{Buf: buf, Tensor: t, Bytes: bytes})
	return buf.View()
}

// file makes a buffer of a tensor's own bytes.
func (b *binder) file(t *gguf.Tensor) shaders.View {
	return b.add(t.Name, t.Size, t, func() ([]byte, error) { return b.f.Data(t) })
}

// matrix binds a weight matrix of out rows of in weights.
func (b *binder) matrix(name string, in, out int) shaders.Matrix {
	return b.stack(name, in, out, 0)
}

// stack binds a matrix per expert.
func (b *binder) stack(name string, in, out, experts int) shaders.Matrix {
	dims := []int{in, out}
	if experts > 0 {
		dims = append(dims, experts)
	}
	t := b.tensor(name, dims...)
	if t == nil || !b.readable(t, in) {
		return shaders.Matrix{}
	}
	return shaders.Matrix{
		View: b.file(t), Name: name, Type: t.Type, In: in, Out: out, Experts: experts, Scale: b.scale(t, name, experts),
	}
}

// scale binds the factor of a matrix, or of each expert's, for a type that has one: NAME.scale, one value or
// one an expert, 1 where the file leaves it out (model-qwen35.md 3.1). NAME.input_scale, the range of 8-bit
// activations, has no part in arithmetic on float32 activations.
func (b *binder) scale(t *gguf.Tensor, name string, experts int) shaders.View {
	if !shaders.HasScale(t.Type) {
		return shaders.View{}
	}
	base := strings.TrimSuffix(t.Name, ".weight")
	n := max(experts, 1)
	given, _ := b.f.Tensor(base + ".scale")
	if given != nil {
		if k := given.Elements(); given.Type != quant.F32 || k != 1 && k != uint64(n) {
			b.fail("tensor %s is %d %v values; %s needs F32, one or %d of them", given.Name, k, given.Type, t.Name, n)
			return shaders.View{}
		}
		b.used[given.Name] = true
	}
	if input := base + ".input_scale"; b.has(input) {
		b.used[input] = true
	}
	return b.add(name+"[scale]", int64(4*n), nil, func() ([]byte, error) { return b.factors(given, n) })
}

// factors returns n float32 factors: those of a tensor, which are checked, or the one that it has for all.
func (b *binder) factors(t *gguf.Tensor, n int) ([]byte, error) {
	one := binary.LittleEndian.AppendUint32(nil, math.Float32bits(1))
	if t == nil {
		return bytes.Repeat(one, n), nil
	}
	src, err := b.widen(t)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(src); i += 4 {
		if f := math.Float32frombits(binary.LittleEndian.Uint32(src[i:])); f != f || f-f != 0 {
			return nil, fmt.Errorf("tensor %s: factor %d is %g, which is not finite: the file is damaged", t.Name, i/4, f)
		}
	}
	return bytes.Repeat(src, n*4/len(src)), nil
}

// readable refuses what no kernel reads: types, by tensor and type, short rows, and a factor of a type that
// has none.
func (b *binder) readable(t *gguf.Tensor, in int) bool {
	if !shaders.HasKernel(t.Type) {
		b.fail("%w: tensor %s is %v, a block type that this version has no kernel for", ErrUnsupported, t.Name, t.Type)
		return false
	}
	if in%32 != 0 {
		b.fail("%w: tensor %s has rows of %d weights; kernels need a multiple of 32", ErrUnsupported, t.Name, in)
		return false
	}
	if scale := strings.TrimSuffix(t.Name, ".weight") + ".scale"; b.has(scale) && !shaders.HasScale(t.Type) {
		b.fail("%w: tensor %s scales %s, which is %v; only NVFP4 has a factor", ErrUnsupported, scale, t.Name, t.Type)
		return false
	}
	return true
}

// rows binds a matrix made of chosen rows of a tensor: out[i] is row pick(i) of t.
func (b *binder) rows(name string, t *gguf.Tensor, out int, pick func(i int) int) shaders.Matrix {
	if t == nil || !b.readable(t, int(t.Ne(0))) {
		return shaders.Matrix{}
	}
	rb := t.RowBytes()
	view := b.add(name, rb*int64(out), nil, func() ([]byte, error) {
		src, err := b.f.Data(t)
		if err != nil {
			return nil, err
		}
		dst := make([]byte, 0, rb*int64(out))
		for i := range out {
			r := int64(pick(i))
			dst = append(dst, src[r*rb:(r+1)*rb]...)
		}
		return dst, nil
	})
	return shaders.Matrix{View: view, Name: name, Type: t.Type, In: int(t.Ne(0)), Out: out, Scale: b.scale(t, name, 0)}
}

// vector binds float32 values; F16 and BF16 files are widened.
func (b *binder) vector(name string, dims ...int) shaders.View {
	t := b.tensor(name, dims...)
	if t == nil {
		return shaders.View{}
	}
	switch t.Type {
	case quant.F32:
		return b.file(t)
	case quant.F16, quant.BF16:
		n := int64(t.Elements())
		return b.add(name, n*4, nil, func() ([]byte, error) { return b.widen(t) })
	}
	b.fail("tensor %s is %v; norms, gates and convolutions must be F32, F16 or BF16", name, t.Type)
	return shaders.View{}
}

// widen returns a tensor's values as float32 bytes.
func (b *binder) widen(t *gguf.Tensor) ([]byte, error) {
	src, err := b.f.Data(t)
	if err != nil {
		return nil, err
	}
	f := make([]float32, t.Elements())
	if err := quant.Dequantize(t.Type, f, src); err != nil {
		return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
	}
	out := make([]byte, 0, 4*len(f))
	for _, v := range f {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out, nil
}

// values reads a small tensor's values now, for a sanity check. Nil when it cannot be read.
func (b *binder) values(name string) []float32 {
	t, ok := b.f.Tensor(name)
	if !ok || t.Elements() > 1<<20 {
		return nil
	}
	src, err := b.f.Data(t)
	if err != nil {
		return nil
	}
	f := make([]float32, t.Elements())
	if quant.Dequantize(t.Type, f, src) != nil {
		return nil
	}
	return f
}
