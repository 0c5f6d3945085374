package vk

/*
#cgo CFLAGS: -std=gnu11 -O2 -DVK_NO_PROTOTYPES
#cgo linux LDFLAGS: -ldl
#cgo darwin CFLAGS: -I/opt/homebrew/include -I/usr/local/include
#cgo darwin LDFLAGS: -L/opt/homebrew/lib -L/usr/local/lib
#cgo noescape sup_timeline_value
#cgo nocallback sup_timeline_value
#cgo noescape sup_wait_timeline
#cgo noescape sup_fence_status
#cgo noescape sup_submit
#cgo nocallback sup_submit
#cgo noescape sup_record
#cgo nocallback sup_record
#cgo noescape sup_allocate_set
#cgo noescape sup_update_set
#include <stdlib.h>
#include "supplement.h"
*/
import "C"

import (
	"encoding/hex"
	"fmt"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// A handle is a non-dispatchable Vulkan handle. It is not a pointer type
// because layers and some drivers use small integers, which the garbage
// collector would take for invalid pointers.
type handle uint64

// The layouts of Command and sup_command must agree.
var (
	_ [unsafe.Sizeof(Command{}) - C.sizeof_sup_command]byte
	_ [C.sizeof_sup_command - unsafe.Sizeof(Command{})]byte
	_ [unsafe.Sizeof(rawBinding{}) - C.sizeof_sup_binding]byte
)

// loadLibrary opens a loader and returns its vkGetInstanceProcAddr.
func loadLibrary(name string) (unsafe.Pointer, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var why [256]C.char
	f := C.sup_load(cname, &why[0], C.size_t(len(why)))
	if f == nil {
		return nil, fmt.Errorf("%s", C.GoString(&why[0]))
	}
	return f, nil
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// rawInstance is the supplement's side of an Instance.
type rawInstance struct{ c *C.sup_instance }

func newRawInstance(loader unsafe.Pointer, app string, validation, gpu bool) (r rawInstance, what string, res Result) {
	capp := C.CString(app)
	defer C.free(unsafe.Pointer(capp))
	var cwhat *C.char
	res = Result(C.sup_instance_create(loader, capp, cbool(validation), cbool(gpu), &r.c, &cwhat))
	return r, C.GoString(cwhat), res
}

func (r rawInstance) handle() vulkan.Instance {
	return vulkan.Instance(unsafe.Pointer(C.sup_instance_handle(r.c)))
}
func (r rawInstance) version() Version { return Version(C.sup_instance_version(r.c)) }
func (r rawInstance) close()           { C.sup_instance_close(r.c) }
func (r rawInstance) free()            { C.sup_instance_free(r.c) }

// messages returns the kept messages and how many there were in all.
func (r rawInstance) messages() ([]string, int) {
	n := int(C.sup_message_count(r.c))
	var buf [1024]C.char
	var list []string
	for i := range n {
		if C.sup_message(r.c, C.uint64_t(i), &buf[0], C.size_t(len(buf))) == 0 {
			break
		}
		list = append(list, C.GoString(&buf[0]))
	}
	return list, n
}

// physicalDevices returns the devices in the loader's order.
func (r rawInstance) physicalDevices() ([]vulkan.PhysicalDevice, Result) {
	var handles [64]C.VkPhysicalDevice
	n := C.uint32_t(len(handles))
	res := Result(C.sup_physical_devices(r.c, &handles[0], &n))
	if res == Incomplete {
		res = Success
	}
	if res != Success {
		return nil, res
	}
	list := make([]vulkan.PhysicalDevice, n)
	for i := range list {
		list[i] = vulkan.PhysicalDevice(unsafe.Pointer(handles[i]))
	}
	return list, res
}

func physical(pd vulkan.PhysicalDevice) C.VkPhysicalDevice {
	return C.VkPhysicalDevice(unsafe.Pointer(pd))
}

// describe asks a physical device for everything in DeviceInfo.
func (r rawInstance) describe(pd vulkan.PhysicalDevice) DeviceInfo {
	var c C.sup_info
	C.sup_describe(r.c, physical(pd), &c)
	d := DeviceInfo{
		Name:          C.GoString(&c.name[0]),
		Type:          DeviceType(c._type),
		VendorID:      uint32(c.vendor_id),
		DeviceID:      uint32(c.device_id),
		Vendor:        vendorName(uint32(c.vendor_id)),
		API:           Version(c.api),
		DriverID:      uint32(c.driver_id),
		DriverName:    C.GoString(&c.driver_name[0]),
		DriverInfo:    C.GoString(&c.driver_info[0]),
		DriverVersion: uint32(c.driver_version),
		UUID:          hexOf(&c.uuid),
		DriverUUID:    hexOf(&c.driver_uuid),
		CacheUUID:     hexOf(&c.cache_uuid),
		Features:      featuresOf(uint32(c.features)),
		phys:          pd,
		portability:   c.portability != 0,
	}
	for i := range int(c.heaps) {
		local := c.heap_flags[i]&C.uint32_t(vulkan.MemoryHeapDeviceLocalBit) != 0
		d.Heaps = append(d.Heaps, Heap{Size: clampSize(c.heap_size[i]), DeviceLocal: local, Budget: -1, Usage: -1})
	}
	for i := range int(c.types) {
		f := vulkan.MemoryPropertyFlagBits(c.type_flags[i])
		has := func(bit vulkan.MemoryPropertyFlagBits) bool { return f&bit != 0 }
		const usual = vulkan.MemoryPropertyDeviceLocalBit | vulkan.MemoryPropertyHostVisibleBit | vulkan.MemoryPropertyHostCoherentBit | vulkan.MemoryPropertyHostCachedBit
		d.MemoryTypes = append(d.MemoryTypes, MemoryType{
			Heap:         int(c.type_heap[i]),
			DeviceLocal:  has(vulkan.MemoryPropertyDeviceLocalBit),
			HostVisible:  has(vulkan.MemoryPropertyHostVisibleBit),
			HostCoherent: has(vulkan.MemoryPropertyHostCoherentBit),
			HostCached:   has(vulkan.MemoryPropertyHostCachedBit),
			other:        f&^usual != 0,
		})
	}
	for i := range int(c.queues) {
		f := vulkan.QueueFlagBits(c.queue_flags[i])
		d.Queues = append(d.Queues, QueueFamily{
			Graphics:      f&vulkan.QueueGraphicsBit != 0,
			Compute:       f&vulkan.QueueComputeBit != 0,
			Transfer:      f&(vulkan.QueueTransferBit|vulkan.QueueGraphicsBit|vulkan.QueueComputeBit) != 0,
			Count:         int(c.queue_count[i]),
			TimestampBits: int(c.queue_bits[i]),
		})
	}
	for i := range int(c.matrices) {
		m := &c.matrix[i]
		d.Matrices = append(d.Matrices, Matrix{
			M: int(m[0]), N: int(m[1]), K: int(m[2]),
			A: Component(m[3]), B: Component(m[4]), C: Component(m[5]), Result: Component(m[6]),
			Subgroup: m[7] == 3, // VK_SCOPE_SUBGROUP
		})
	}
	d.Limits = Limits{
		MaxStorageRange:         clampSize(c.max_range),
		MaxBufferSize:           clampSize(c.max_buffer),
		MaxAllocation:           clampSize(c.max_allocation),
		MaxAllocations:          int(c.max_allocations),
		StorageOffsetAlign:      clampSize(c.offset_align),
		MaxPushBytes:            int(c.max_push),
		MaxStorageBuffers:       int(c.max_buffers),
		MaxSets:                 int(c.max_sets),
		MaxGroupInvocations:     int(c.max_invocations),
		MaxSharedMemory:         int(c.max_shared),
		MaxTexelElements:        clampSize(c.max_texels),
		TexelOffsetAlign:        clampSize(c.texel_align),
		TimestampPeriod:         float64(c.period),
		NonCoherentAtom:         clampSize(c.atom),
		MinMapAlign:             clampSize(c.map_align),
		MinHostPointerAlignment: clampSize(c.host_align),
	}
	for i := range 3 {
		d.Limits.MaxGroupSize[i] = int(c.max_size[i])
		d.Limits.MaxGroups[i] = uint32(c.max_groups[i])
	}
	if q := d.computeQueue(); q >= 0 {
		d.Limits.TimestampBits = d.Queues[q].TimestampBits
	}
	d.Subgroup = Subgroup{
		Size: int(c.subgroup), Min: int(c.subgroup_min), Max: int(c.subgroup_max),
		Ops: SubgroupOps(c.subgroup_ops), Compute: c.subgroup_compute != 0, SizeControl: c.subgroup_required != 0,
	}
	return d
}

// clampSize makes an int64 of a device size; some drivers report "all ones".
func clampSize(v C.uint64_t) int64 {
	return int64(min(uint64(v), 1<<62))
}

func hexOf(b *[16]C.uint8_t) string {
	return hex.EncodeToString(C.GoBytes(unsafe.Pointer(b), 16))
}

// budget returns the budget and usage of each heap.
func (r rawInstance) budget(pd vulkan.PhysicalDevice, heaps []Heap) {
	var budget, usage [C.SUP_MAX_HEAPS]C.uint64_t
	C.sup_budget(r.c, physical(pd), &budget[0], &usage[0])
	for i := range heaps {
		heaps[i].Budget, heaps[i].Usage = clampSize(budget[i]), clampSize(usage[i])
	}
}

// rawDevice is the supplement's side of a Device: its function table.
type rawDevice struct {
	c     *C.sup_device
	dev   vulkan.Device
	queue vulkan.Queue
}

func (r rawInstance) newDevice(pd vulkan.PhysicalDevice, family int, features uint32) (d rawDevice, what string, res Result) {
	var cwhat *C.char
	res = Result(C.sup_device_create(r.c, physical(pd), C.uint32_t(family), C.uint32_t(features), &d.c, &cwhat))
	if res == Success {
		live[deviceObject].Add(1)
		d.dev = vulkan.Device(unsafe.Pointer(C.sup_device_handle(d.c)))
		d.queue = vulkan.Queue(unsafe.Pointer(C.sup_device_queue(d.c)))
	}
	return d, C.GoString(cwhat), res
}

func (d rawDevice) free() { C.sup_device_free(d.c) }

// The binding's calls on dispatchable handles.

func (d rawDevice) waitIdle() Result { return Result(vulkan.DeviceWaitIdle(d.dev)) }

func (d rawDevice) destroy() {
	live[deviceObject].Add(-1)
	vulkan.DestroyDevice(d.dev, nil)
}

func (d rawDevice) resetCommandBuffer(cb vulkan.CommandBuffer) Result {
	return Result(vulkan.ResetCommandBuffer(cb, 0))
}

// Memory and buffers.

func (d rawDevice) allocate(size int64, typ int) (m handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_allocate(d.c, C.uint64_t(size), C.uint32_t(typ), &h))
	return made(memoryObject, handle(h), r)
}

func (d rawDevice) importTypes(p unsafe.Pointer) (bits uint32, r Result) {
	var b C.uint32_t
	r = Result(C.sup_import_types(d.c, p, &b))
	return uint32(b), r
}

func (d rawDevice) importMemory(p unsafe.Pointer, size int64, typ int) (m handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_import_memory(d.c, p, C.uint64_t(size), C.uint32_t(typ), &h))
	return made(memoryObject, handle(h), r)
}

func (d rawDevice) freeMemory(m handle) {
	unmade(memoryObject, m)
	C.sup_free_memory(d.c, C.uint64_t(m))
}

func (d rawDevice) mapMemory(m handle) (unsafe.Pointer, Result) {
	var p unsafe.Pointer
	r := Result(C.sup_map(d.c, C.uint64_t(m), &p))
	return p, r
}

func (d rawDevice) flush(m handle, off, n int64) Result {
	return Result(C.sup_flush(d.c, C.uint64_t(m), C.uint64_t(off), C.uint64_t(n)))
}

func (d rawDevice) invalidate(m handle, off, n int64) Result {
	return Result(C.sup_invalidate(d.c, C.uint64_t(m), C.uint64_t(off), C.uint64_t(n)))
}

func (d rawDevice) createBuffer(size int64, usage vulkan.BufferUsageFlagBits, imported bool) (b handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_buffer(d.c, C.uint64_t(size), C.uint32_t(usage), cbool(imported), &h))
	return made(bufferObject, handle(h), r)
}

func (d rawDevice) requirements(b handle) (size, align int64, types uint32) {
	var s, a C.uint64_t
	var t C.uint32_t
	C.sup_requirements(d.c, C.uint64_t(b), &s, &a, &t)
	return int64(s), int64(a), uint32(t)
}

func (d rawDevice) bind(b, m handle, off int64) Result {
	return Result(C.sup_bind(d.c, C.uint64_t(b), C.uint64_t(m), C.uint64_t(off)))
}

func (d rawDevice) address(b handle) uint64 { return uint64(C.sup_buffer_address(d.c, C.uint64_t(b))) }

func (d rawDevice) destroyBuffer(b handle) {
	unmade(bufferObject, b)
	C.sup_destroy_buffer(d.c, C.uint64_t(b))
}

// Pipelines.

func (d rawDevice) createSetLayout(buffers int, texels uint32) (l handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_set_layout(d.c, C.uint32_t(buffers), C.uint32_t(texels), &h))
	return made(setLayoutObject, handle(h), r)
}

func (d rawDevice) createLayout(set handle, push int) (l handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_layout(d.c, C.uint64_t(set), C.uint32_t(push), &h))
	return made(layoutObject, handle(h), r)
}

func (d rawDevice) createCache(data []byte) (c handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_cache(d.c, unsafe.Pointer(unsafe.SliceData(data)), C.size_t(len(data)), &h))
	return made(cacheObject, handle(h), r)
}

func (d rawDevice) cacheData(cache handle) ([]byte, Result) {
	var n C.size_t
	if r := Result(C.sup_cache_data(d.c, C.uint64_t(cache), nil, &n)); r != Success {
		return nil, r
	}
	if n == 0 {
		return nil, Success
	}
	data := make([]byte, n)
	r := Result(C.sup_cache_data(d.c, C.uint64_t(cache), unsafe.Pointer(&data[0]), &n))
	return data[:n], r
}

func (d rawDevice) createModule(spirv []byte) (m handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_module(d.c, unsafe.Pointer(unsafe.SliceData(spirv)), C.size_t(len(spirv)), &h))
	return made(moduleObject, handle(h), r)
}

func (d rawDevice) createPipeline(cache, module, layout handle, spec []uint32, subgroup int, full bool) (p handle, r Result) {
	var h C.uint64_t
	var f C.int
	if full {
		f = 1
	}
	r = Result(C.sup_create_pipeline(d.c, C.uint64_t(cache), C.uint64_t(module), C.uint64_t(layout),
		(*C.uint32_t)(unsafe.SliceData(spec)), C.uint32_t(len(spec)), C.uint32_t(subgroup), f, &h))
	return made(pipelineObject, handle(h), r)
}

func (d rawDevice) destroySetLayout(h handle) {
	unmade(setLayoutObject, h)
	C.sup_destroy_set_layout(d.c, C.uint64_t(h))
}

func (d rawDevice) destroyLayout(h handle) {
	unmade(layoutObject, h)
	C.sup_destroy_layout(d.c, C.uint64_t(h))
}

func (d rawDevice) destroyCache(h handle) {
	unmade(cacheObject, h)
	C.sup_destroy_cache(d.c, C.uint64_t(h))
}

func (d rawDevice) destroyModule(h handle) {
	unmade(moduleObject, h)
	C.sup_destroy_module(d.c, C.uint64_t(h))
}

func (d rawDevice) destroyPipeline(h handle) {
	unmade(pipelineObject, h)
	C.sup_destroy_pipeline(d.c, C.uint64_t(h))
}

// Descriptor sets.

// rawBinding has the layout of sup_binding.
type rawBinding struct {
	buffer       handle
	offset, size int64
	view         handle // 0 of storage buffers
}

func (d rawDevice) createView(b *rawBinding) (v handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_view(d.c, (*C.sup_binding)(unsafe.Pointer(b)), &h))
	return made(viewObject, handle(h), r)
}

func (d rawDevice) destroyView(h handle) {
	unmade(viewObject, h)
	C.sup_destroy_view(d.c, C.uint64_t(h))
}

func (d rawDevice) createSetPool(sets, buffers, texels int) (p handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_set_pool(d.c, C.uint32_t(sets), C.uint32_t(buffers), C.uint32_t(texels), &h))
	return made(setPoolObject, handle(h), r)
}

func (d rawDevice) destroySetPool(h handle) {
	unmade(setPoolObject, h)
	C.sup_destroy_set_pool(d.c, C.uint64_t(h))
}

func (d rawDevice) allocateSet(pool, layout handle) (s handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_allocate_set(d.c, C.uint64_t(pool), C.uint64_t(layout), &h))
	return handle(h), r
}

func (d rawDevice) updateSet(set handle, b []rawBinding) {
	C.sup_update_set(d.c, C.uint64_t(set), (*C.sup_binding)(unsafe.Pointer(unsafe.SliceData(b))), C.uint32_t(len(b)))
}

// Recording.

func (d rawDevice) createCommandPool(family int) (p handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_command_pool(d.c, C.uint32_t(family), &h))
	return made(commandPoolObject, handle(h), r)
}

func (d rawDevice) destroyCommandPool(h handle) {
	unmade(commandPoolObject, h)
	C.sup_destroy_command_pool(d.c, C.uint64_t(h))
}

func (d rawDevice) allocateCommandBuffer(pool handle) (vulkan.CommandBuffer, Result) {
	var cb C.VkCommandBuffer
	r := Result(C.sup_allocate_command_buffer(d.c, C.uint64_t(pool), &cb))
	_, r = made(commandBufferObject, 0, r)
	return vulkan.CommandBuffer(unsafe.Pointer(cb)), r
}

func (d rawDevice) freeCommandBuffer(pool handle, cb vulkan.CommandBuffer) {
	live[commandBufferObject].Add(-1)
	C.sup_free_command_buffer(d.c, C.uint64_t(pool), C.VkCommandBuffer(unsafe.Pointer(cb)))
}

func (d rawDevice) record(cb vulkan.CommandBuffer, cmds []Command) (op string, r Result) {
	var cop *C.char
	r = Result(C.sup_record(d.c, C.VkCommandBuffer(unsafe.Pointer(cb)),
		(*C.sup_command)(unsafe.Pointer(unsafe.SliceData(cmds))), C.size_t(len(cmds)), &cop))
	if r != Success {
		op = C.GoString(cop)
	}
	return op, r
}

// Submission. Command buffers are passed as integers: they are C pointers, and
// a scratch slice of integers is nothing for the garbage collector to look at.

func (d rawDevice) submit(cbs []uint64, semaphore handle, value uint64, fence handle) Result {
	return Result(C.sup_submit(d.c, (*C.uint64_t)(unsafe.SliceData(cbs)), C.uint32_t(len(cbs)), C.uint64_t(semaphore), C.uint64_t(value), C.uint64_t(fence)))
}

func (d rawDevice) createTimeline() (s handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_timeline(d.c, &h))
	return made(semaphoreObject, handle(h), r)
}

func (d rawDevice) destroySemaphore(h handle) {
	unmade(semaphoreObject, h)
	C.sup_destroy_semaphore(d.c, C.uint64_t(h))
}

func (d rawDevice) timelineValue(s handle) (uint64, Result) {
	var v C.uint64_t
	r := Result(C.sup_timeline_value(d.c, C.uint64_t(s), &v))
	return uint64(v), r
}

func (d rawDevice) waitTimeline(s handle, value, ns uint64) Result {
	return Result(C.sup_wait_timeline(d.c, C.uint64_t(s), C.uint64_t(value), C.uint64_t(ns)))
}

func (d rawDevice) createFence() (f handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_fence(d.c, &h))
	return made(fenceObject, handle(h), r)
}

func (d rawDevice) destroyFence(f handle) {
	unmade(fenceObject, f)
	C.sup_destroy_fence(d.c, C.uint64_t(f))
}

func (d rawDevice) fenceStatus(f handle) Result {
	return Result(C.sup_fence_status(d.c, C.uint64_t(f)))
}
func (d rawDevice) resetFence(f handle) Result { return Result(C.sup_reset_fence(d.c, C.uint64_t(f))) }

func (d rawDevice) waitFence(f handle, ns uint64) Result {
	return Result(C.sup_wait_fence(d.c, C.uint64_t(f), C.uint64_t(ns)))
}

// Timestamps.

func (d rawDevice) createQueries(n int) (q handle, r Result) {
	var h C.uint64_t
	r = Result(C.sup_create_queries(d.c, C.uint32_t(n), &h))
	return made(queriesObject, handle(h), r)
}

func (d rawDevice) destroyQueries(q handle) {
	unmade(queriesObject, q)
	C.sup_destroy_queries(d.c, C.uint64_t(q))
}

// readQueries fills pairs with (ticks, available) of each query.
func (d rawDevice) readQueries(q handle, n int, pairs []uint64) Result {
	return Result(C.sup_read_queries(d.c, C.uint64_t(q), C.uint32_t(n), (*C.uint64_t)(unsafe.SliceData(pairs))))
}
