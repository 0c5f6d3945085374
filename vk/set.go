package vk

import (
	"fmt"
	"sync"
)

// TexelBytes is the size of a texel: four words.
const TexelBytes = 16

// A Binding is a range of a buffer given to a kernel.
type Binding struct {
	Buffer *Buffer
	Offset int64 // bytes, a multiple of Profile.OffsetAlign
	Size   int64 // bytes, at most Profile.MaxBinding; 0 = to the end of the buffer
}

// A Set is the buffers of one dispatch. It does not change once made.
type Set struct {
	handle handle
	layout *layout
	pool   *SetPool
}

// A SetPool owns sets that are freed together, such as those of a plan.
type SetPool struct {
	d      *Device
	mu     sync.Mutex
	pools  []handle // VkDescriptorPool
	views  []handle // VkBufferView
	closed bool
	// Room in the last pool.
	sets, buffers int
	next          int // sets of the next pool
}

// The sizes of descriptor pools. Kernels use 4 buffers on average.
const (
	firstPool      = 32
	lastPool       = 1024
	buffersPerPool = 4 // per set
)

// NewSetPool returns an empty pool.
func (d *Device) NewSetPool() *SetPool {
	s := &SetPool{d: d, next: firstPool}
	d.own(s)
	return s
}

// NewSet makes a set that lives until the device is closed.
func (d *Device) NewSet(p *Pipeline, bindings []Binding) (*Set, error) {
	return d.sets.NewSet(p, bindings)
}

// NewSet makes the set that gives bindings to p, one per buffer. The set fits
// every pipeline with the same buffers and as many push constant bytes.
func (s *SetPool) NewSet(p *Pipeline, bindings []Binding) (*Set, error) {
	d := s.d
	if err := d.usable("vkAllocateDescriptorSets"); err != nil {
		return nil, err
	}
	if p == nil || p.d != d || p.handle == 0 {
		return nil, invalid("the pipeline is freed or of another device")
	}
	if len(bindings) != p.Buffers() {
		return nil, invalid("kernel %q takes %d buffers, not %d", p.name, p.Buffers(), len(bindings))
	}
	var raw [maxBuffers]rawBinding
	for i, b := range bindings {
		r, err := d.binding(b)
		if err == nil && p.layout.key.texels>>i&1 != 0 && (r.size > TexelBytes*d.profile.MaxTexels || r.size%TexelBytes != 0) {
			err = invalid("a texel buffer of %d bytes: it takes whole texels of %d bytes, and the profile allows %d", r.size, TexelBytes, d.profile.MaxTexels)
		}
		if err != nil {
			return nil, fmt.Errorf("kernel %q, binding %d: %w", p.name, i, err)
		}
		raw[i] = r
	}
	set := &Set{layout: p.layout, pool: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.sets == 0 || s.buffers < len(bindings) {
		if err := s.grow(len(bindings)); err != nil {
			return nil, err
		}
	}
	allocate := func() (r Result) {
		set.handle, r = d.raw.allocateSet(s.pools[len(s.pools)-1], p.layout.set)
		return r
	}
	r := d.call("vkAllocateDescriptorSets", allocate)
	if r == ErrorOutOfPoolMemory || r == ErrorFragmentedPool {
		// Drivers may count room in their own way.
		if err := s.grow(len(bindings)); err != nil {
			return nil, err
		}
		r = d.call("vkAllocateDescriptorSets", allocate)
	}
	if r != Success {
		return nil, &Error{"vkAllocateDescriptorSets", r, fmt.Sprintf("kernel %q", p.name)}
	}
	s.sets--
	s.buffers -= len(bindings)
	for i := range bindings {
		if p.layout.key.texels>>i&1 == 0 {
			continue
		}
		if err := d.do("vkCreateBufferView", fmt.Sprintf("kernel %q, binding %d", p.name, i), func() (r Result) {
			raw[i].view, r = d.raw.createView(&raw[i])
			return r
		}); err != nil {
			return nil, err
		}
		s.views = append(s.views, raw[i].view)
	}
	d.raw.updateSet(set.handle, raw[:len(bindings)])
	return set, nil
}

// binding checks b and makes it the supplement's.
func (d *Device) binding(b Binding) (rawBinding, error) {
	buf := b.Buffer
	if buf == nil || buf.d != d || buf.handle == 0 {
		return rawBinding{}, invalid("the buffer is freed or of another device")
	}
	size := b.Size
	if size == 0 {
		size = buf.size - b.Offset
	}
	switch {
	case b.Offset < 0 || size <= 0 || b.Offset+size > buf.size:
		return rawBinding{}, invalid("range [%d, %d) of a buffer of %d bytes", b.Offset, b.Offset+size, buf.size)
	case b.Offset%d.profile.OffsetAlign != 0:
		return rawBinding{}, invalid("offset %d is not a multiple of %d", b.Offset, d.profile.OffsetAlign)
	case size > d.profile.MaxBinding:
		return rawBinding{}, invalid("a range of %d bytes, the profile allows %d", size, d.profile.MaxBinding)
	}
	return rawBinding{buffer: buf.handle, offset: b.Offset, size: size}, nil
}

// grow adds a descriptor pool with room for a set of n buffers.
func (s *SetPool) grow(n int) error {
	sets, buffers := s.next, max(s.next*buffersPerPool, n, 1)
	texels := 0
	if s.d.profile.MaxTexels > 0 {
		texels = buffers
	}
	var h handle
	if err := s.d.do("vkCreateDescriptorPool", fmt.Sprintf("%d sets", sets), func() (r Result) {
		h, r = s.d.raw.createSetPool(sets, buffers, texels)
		return r
	}); err != nil {
		return err
	}
	s.pools = append(s.pools, h)
	s.sets, s.buffers = sets, buffers
	s.next = min(s.next*2, lastPool)
	return nil
}

// Free frees the pool and its sets. No submitted work may still use them. It
// may be called twice, and on nil.
func (s *SetPool) Free() {
	if s != nil && s.d.disown(s) {
		s.release()
	}
}

func (s *SetPool) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.pools {
		s.d.raw.destroySetPool(h)
	}
	for _, h := range s.views {
		s.d.raw.destroyView(h)
	}
	s.pools, s.views, s.closed = nil, nil, true
}
