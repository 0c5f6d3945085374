package vk

import (
	"fmt"

	vulkan "github.com/goki/vulkan"
)

// A Version is a packed Vulkan API version.
type Version uint32

// MakeVersion packs major.minor.patch.
func MakeVersion(major, minor, patch uint32) Version {
	return Version(major<<22 | minor<<12 | patch)
}

func (v Version) Major() int { return int(v >> 22 & 0x7f) }
func (v Version) Minor() int { return int(v >> 12 & 0x3ff) }
func (v Version) Patch() int { return int(v & 0xfff) }

// String returns "major.minor.patch".
func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Patch())
}

// A DeviceType says what a device is, as its driver reports it.
type DeviceType int

const (
	OtherDevice      DeviceType = iota
	IntegratedDevice            // shares memory with the host
	DiscreteDevice              // has its own memory
	VirtualDevice               // a device seen through a virtual machine
	CPUDevice                   // a software implementation
)

// String returns "discrete", "integrated", "virtual", "cpu" or "other".
func (t DeviceType) String() string {
	switch t {
	case IntegratedDevice:
		return "integrated"
	case DiscreteDevice:
		return "discrete"
	case VirtualDevice:
		return "virtual"
	case CPUDevice:
		return "cpu"
	}
	return "other"
}

// rank orders devices for selection, best first.
func (t DeviceType) rank() int {
	switch t {
	case DiscreteDevice:
		return 0
	case IntegratedDevice:
		return 1
	case VirtualDevice:
		return 2
	case CPUDevice:
		return 4
	}
	return 3
}

// A Heap is one memory heap of a device.
type Heap struct {
	Size        int64 // bytes
	DeviceLocal bool
	Budget      int64 // bytes this process may use, -1 when unknown
	Usage       int64 // bytes this process uses now, -1 when unknown
}

// A MemoryType is one kind of memory of a device.
type MemoryType struct {
	Heap         int // index into DeviceInfo.Heaps
	DeviceLocal  bool
	HostVisible  bool
	HostCoherent bool
	HostCached   bool
	other        bool // protected, lazily allocated or vendor specific: not for buffers
}

// A QueueFamily is one family of queues of a device.
type QueueFamily struct {
	Graphics, Compute, Transfer bool
	Count                       int
	TimestampBits               int // valid bits of a timestamp, 0 = none
}

// Limits are the limits that matter to compute. Sizes are bytes.
type Limits struct {
	MaxStorageRange         int64 // one storage buffer binding
	MaxBufferSize           int64 // one buffer (maintenance4, else the largest allocation)
	MaxAllocation           int64 // one memory allocation (maintenance3)
	MaxAllocations          int   // live memory allocations
	StorageOffsetAlign      int64 // offset of a storage buffer binding
	MaxPushBytes            int
	MaxStorageBuffers       int // storage buffers per shader stage
	MaxSets                 int // bound descriptor sets
	MaxGroupInvocations     int
	MaxGroupSize            [3]int
	MaxGroups               [3]uint32
	MaxSharedMemory         int
	MaxTexelElements        int64
	TexelOffsetAlign        int64   // offset of a texel buffer
	TimestampPeriod         float64 // nanoseconds per tick
	TimestampBits           int     // valid bits on the queue that is used, 0 = no timestamps
	NonCoherentAtom         int64   // granularity of flush and invalidate
	MinMapAlign             int64
	MinHostPointerAlignment int64 // host import, 0 = unsupported
}

// SubgroupOps is a set of subgroup operations.
type SubgroupOps uint32

const (
	SubgroupBasic      SubgroupOps = 1 << iota // elect, barrier
	SubgroupVote                               // all, any
	SubgroupArithmetic                         // add, max, scans
	SubgroupBallot
	SubgroupShuffle
	SubgroupShuffleRelative
	SubgroupClustered
	SubgroupQuad
)

// A Subgroup describes the subgroups of a device.
type Subgroup struct {
	Size        int // default size
	Min, Max    int // range of sizes a pipeline may get; Min == Max means fixed
	Ops         SubgroupOps
	Compute     bool // usable in compute shaders
	SizeControl bool // a pipeline may require a size
}

// Has reports whether all of ops may be used in compute shaders.
func (s Subgroup) Has(ops SubgroupOps) bool { return s.Compute && s.Ops&ops == ops }

// Features is a set of optional features. The order of the fields is that of
// the feature bits of the supplement.
type Features struct {
	Storage8           bool // 8-bit types in storage buffers
	Storage16          bool // 16-bit types in storage buffers
	Float16            bool // fp16 arithmetic
	Int8               bool // 8-bit arithmetic
	Int16              bool // 16-bit arithmetic
	Int64              bool // 64-bit integers
	Float64            bool
	IntDot             bool // integer dot product
	IntDotAccelerated  bool // 4x8-bit packed signed dot product is one instruction
	CooperativeMatrix  bool // VK_KHR_cooperative_matrix
	BufferAddress      bool // buffer device addresses
	Timeline           bool // timeline semaphores
	HostImport         bool // VK_EXT_external_memory_host
	MemoryBudget       bool // VK_EXT_memory_budget
	SubgroupSize       bool // subgroup size control: require a size
	FullSubgroups      bool // subgroup size control: require full subgroups
	MemoryModel        bool // Vulkan memory model
	RobustBufferAccess bool // out-of-bounds buffer accesses are defined
}

// A Component is the element type of a cooperative matrix (VkComponentTypeKHR).
type Component uint32

// The component types that kernels may use.
const (
	ComponentFloat16 Component = 0
	ComponentFloat32 Component = 1
	ComponentInt8    Component = 3
	ComponentInt32   Component = 5
	ComponentUint8   Component = 7
	ComponentUint32  Component = 9
)

// A Matrix is one supported cooperative matrix product: MxK of A times KxN of
// B, added to MxN of C.
type Matrix struct {
	M, N, K         int
	A, B, C, Result Component
	Subgroup        bool // the scope is one subgroup
}

// DeviceInfo describes one physical device.
type DeviceInfo struct {
	Index         int // in the loader's order, as vulkaninfo prints it
	Name          string
	Type          DeviceType
	VendorID      uint32
	DeviceID      uint32
	Vendor        string // readable form of VendorID
	API           Version
	DriverID      uint32 // VkDriverId, 0 = unknown
	DriverName    string
	DriverInfo    string
	DriverVersion uint32
	UUID          string // 32 hex digits; unique per device, but not per driver
	DriverUUID    string // 32 hex digits
	CacheUUID     string // 32 hex digits; identifies compatible pipeline caches
	Heaps         []Heap
	MemoryTypes   []MemoryType
	Queues        []QueueFamily
	Limits        Limits
	Subgroup      Subgroup
	Features      Features
	Matrices      []Matrix // cooperative matrix shapes, empty without the feature

	phys        vulkan.PhysicalDevice
	portability bool // lists VK_KHR_portability_subset
}

// Software reports whether the device is a software implementation.
func (d DeviceInfo) Software() bool { return d.Type == CPUDevice }

// String returns "index: name (type, driver, API version)".
func (d DeviceInfo) String() string {
	driver := d.DriverName
	if d.DriverInfo != "" {
		driver += " " + d.DriverInfo
	}
	if driver == "" {
		driver = "unknown driver"
	}
	return fmt.Sprintf("%d: %s (%s, %s, Vulkan %s)", d.Index, d.Name, d.Type, driver, d.API)
}

// Unified reports whether the main device-local memory can be written by the
// host, so that uploads are plain writes. On discrete devices it is false even
// when a window of their memory is visible: reads through it are slow.
func (d DeviceInfo) Unified() bool {
	if d.Type == DiscreteDevice {
		return false
	}
	for _, t := range d.MemoryTypes {
		if t.DeviceLocal && t.HostVisible && !t.other {
			return true
		}
	}
	return false
}

// computeQueue returns the index of the queue family to use, or -1. A family
// that can do graphics too is preferred to a compute-only one: it is the one
// that every driver has and that is scheduled with full priority; nothing here
// draws beside it. Timestamps break ties.
func (d DeviceInfo) computeQueue() int {
	best, score := -1, -1
	for i, q := range d.Queues {
		if !q.Compute || q.Count == 0 {
			continue
		}
		s := 0
		if q.Graphics {
			s++
		}
		if q.TimestampBits > 0 {
			s += 2
		}
		if s > score {
			best, score = i, s
		}
	}
	return best
}

// The floor: what every device must have. The numbers of a profile never fall
// below them.
const (
	floorInvocations = 256
	floorShared      = 16 << 10
	floorPush        = 128
	floorBuffers     = 4
	floorRange       = 128 << 20
	floorGroups      = 65535
	floorAlign       = 256
)

// Missing returns what the device lacks of the floor, one readable item each.
// It is empty for a usable device.
func (d DeviceInfo) Missing() []string {
	var m []string
	need := func(ok bool, format string, args ...any) {
		if !ok {
			m = append(m, fmt.Sprintf(format, args...))
		}
	}
	l := d.Limits
	need(d.API >= MakeVersion(1, 1, 0), "Vulkan 1.1 (has %s)", d.API)
	need(d.computeQueue() >= 0, "a compute queue")
	need(l.MaxGroupInvocations >= floorInvocations, "workgroups of %d invocations (has %d)", floorInvocations, l.MaxGroupInvocations)
	need(l.MaxSharedMemory >= floorShared, "%d bytes of shared memory (has %d)", floorShared, l.MaxSharedMemory)
	need(l.MaxPushBytes >= floorPush, "%d bytes of push constants (has %d)", floorPush, l.MaxPushBytes)
	need(l.MaxStorageBuffers >= floorBuffers, "%d storage buffers per stage (has %d)", floorBuffers, l.MaxStorageBuffers)
	need(l.MaxStorageRange >= floorRange, "storage buffer bindings of %d bytes (has %d)", floorRange, l.MaxStorageRange)
	return m
}

// vendorName returns the readable form of a PCI or Khronos vendor id.
func vendorName(id uint32) string {
	switch id {
	case 0x1002:
		return "AMD"
	case 0x1010:
		return "Imagination"
	case 0x106b:
		return "Apple"
	case 0x10de:
		return "NVIDIA"
	case 0x13b5:
		return "ARM"
	case 0x1414:
		return "Microsoft"
	case 0x14e4:
		return "Broadcom"
	case 0x1ae0:
		return "Google"
	case 0x5143:
		return "Qualcomm"
	case 0x8086:
		return "Intel"
	case 0x10005:
		return "Mesa"
	}
	return fmt.Sprintf("vendor 0x%04x", id)
}
