package vk

import (
	"fmt"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// bufferUsage is what every buffer may be used for.
func (d *Device) bufferUsage() vulkan.BufferUsageFlagBits {
	u := vulkan.BufferUsageStorageBufferBit | vulkan.BufferUsageTransferSrcBit | vulkan.BufferUsageTransferDstBit | vulkan.BufferUsageIndirectBufferBit
	if d.profile.MaxTexels > 0 {
		u |= vulkan.BufferUsageUniformTexelBufferBit
	}
	return u
}

// A Buffer is a range of device memory. Its contents are undefined at first.
type Buffer struct {
	d        *Device
	handle   handle
	size     int64
	use      MemoryUse
	block    *block
	off      int64 // in the block
	reserved int64 // bytes taken of the block
	mapped   []byte
	address  uint64
	coherent bool
}

// NewBuffer makes a buffer of size bytes, rounded up to a multiple of 4, or of a texel. The
// error wraps ErrOutOfDeviceMemory when memory is short and ErrUnsupported when
// the device cannot have a buffer of that size.
func (d *Device) NewBuffer(size int64, use MemoryUse) (*Buffer, error) {
	if size <= 0 || use < 0 || use >= Imported {
		return nil, invalid("a %s buffer of %d bytes", use, size)
	}
	if err := d.usable("vkCreateBuffer"); err != nil {
		return nil, err
	}
	size = roundUp(size, 4)
	if d.profile.MaxTexels > 0 {
		size = roundUp(size, TexelBytes)
	}
	if size > d.info.Limits.MaxBufferSize {
		return nil, unsupported("a buffer of %d bytes: the device has buffers of at most %d", size, d.info.Limits.MaxBufferSize)
	}
	b := &Buffer{d: d, size: size, use: use}
	detail := fmt.Sprintf("%d bytes, %s", size, use)
	if err := d.do("vkCreateBuffer", detail, func() (r Result) {
		b.handle, r = d.raw.createBuffer(size, d.bufferUsage(), false)
		return r
	}); err != nil {
		return nil, err
	}
	need, align, bits := d.raw.requirements(b.handle)
	block, off, err := d.mem.take(d, use, need, align, bits)
	if err != nil {
		d.raw.destroyBuffer(b.handle)
		return nil, err
	}
	b.block, b.off, b.reserved = block, off, need
	if err := d.do("vkBindBufferMemory", detail, func() Result {
		return d.raw.bind(b.handle, block.mem, off)
	}); err != nil {
		d.raw.destroyBuffer(b.handle)
		d.mem.give(d, use, block, off, need)
		return nil, err
	}
	b.coherent = d.mem.arenas[use].kind.HostCoherent
	if block.ptr != nil {
		b.mapped = unsafe.Slice((*byte)(unsafe.Add(block.ptr, off)), size)
	}
	b.address = d.raw.address(b.handle)
	d.own(b)
	return b, nil
}

// ImportHost makes a buffer of host memory without a copy: pages of a file
// mapping or of an anonymous one, never Go memory. Address and length must be
// multiples of Limits.MinHostPointerAlignment. Kernels must not write to it.
// The pages must stay mapped until the buffer is freed. Drivers may refuse
// memory for reasons of their own; any error means: copy instead.
func (d *Device) ImportHost(mem []byte) (*Buffer, error) {
	if !d.profile.Features.HostImport {
		return nil, unsupported("importing host memory")
	}
	if err := d.usable("vkAllocateMemory"); err != nil {
		return nil, err
	}
	align, size := d.info.Limits.MinHostPointerAlignment, int64(len(mem))
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if size == 0 || align <= 0 || size%align != 0 || int64(uintptr(p))%align != 0 {
		return nil, invalid("importing %d bytes at offset %d of a page: address and length must be multiples of %d", size, int64(uintptr(p))%max(align, 1), align)
	}
	if size > d.info.Limits.MaxAllocation || size > d.info.Limits.MaxBufferSize {
		return nil, unsupported("importing %d bytes at once: the device allows %d", size, min(d.info.Limits.MaxAllocation, d.info.Limits.MaxBufferSize))
	}
	detail := fmt.Sprintf("import of %d bytes", size)
	var bits uint32
	if err := d.do("vkGetMemoryHostPointerPropertiesEXT", detail, func() (r Result) {
		bits, r = d.raw.importTypes(p)
		return r
	}); err != nil {
		return nil, err
	}
	b := &Buffer{d: d, size: size, use: Imported, reserved: size, block: &block{size: size, used: size, dedicated: true}}
	if err := d.do("vkCreateBuffer", detail, func() (r Result) {
		b.handle, r = d.raw.createBuffer(size, d.bufferUsage(), true)
		return r
	}); err != nil {
		return nil, err
	}
	need, _, bufBits := d.raw.requirements(b.handle)
	typ := chooseType(d.info.MemoryTypes, d.info.Heaps, Readback, d.info.Unified(), bits&bufBits)
	if typ < 0 || need > size {
		d.raw.destroyBuffer(b.handle)
		return nil, unsupported("importing %d bytes: no memory type takes them", size)
	}
	if err := d.do("vkAllocateMemory", detail, func() (r Result) {
		b.block.mem, r = d.raw.importMemory(p, size, typ)
		return r
	}); err != nil {
		d.raw.destroyBuffer(b.handle)
		return nil, err
	}
	if err := d.do("vkBindBufferMemory", detail, func() Result {
		return d.raw.bind(b.handle, b.block.mem, 0)
	}); err != nil {
		d.raw.destroyBuffer(b.handle)
		d.raw.freeMemory(b.block.mem)
		return nil, err
	}
	b.address = d.raw.address(b.handle)
	d.mem.mu.Lock()
	d.mem.inUse.Buffers[Imported] += size
	d.mem.inUse.Reserved[Imported] += size
	d.mem.mu.Unlock()
	d.count.allocations.Add(1)
	d.own(b)
	return b, nil
}

// Size returns the size in bytes.
func (b *Buffer) Size() int64 { return b.size }

// Use returns what the buffer's memory is for.
func (b *Buffer) Use() MemoryUse { return b.use }

// Device returns the device the buffer belongs to.
func (b *Buffer) Device() *Device { return b.d }

// Address returns where kernels find the buffer's first byte, 0 when the profile has no BufferAddress. Accesses
// through addresses are checked by nobody.
func (b *Buffer) Address() uint64 { return b.address }

// Mapped returns the buffer's bytes when the host can see them, else nil. The
// slice must not be used after Free or Close. Writes made before a Submit are
// seen by it; call Flush first when the memory may not be coherent, that is for
// DeviceLocal and Readback. Device writes are seen after a HostBarrier and a
// finished ticket; call Invalidate first.
func (b *Buffer) Mapped() []byte { return b.mapped }

// Flush makes host writes to [off, off+n) visible to the device. It does
// nothing for coherent memory.
func (b *Buffer) Flush(off, n int64) error {
	return b.sync("vkFlushMappedMemoryRanges", off, n, b.d.raw.flush)
}

// Invalidate makes device writes to [off, off+n) visible to the host. It does
// nothing for coherent memory.
func (b *Buffer) Invalidate(off, n int64) error {
	return b.sync("vkInvalidateMappedMemoryRanges", off, n, b.d.raw.invalidate)
}

func (b *Buffer) sync(op string, off, n int64, f func(handle, int64, int64) Result) error {
	if off < 0 || n < 0 || off+n > b.size {
		return invalid("range [%d, %d) of a buffer of %d bytes", off, off+n, b.size)
	}
	if b.mapped == nil {
		return invalid("%s of a buffer that is not mapped", op)
	}
	if b.coherent || n == 0 {
		return nil
	}
	atom := max(b.d.info.Limits.NonCoherentAtom, 1)
	from := (b.off + off) / atom * atom
	to := min(roundUp(b.off+off+n, atom), b.block.size)
	return b.d.do(op, "", func() Result { return f(b.block.mem, from, to-from) })
}

// Free frees the buffer. No submitted work may still use it. It may be called
// twice, and on nil.
func (b *Buffer) Free() {
	if b != nil && b.d.disown(b) {
		b.release()
	}
}

func (b *Buffer) release() {
	b.mapped = nil
	b.d.raw.destroyBuffer(b.handle)
	b.handle = 0
	if b.use == Imported {
		b.d.raw.freeMemory(b.block.mem)
		b.d.mem.mu.Lock()
		b.d.mem.inUse.Buffers[Imported] -= b.size
		b.d.mem.inUse.Reserved[Imported] -= b.size
		b.d.mem.mu.Unlock()
		return
	}
	b.d.mem.give(b.d, b.use, b.block, b.off, b.reserved)
}
