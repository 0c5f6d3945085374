package vk

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"
)

// A MemoryUse says what a buffer's memory is for.
type MemoryUse int

const (
	DeviceLocal MemoryUse = iota // kernels' data; mapped too when Profile.Unified
	HostVisible                  // mapped, coherent: uploads and step data
	Readback                     // mapped, cached by the host if possible
	Imported                     // host pages, read only (ImportHost)
	memoryUses
)

// String returns the name of the use.
func (u MemoryUse) String() string {
	return [...]string{"device-local", "host-visible", "readback", "imported", "?"}[min(max(u, 0), memoryUses)]
}

// MemoryInUse counts memory by MemoryUse, in bytes.
type MemoryInUse struct {
	Buffers  [memoryUses]int64 // live buffers, padding included
	Reserved [memoryUses]int64 // device memory allocated to hold them
}

// Add is what two devices use together.
func (m MemoryInUse) Add(n MemoryInUse) MemoryInUse {
	for i := range m.Buffers {
		m.Buffers[i] += n.Buffers[i]
		m.Reserved[i] += n.Reserved[i]
	}
	return m
}

// Total returns the reserved bytes of all uses but Imported, whose pages belong
// to the host.
func (m MemoryInUse) Total() int64 {
	return m.Reserved[DeviceLocal] + m.Reserved[HostVisible] + m.Reserved[Readback]
}

// Own returns the bytes of the live buffers of all uses but Imported.
func (m MemoryInUse) Own() int64 {
	return m.Buffers[DeviceLocal] + m.Buffers[HostVisible] + m.Buffers[Readback]
}

// Sizes of the blocks that small buffers share. The first block of an arena is
// small, so that tests and small models stay small; each later one doubles.
const (
	firstBlock = 16 << 20
	lastBlock  = 256 << 20
)

// memory holds the arenas of a device, one per use.
type memory struct {
	mu     sync.Mutex
	arenas [Imported]arena
	inUse  MemoryInUse
}

// An arena hands out ranges of the blocks of one memory type.
type arena struct {
	use    MemoryUse
	typ    int
	kind   MemoryType
	mapped bool
	next   int64 // size of the next block
	limit  int64 // of a block
	blocks []*block
}

// A block is one device memory allocation.
type block struct {
	mem       handle
	size      int64
	ptr       unsafe.Pointer // C memory, nil when not mapped
	free      spans
	used      int64
	dedicated bool
}

// setup chooses the memory type of each use.
func (m *memory) setup(d *Device) {
	unified := d.info.Unified()
	for i := range m.arenas {
		use := MemoryUse(i)
		typ := chooseType(d.info.MemoryTypes, d.info.Heaps, use, unified, ^uint32(0))
		a := arena{use: use, typ: typ, next: firstBlock}
		if typ >= 0 {
			a.kind = d.info.MemoryTypes[typ]
			a.limit = min(d.info.Limits.MaxAllocation, lastBlock, max(d.info.Heaps[a.kind.Heap].Size/8, firstBlock))
		}
		a.mapped = a.kind.HostVisible && (use != DeviceLocal || d.profile.Unified)
		m.arenas[i] = a
	}
}

// chooseType returns the memory type for a use among those in bits, or -1.
func chooseType(types []MemoryType, heaps []Heap, use MemoryUse, unified bool, bits uint32) int {
	best, bestScore := -1, -1
	for i, t := range types {
		if bits>>i&1 == 0 || t.other {
			continue
		}
		score := 0
		want := func(ok bool, points int) {
			if ok {
				score += points
			}
		}
		switch use {
		case DeviceLocal:
			want(t.DeviceLocal, 32)
			// A discrete device's visible window may be small: leave it alone.
			want(t.HostVisible == unified, 16)
			want(unified && t.HostCoherent, 8)
			want(unified && t.HostCached, 4)
		case HostVisible:
			if !t.HostVisible || !t.HostCoherent {
				continue
			}
			want(t.DeviceLocal == unified, 16)
			// The host only writes: write-combined memory is as good or better,
			// unless the same memory is what kernels and host both work on.
			want(t.HostCached == unified, 8)
		case Readback:
			if !t.HostVisible {
				continue
			}
			want(t.HostCached, 16)
			want(t.HostCoherent, 8)
			want(t.DeviceLocal == unified, 4)
		}
		if best >= 0 && score == bestScore && heaps[t.Heap].Size <= heaps[types[best].Heap].Size {
			continue
		}
		if score >= bestScore {
			best, bestScore = i, score
		}
	}
	return best
}

// allocate makes device memory of an arena's type, mapped when the arena is.
func (m *memory) allocate(d *Device, a *arena, size int64, dedicated bool) (*block, error) {
	b := &block{size: size, free: spans{{0, size}}, dedicated: dedicated}
	detail := fmt.Sprintf("%d bytes of %s memory", size, a.use)
	if err := d.do("vkAllocateMemory", detail, func() (r Result) {
		b.mem, r = d.raw.allocate(size, a.typ)
		return r
	}); err != nil {
		return nil, err
	}
	if a.mapped {
		if err := d.do("vkMapMemory", detail, func() (r Result) {
			b.ptr, r = d.raw.mapMemory(b.mem)
			return r
		}); err != nil {
			d.raw.freeMemory(b.mem)
			return nil, err
		}
	}
	d.count.allocations.Add(1)
	a.blocks = append(a.blocks, b)
	m.inUse.Reserved[a.use] += size
	return b, nil
}

// take finds room for a buffer.
func (m *memory) take(d *Device, use MemoryUse, size, align int64, bits uint32) (*block, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &m.arenas[use]
	if a.typ < 0 || bits>>a.typ&1 == 0 {
		return nil, 0, unsupported("no %s memory type for buffers", use)
	}
	if !a.kind.HostCoherent {
		// Flushed ranges must not touch a neighbour's bytes.
		align = max(align, d.info.Limits.NonCoherentAtom)
		size = roundUp(size, d.info.Limits.NonCoherentAtom)
	}
	if size > d.info.Limits.MaxAllocation {
		return nil, 0, unsupported("a buffer of %d bytes: the device allocates at most %d at once", size, d.info.Limits.MaxAllocation)
	}
	for _, b := range a.blocks {
		if b.dedicated {
			continue
		}
		if off := b.free.take(size, align); off >= 0 {
			m.account(a, b, size)
			return b, off, nil
		}
	}
	next := min(a.next, a.limit)
	if size <= next/2 {
		b, err := m.allocate(d, a, next, false)
		if err == nil {
			a.next = min(next*2, lastBlock)
			off := b.free.take(size, align)
			m.account(a, b, size)
			return b, off, nil
		}
		if d.lost.Load() {
			return nil, 0, err
		}
		// Memory is short: what is needed may still fit.
	}
	b, err := m.allocate(d, a, size, true)
	if err != nil {
		return nil, 0, err
	}
	b.free = nil
	m.account(a, b, size)
	return b, 0, nil
}

func (m *memory) account(a *arena, b *block, size int64) {
	b.used += size
	m.inUse.Buffers[a.use] += size
}

// give returns the room of a buffer. One empty shared block is kept per arena.
func (m *memory) give(d *Device, use MemoryUse, b *block, off, size int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &m.arenas[use]
	if !a.kind.HostCoherent {
		size = roundUp(size, d.info.Limits.NonCoherentAtom)
	}
	b.used -= size
	m.inUse.Buffers[use] -= size
	if !b.dedicated {
		b.free.give(off, size)
		if b.used > 0 {
			return
		}
		empty := 0
		for _, o := range a.blocks {
			if !o.dedicated && o.used == 0 {
				empty++
			}
		}
		if empty <= 1 {
			return
		}
	}
	a.blocks = slices.DeleteFunc(a.blocks, func(o *block) bool { return o == b })
	m.inUse.Reserved[use] -= b.size
	d.raw.freeMemory(b.mem) // unmaps it
}

func (m *memory) teardown(d *Device) {
	for i := range m.arenas {
		for _, b := range m.arenas[i].blocks {
			d.raw.freeMemory(b.mem)
		}
		m.arenas[i].blocks = nil
	}
	m.inUse = MemoryInUse{}
}

// MemoryInUse returns how much memory the device's buffers use.
func (d *Device) MemoryInUse() MemoryInUse {
	d.mem.mu.Lock()
	defer d.mem.mu.Unlock()
	return d.mem.inUse
}
