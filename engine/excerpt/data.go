package excerpt

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
)

// manyRows are the different rows of a matrix that is made up; the rest repeat them.
const manyRows = 64

// data returns the first bytes of a tensor: those of the given dimensions.
func data(f *gguf.File, t *gguf.Tensor, dims []uint64) ([]byte, error) {
	rows, n, err := size(t, dims)
	if err != nil {
		return nil, err
	}
	b, err := f.Data(t)
	if err == nil && slices.ContainsFunc(b[:min(len(b), 4096)], func(b byte) bool { return b != 0 }) {
		return b[:n], nil
	}
	out := make([]byte, n)
	single := t.Type == quant.F32 || t.Type == quant.F16 || t.Type == quant.BF16
	if !t.Type.CanQuantize() || !single && t.Name != "token_embd.weight" || strings.HasSuffix(t.Name, "ssm_a") {
		return out, nil
	}
	// Uniform in 0.5 to 1.5 for what is one row, else around 0.
	r := rand.New(rand.NewPCG(1, 2))
	values := make([]float32, int(t.Ne(0))*int(min(rows, manyRows)))
	for i := range values {
		values[i] = r.Float32() - 0.5
		if rows == 1 {
			values[i]++
		}
	}
	return out, fill(out, t, values)
}

// size is the number of rows of a tensor of other dimensions, and its bytes.
func size(t *gguf.Tensor, dims []uint64) (rows uint64, n int64, err error) {
	rows = 1
	for _, d := range dims[min(1, len(dims)):] {
		rows *= d
	}
	n = t.RowBytes() * int64(rows)
	if n < 0 || n > t.Size {
		return 0, 0, fmt.Errorf("tensor %s: %d bytes of %d", t.Name, n, t.Size)
	}
	return rows, n, nil
}

// fill quantises rows and repeats them.
func fill(out []byte, t *gguf.Tensor, values []float32) error {
	part := out[:int64(len(values)/max(int(t.Ne(0)), 1))*t.RowBytes()]
	if err := quant.Quantize(t.Type, part, values); err != nil {
		return fmt.Errorf("tensor %s: %w", t.Name, err)
	}
	repeat(out, part)
	return nil
}

func repeat(out, part []byte) {
	for at := len(part); at < len(out) && len(part) > 0; at += len(part) {
		copy(out[at:], part)
	}
}

// amplitudes are the sizes of weights, row after row. With the smaller ones the scales of blocks are subnormal halves, and
// halves themselves are, which yet weigh more beside the others than what rounding differs by.
var amplitudes = [...]float64{1.0 / (1 << 4), 1.0 / (1 << 8), 1.0 / (1 << 13)}

// inventedRows are the different rows of a matrix of which nothing is taken from the file: quantisers search, and some
// for long. They are no multiple of 8, so that kernels which take so many rows side by side meet others each time.
const inventedRows = 15

// invent makes a tensor up.
func invent(_ *gguf.File, t *gguf.Tensor, dims []uint64) ([]byte, error) {
	rows, n, err := size(t, dims)
	if err != nil {
		return nil, err
	}
	out := make([]byte, n)
	r := rand.New(rand.NewPCG(7, uint64(n)))
	width := int(t.Ne(0))
	some := int(min(rows, inventedRows))
	amplitude := func(row int) float64 {
		if t.Type == quant.F32 {
			return amplitudes[0]
		}
		return amplitudes[row%len(amplitudes)]
	}
	if t.Type.CanQuantize() {
		values := make([]float32, width*some)
		for i := range values {
			switch {
			case rows > 1:
				values[i] = float32(amplitude(i/width) * (2*r.Float64() - 1))
			case strings.HasSuffix(t.Name, "ssm_a"): // a decay's logarithm
				values[i] = -r.Float32() - 0.5
			default: // norms, biases and factors
				values[i] = r.Float32() + 0.5
			}
		}
		return out, fill(out, t, values)
	}
	part := out[:int64(some)*t.RowBytes()]
	for row := range some {
		if err := quant.Random(t.Type, part[int64(row)*t.RowBytes():][:t.RowBytes()], r, float32(amplitude(row))); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
		}
	}
	repeat(out, part)
	return out, nil
}
