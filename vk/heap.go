package vk

// HeapFor returns the index of the heap that buffers of a use lie in, or -1 when no memory type serves it. Imported
// memory is the host's and has none.
func (d DeviceInfo) HeapFor(use MemoryUse) int {
	if use < 0 || use >= Imported {
		return -1
	}
	t := chooseType(d.MemoryTypes, d.Heaps, use, d.Unified(), ^uint32(0))
	if t < 0 {
		return -1
	}
	return d.MemoryTypes[t].Heap
}

// Free returns how many bytes of the heap this process may still allocate: what is left of its budget where the driver
// tells one, else the heap's size.
func (h Heap) Free() int64 {
	if h.Budget <= 0 {
		return h.Size
	}
	return max(0, h.Budget-max(0, h.Usage))
}
