package quantize

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
)

// chunkElements is about how much a worker converts at a time: enough that
// handing it over costs nothing, little enough that many fit in memory.
const chunkElements = 1 << 18

// A Progress is told how many bytes of the input's tensors are done.
type Progress func(done, total int64, tensor string)

// A chunk is some rows of a tensor on their way through a worker.
type chunk struct {
	d     *Decision
	row   uint64 // first
	rows  uint64
	out   []byte
	err   error
	ready chan struct{} // closed when out and err are there
}

// A pipeline converts chunks on several goroutines and hands them on in order.
type pipeline struct {
	file  *gguf.File
	ctx   context.Context
	queue chan *chunk // in the order of the file
	work  chan *chunk
	free  sync.Pool // *[]byte
}

// WriteFile converts the model on so many threads and writes it to path, whole
// or not at all: until everything is on disk there is only a temporary file
// beside it, which is removed on an error or when ctx ends. Memory is a few
// megabytes for each thread, whatever the size of the tensors. Values that are
// not finite, in the input or the output, are an error that names tensor and
// row.
func (p *Plan) WriteFile(ctx context.Context, path string, threads int, progress Progress) error {
	if err := checkSpace(path, p.size); err != nil {
		return err
	}
	threads = max(threads, 1)
	// The workers must be gone when this returns: they read the mapped file.
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &pipeline{file: p.file, ctx: ctx, queue: make(chan *chunk, 2*threads), work: make(chan *chunk)}
	for range threads {
		group.Go(l.convert)
	}
	group.Go(func() { l.cut(p.Decisions) })

	var done, total int64
	for i := range p.Decisions {
		if d := &p.Decisions[i]; !d.Drop {
			total += d.Tensor.Size
		}
	}
	w, err := p.writer(func(d *Decision) func(io.Writer) error {
		return func(out io.Writer) error {
			return l.deliver(out, d, func(n int64) {
				done += n
				if progress != nil {
					progress(done, total, d.Tensor.Name)
				}
			})
		}
	})
	if err != nil {
		return err
	}
	if p.KeepExisting {
		return w.WriteNew(path)
	}
	return w.WriteFile(path)
}

// cut sends the chunks of all tensors to the workers and, in the same order, to
// the one who writes them.
func (l *pipeline) cut(decisions []Decision) {
	defer close(l.work)
	for i := range decisions {
		d := &decisions[i]
		if d.Drop {
			continue
		}
		rows := rowsOf(d)
		step := max(chunkElements/max(d.Tensor.Ne(0), 1), 1)
		for at := uint64(0); at < rows; at += step {
			c := &chunk{d: d, row: at, rows: min(step, rows-at), ready: make(chan struct{})}
			// The queue is what bounds the chunks in memory.
			for _, to := range []chan *chunk{l.queue, l.work} {
				select {
				case to <- c:
				case <-l.ctx.Done():
					return
				}
			}
		}
	}
}

// rowsOf is the number of rows to convert: none of a tensor without elements, however many empty ones it claims.
func rowsOf(d *Decision) uint64 {
	if d.Tensor.Elements() == 0 {
		return 0
	}
	return d.Tensor.Rows()
}

// deliver writes the chunks of a tensor as they come.
func (l *pipeline) deliver(out io.Writer, d *Decision, progress func(bytes int64)) error {
	for left := rowsOf(d); left > 0; {
		var c *chunk
		select {
		case c = <-l.queue:
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
		select {
		case <-c.ready:
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
		if c.err != nil {
			return c.err
		}
		if _, err := out.Write(c.out); err != nil {
			return err
		}
		if !d.Copied() {
			l.free.Put(&c.out)
		}
		left -= c.rows
		progress(d.Tensor.RowBytes() * int64(c.rows))
	}
	if err := l.file.Intact(); err != nil {
		return inputf("%w", err)
	}
	return nil
}

// convert is a worker.
func (l *pipeline) convert() {
	var row []float32
	for c := range l.work {
		if c.err = l.ctx.Err(); c.err == nil {
			row, c.err = l.convertChunk(c, row)
		}
		close(c.ready)
	}
}

// convertChunk fills c.out. Row is scratch memory, which it may replace.
func (l *pipeline) convertChunk(c *chunk, row []float32) ([]float32, error) {
	t := c.d.Tensor
	data, err := l.file.Data(t)
	if err != nil {
		return row, inputf("%w", err)
	}
	in := uint64(t.RowBytes())
	data = data[c.row*in : (c.row+c.rows)*in]
	if c.d.Copied() {
		c.out = data
		for i := range c.rows {
			if err := quant.Check(t.Type, data[i*in:(i+1)*in]); err != nil {
				return row, c.fail(c.row+i, inputf("%w: the file is damaged", err))
			}
		}
		return row, nil
	}
	ne0 := t.Ne(0)
	if uint64(cap(row)) < ne0 {
		row = make([]float32, ne0)
	}
	row = row[:ne0]
	size := uint64(c.d.Size) / t.Rows()
	c.out = l.buffer(c.rows * size)
	for i := range c.rows {
		out := c.out[i*size : (i+1)*size]
		if err := c.d.convertRow(out, data[i*in:(i+1)*in], row, c.row+i); err != nil {
			return row, c.fail(c.row+i, err)
		}
	}
	return row, nil
}

// convertRow converts row number r of the tensor from in to out. Scratch has
// the row's length.
func (d *Decision) convertRow(out, in []byte, scratch []float32, r uint64) error {
	t := d.Tensor
	if err := quant.Dequantize(t.Type, scratch, in); err != nil {
		return err
	}
	matrix := r / t.Ne(1) % t.Ne(2)
	if d.factors != nil {
		f := d.factors[matrix%uint64(len(d.factors))]
		for i := range scratch {
			scratch[i] *= f
		}
	}
	im := d.importance
	if n := uint64(len(scratch)); uint64(len(im)) > n {
		im = im[matrix*n : (matrix+1)*n]
	}
	// A value that is not finite is found here, or where the new type has such values below.
	if err := quant.QuantizeRow(d.Type, out, scratch, im); err != nil {
		return inputf("%w", err)
	}
	if err := quant.Check(d.Type, out); err != nil {
		return inputf("as %v: %w", d.Type, err)
	}
	return nil
}

// fail names the row that an error is about.
func (c *chunk) fail(r uint64, err error) error {
	t := c.d.Tensor
	if t.Ne(2) > 1 {
		return fmt.Errorf("row %d of matrix %d: %w", r%t.Ne(1), r/t.Ne(1), err)
	}
	return fmt.Errorf("row %d: %w", r, err)
}

// buffer returns n bytes that need not be zero.
func (l *pipeline) buffer(n uint64) []byte {
	if b, ok := l.free.Get().(*[]byte); ok && uint64(cap(*b)) >= n {
		return (*b)[:n]
	}
	return make([]byte, n)
}
