package scheduler

import (
	"fmt"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A place is where bytes [from, from+n) of a buffer lie on a die. Most buffers have one place that is all theirs.
// Imported buffers share memory with others, and a buffer that is larger than a piece of memory can be has
// several places, which overlap so that whatever a kernel binds lies in one of them.
type place struct {
	mem     *vk.Buffer
	off     int64 // of byte from, in mem
	from, n int64
}

// holds reports whether bytes [off, off+n) of the buffer all lie in the place.
func (p place) holds(off, n int64) bool { return off >= p.from && off+n <= p.from+p.n }

// place returns the memory of a view and the view's offset in it, or nil when no place holds all of it.
func (d *Die) place(v shaders.View) (*vk.Buffer, int64) {
	for _, p := range d.places[v.Buf] {
		if p.holds(v.Off, v.Len) {
			return p.mem, p.off + v.Off - p.from
		}
	}
	return nil, 0
}

// addPlace notes that a buffer lies somewhere.
func (d *Die) addPlace(b *shaders.Buffer, p place) {
	d.places[b] = append(d.places[b], p)
	d.users[p.mem]++
}

// Allocate gives a weight or state buffer memory on the die, zeroed if zero is set.
func (d *Die) Allocate(b *shaders.Buffer, zero bool) error {
	if len(d.places[b]) > 0 {
		return nil
	}
	size := roundUp(max(b.Size, 4), 4)
	spans := []Span{{0, size}}
	// Kernels bind weights in windows, so those may lie in several pieces of memory; state may not.
	if b.Kind == shaders.Weight {
		var binding int64
		spans, binding = Spans(size, d.largest, d.Kernels.MaxBinding)
		d.LimitBinding(binding)
	}
	for _, s := range spans {
		m, err := d.Device.NewBuffer(s.N, vk.DeviceLocal)
		if err != nil {
			d.Free(b)
			return fmt.Errorf("memory for %s %s (%d bytes): %w", b.Kind, b.Name, b.Size, err)
		}
		d.addPlace(b, place{m, 0, s.From, s.N})
	}
	if zero {
		return d.Zero(b)
	}
	return nil
}

// spanAlign is what the bounds of spans are multiples of: any system's page, and any device's alignment.
const spanAlign = 64 << 10

// largest returns the most bytes that one piece of memory can have on a device: a little below its limits, because
// SwiftShader fails at its own (vulkan-platform.md 4).
func largest(l vk.Limits) int64 {
	return min(l.MaxAllocation, l.MaxBufferSize)/spanAlign*spanAlign - spanAlign
}

// A Span is a range of a buffer's bytes.
type Span struct{ From, N int64 }

// Spans cuts size bytes into overlapping spans of at most most bytes, such that whatever kernels bind, at most
// binding bytes, lies in one of them. Where bindings could be larger than half a span it returns a smaller
// binding, which kernels must keep to.
func Spans(size, most, binding int64) ([]Span, int64) {
	most = max(most, 2*spanAlign)
	if size <= most {
		return []Span{{0, size}}, binding
	}
	overlap := roundUp(binding, spanAlign)
	if overlap > most/2 {
		overlap = most / 2 / spanAlign * spanAlign
		binding = overlap
	}
	step := (most - overlap) / spanAlign * spanAlign
	var s []Span
	for from := int64(0); ; from += step {
		n := min(most, size-from)
		s = append(s, Span{from, n})
		if from+n == size {
			return s, binding
		}
	}
}

// LimitBinding makes kernels that are planned from now on bind at most n bytes at once.
func (d *Die) LimitBinding(n int64) { d.Kernels.MaxBinding = min(d.Kernels.MaxBinding, n) }

// Upload writes bytes of a buffer that has memory.
func (d *Die) Upload(v shaders.View, data []byte) error {
	return d.each(v, "upload of", func(m *vk.Buffer, off, at, n int64) error {
		return d.Device.Upload(m, off, data[at:min(at+n, int64(len(data)))])
	})
}

// Download reads bytes of a buffer that has memory.
func (d *Die) Download(v shaders.View, dst []byte) error {
	return d.each(v, "download of", func(m *vk.Buffer, off, at, n int64) error {
		return d.Device.Download(m, off, dst[at:min(at+n, int64(len(dst)))])
	})
}

// each calls f for every part of a view that lies in one place: off in the memory m, at in the view. Bytes that
// lie in several places come several times.
func (d *Die) each(v shaders.View, what string, f func(m *vk.Buffer, off, at, n int64) error) error {
	ps := d.places[v.Buf]
	if len(ps) == 0 {
		return fmt.Errorf("%s %s, which has no memory on this device", what, v.Buf.Name)
	}
	for _, p := range ps {
		from, to := max(v.Off, p.from), min(v.Off+v.Len, p.from+p.n)
		if from >= to {
			continue
		}
		if err := f(p.mem, p.off+from-p.from, from-v.Off, to-from); err != nil {
			return fmt.Errorf("%s %s: %w", what, v.Buf.Name, err)
		}
	}
	return nil
}

// A Bind says that bytes [From, From+N) of a buffer lie at byte Off of imported memory.
type Bind struct {
	Buf     *shaders.Buffer
	From, N int64
	Off     int64
}

// Import lets the device read host memory in place, and binds buffers to it. The memory must be whole pages of a
// mapping that stays until the buffers are freed; kernels only read it. An error changes nothing and means
// that the bytes have to be copied.
func (d *Die) Import(mem []byte, binds []Bind) error {
	for _, b := range binds {
		// A buffer is whole words, and its last word may reach beyond its tensor.
		if b.Off < 0 || b.N < 0 || b.Off%4 != 0 || b.From%4 != 0 || b.Off+b.N > int64(len(mem)) || b.From+b.N > b.Buf.Size {
			return fmt.Errorf("bytes %d..%d of %s at byte %d of %d imported ones", b.From, b.From+b.N, b.Buf.Name, b.Off, len(mem))
		}
	}
	m, err := d.Device.ImportHost(mem)
	if err != nil {
		return err
	}
	d.users[m] = 0
	for _, b := range binds {
		d.addPlace(b.Buf, place{m, b.Off, b.From, b.N})
	}
	if len(binds) == 0 {
		m.Free()
		delete(d.users, m)
	}
	return nil
}

// The staging of streamed weights: three buffers, of which one is filled while others are under way.
const (
	stagePiece  = 32 << 20
	stagePieces = 3
)

// Stream queues bytes to be written to a buffer that has memory. It returns when data has been read; Settle
// tells when it has arrived.
func (d *Die) Stream(v shaders.View, data []byte) (err error) {
	if d.upload == nil {
		if d.upload, err = d.Device.NewUploader(stagePiece, stagePieces); err != nil {
			return err
		}
	}
	return d.each(v, "upload of", func(m *vk.Buffer, off, at, n int64) error {
		return d.upload.Write(m, off, data[at:min(at+n, int64(len(data)))])
	})
}

// Settle returns when everything streamed has arrived, and frees the staging memory.
func (d *Die) Settle() error {
	if d.upload == nil {
		return nil
	}
	err := d.upload.Close()
	d.upload = nil
	if err != nil {
		return fmt.Errorf("upload of weights: %w", err)
	}
	return nil
}

// Free returns a buffer's memory, except what others still lie in.
func (d *Die) Free(b *shaders.Buffer) {
	for _, p := range d.places[b] {
		if d.users[p.mem]--; d.users[p.mem] <= 0 {
			p.mem.Free()
			delete(d.users, p.mem)
		}
	}
	delete(d.places, b)
}
