package shaders

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/calderaml/caldera/gguf/quant"
)

// A Matrix is a weight matrix of Out rows with In weights each, or a stack of Experts such matrices.
// In ggml's order the tensor's dimensions are {In, Out} or {In, Out, Experts}.
type Matrix struct {
	View
	Name    string
	Type    quant.Type
	In, Out int
	Experts int // 0 for a plain matrix
	// ExpertRows is the distance between experts in rows; 0 means Out. It is larger where the view begins
	// inside a stack that holds more than one matrix per expert.
	ExpertRows int
	// Scale holds the factor of the matrix's products, or of each expert's, for block types that have one
	// (HasScale), and is zero for the others.
	Scale View
}

// RowBytes is the size of one row in bytes.
func (m Matrix) RowBytes() int64 {
	return int64(m.In) / int64(m.Type.BlockSize()) * int64(m.Type.BlockBytes())
}

// Rows returns rows [from, from+n) as a matrix of its own.
func (m Matrix) Rows(from, n int) Matrix {
	r := m
	r.Out = n
	if m.Experts > 0 {
		if r.ExpertRows == 0 {
			r.ExpertRows = m.Out
		}
		r.View = m.Slice(int64(from)*m.RowBytes(), m.Len-int64(from)*m.RowBytes())
		return r
	}
	r.View = m.Slice(int64(from)*m.RowBytes(), int64(n)*m.RowBytes())
	return r
}

// expertBytes is the distance between experts.
func (m Matrix) expertBytes() int64 {
	rows := m.ExpertRows
	if rows == 0 {
		rows = m.Out
	}
	return int64(rows) * m.RowBytes()
}

// used is the number of weight bytes of one expert, or of the plain matrix.
func (m Matrix) used() int64 { return int64(m.Out) * m.RowBytes() }

// check refuses what no kernel can read.
func (m Matrix) check() error {
	switch {
	case !HasKernel(m.Type):
		return fmt.Errorf("tensor %s: no kernel reads block type %v", m.Name, m.Type)
	case m.In <= 0 || m.Out <= 0 || m.In%32 != 0 || m.In%m.Type.BlockSize() != 0:
		return fmt.Errorf("tensor %s: a matrix of %d rows of %d %v weights; rows must be a multiple of 32 and of the block", m.Name, m.Out, m.In, m.Type)
	case HasScale(m.Type) != (m.Scale.Buf != nil) || HasScale(m.Type) && (!m.Scale.Valid() || m.Scale.Len < int64(4*m.stack())):
		return fmt.Errorf("tensor %s: a factor of %d bytes for %d matrices of %v", m.Name, m.Scale.Len, m.stack(), m.Type)
	case !m.Valid():
		return fmt.Errorf("tensor %s: bytes %d..%d are outside its memory or not aligned to 4", m.Name, m.Off, m.Off+m.Len)
	}
	return nil
}

// rowWindow is a run of rows of a plain matrix that fits one binding.
type rowWindow struct {
	first, rows int
	view        View
}

// wholeWords rounds n pieces of the given size down to a number that takes whole words, so that what follows
// them begins at a word.
func wholeWords(n int, size int64) int {
	switch {
	case size%4 == 0:
		return n
	case size%2 == 0:
		return n - n%2
	}
	return n - n%4
}

// rowWindows cuts a plain matrix into windows of at most max bytes. Windows begin at words. Room is left for
// the descriptor's alignment, which makes a binding begin before its window.
func (m Matrix) rowWindows(max int64) ([]rowWindow, error) {
	const slack = 4096
	rb := m.RowBytes()
	if m.used()+slack <= max {
		return []rowWindow{{0, m.Out, m.View}}, nil
	}
	per := wholeWords(int((max-slack)/rb), rb)
	if per <= 0 {
		return nil, fmt.Errorf("tensor %s: rows of %d bytes that make whole words do not fit a binding of %d bytes", m.Name, rb, max)
	}
	var ws []rowWindow
	for f := 0; f < m.Out; f += per {
		n := min(per, m.Out-f)
		ws = append(ws, rowWindow{f, n, m.Slice(int64(f)*rb, int64(n)*rb)})
	}
	return ws, nil
}

// expertWindows cuts a stack into windows of whole experts of at most max bytes; rows count experts.
func (m Matrix) expertWindows(max int64) ([]rowWindow, error) {
	const slack = 4096
	eb := m.expertBytes()
	n := m.Experts
	if n == 0 {
		n = 1
	}
	per := n
	if int64(n)*eb+slack > max {
		per = wholeWords(int((max-slack)/eb), eb)
		if per <= 0 {
			return nil, fmt.Errorf("tensor %s: one expert of %d bytes does not fit a binding of %d bytes", m.Name, eb, max)
		}
	}
	var ws []rowWindow
	for f := 0; f < n; f += per {
		k := min(per, n-f)
		ws = append(ws, rowWindow{f, k, m.Slice(int64(f)*eb, min(int64(k)*eb, m.Len-int64(f)*eb))})
	}
	return ws, nil
}

// operands are what an op that reads the matrix must name besides its view.
func (m Matrix) operands() []Operand {
	if m.Scale.Buf == nil {
		return nil
	}
	return []Operand{R(m.Scale)}
}

// contents reads a matrix's rows, for twins.
type contents struct {
	Matrix
	data  []byte
	scale []float32 // nil without
}

func (m Matrix) contents(mem Memory) contents {
	c := contents{Matrix: m, data: mem.Bytes(m.View)}
	if m.Scale.Buf != nil {
		c.scale = F32(mem, m.Scale)
	}
	return c
}

// row dequantises row r of expert e into dst and applies the factor.
func (c contents) row(dst []float32, e, r int) error {
	off := int64(e)*c.expertBytes() + int64(r)*c.RowBytes()
	if err := quant.Dequantize(c.Type, dst[:c.In], c.data[off:off+c.RowBytes()]); err != nil {
		return fmt.Errorf("tensor %s: %w", c.Name, err)
	}
	if c.scale != nil {
		for i := range dst[:c.In] {
			dst[i] *= c.scale[e]
		}
	}
	return nil
}

// product sets y[i] to the product of row r of expert e with xs[i]. Twins sum in float64, so that they
// stand for the exact value rather than for one order of summation.
func dot(w, x []float32) float64 {
	var a, b, c, d float64
	i := 0
	for ; i+4 <= len(w); i += 4 {
		a += float64(w[i]) * float64(x[i])
		b += float64(w[i+1]) * float64(x[i+1])
		c += float64(w[i+2]) * float64(x[i+2])
		d += float64(w[i+3]) * float64(x[i+3])
	}
	for ; i < len(w); i++ {
		a += float64(w[i]) * float64(x[i])
	}
	return a + b + c + d
}

// parallel calls f for ranges that cover [0, n) on all processors and returns the first error. Twins of
// matrix products use it; the others are cheap.
func parallel(n int, f func(from, to int) error) error {
	workers := min(runtime.GOMAXPROCS(0), n)
	if workers <= 1 {
		return f(0, n)
	}
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { errs[w] = f(n*w/workers, n*(w+1)/workers) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
