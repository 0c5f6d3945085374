package vk

import (
	"fmt"
	"slices"
	"strings"
)

// A Profile is the set of capabilities that are used of a device: what the
// device has, possibly restricted, so that the fallbacks of small devices can
// be tested on any machine. Sizes are bytes.
type Profile struct {
	Name           string // "auto", or the restriction
	Software       bool   // a CPU device
	Lanes          bool   // lanes of a subgroup share work and reduce, as is best on GPUs; else prefer kernels without barriers
	Unified        bool   // DeviceLocal buffers are mapped
	SubgroupSize   int    // size to plan for
	SubgroupFixed  bool   // every pipeline gets SubgroupSize
	SubgroupOps    SubgroupOps
	Broadcast      bool      // subgroups take a value from a lane that is no constant: SPIR-V 1.5
	SlowLoads      bool      // a load costs much more than arithmetic, even of one value by all lanes: share what is loaded
	FreeReads      bool      // a read through an address by all lanes is one instruction of the host (BufferAddress)
	FastTexels     bool      // reading a texel buffer costs a fraction of what reading a storage buffer does
	MaxBinding     int64     // one storage buffer binding
	MaxGroups      [3]uint32 // of one dispatch
	MaxInvocations int       // of one workgroup
	MaxGroupSize   [3]int
	MaxBuffers     int // storage buffers of one kernel
	SharedMemory   int
	PushBytes      int
	OffsetAlign    int64 // of a binding's offset
	MaxTexels      int64 // texels of one texel buffer, 0 where none are used
	Timestamps     bool
	Matrices       []Matrix // cooperative matrix shapes, none without the feature
	// LoopLimit is how many times an invocation may go around its loops, all together, before the driver
	// ends them without an error; 0 is no limit. llvmpipe has one of 65535 (Mesa's
	// LP_MAX_TGSI_LOOP_ITERATIONS), seen with Mesa 22.3; 26.1 does not show it.
	LoopLimit int
	// NoPacked leaves out kernels that take whole numbers, NoSubgroups all subgroup operations, and NoHalves the conversion of
	// halves to float, of drivers that were found to get them wrong.
	NoPacked, NoSubgroups, NoHalves bool

	Features Features // what may be used, and what NewDevice enables
}

const (
	driverLLVMpipe = 13    // VK_DRIVER_ID_MESA_LLVMPIPE
	floorLoops     = 60000 // below 65535, with room for what a compiler may add
)

// profiles holds the restrictions by name. Each is applied to a profile that
// has everything, so a restricted profile never claims more than the device has.
var profiles = map[string]func(*Profile){
	"auto":   func(*Profile) {},
	"floor":  restrictFloor,
	"kepler": restrictKepler,
	"apple":  restrictApple,
	"adreno": restrictAdreno,
}

// ProfileNames returns the names ProfileFor accepts.
func ProfileNames() []string { return []string{"auto", "floor", "kepler", "apple", "adreno"} }

// ProfileFor returns the profile of a device restricted by name:
//
//	"", "auto"  everything the device has
//	"floor"     the Vulkan 1.1 minimum: no optional feature, smallest limits, fences
//
// The names of GPUs choose the kernels of GPUs, on software devices too:
//
//	"kepler"    an NVIDIA Kepler: 32-bit types, subgroups of 32, 48 KiB shared memory
//	"apple"     MoltenVK: fp16, 8/16-bit types, unknown subgroup size, no matrices
//	"adreno"    a Qualcomm GPU: fp16, 128 MiB bindings, subgroups of 64 or 128
//
// The error wraps ErrUnsupported when the name is unknown or the device lacks
// part of the floor; it names what is missing.
func ProfileFor(info DeviceInfo, name string) (Profile, error) {
	if name == "" {
		name = "auto"
	}
	restrict, ok := profiles[strings.ToLower(name)]
	if !ok {
		return Profile{}, unsupported("unknown profile %q: use one of %s", name, strings.Join(ProfileNames(), ", "))
	}
	if m := info.Missing(); len(m) > 0 {
		return Profile{}, unsupported("device %s lacks %s", info, strings.Join(m, ", "))
	}
	l, sg := info.Limits, info.Subgroup
	p := Profile{
		Name:           strings.ToLower(name),
		Software:       info.Software(),
		Lanes:          !info.Software(),
		Unified:        info.Unified(),
		SubgroupSize:   sg.Size,
		SubgroupFixed:  sg.Size > 0 && sg.Min == sg.Max,
		MaxBinding:     min(l.MaxStorageRange, l.MaxBufferSize),
		MaxGroups:      l.MaxGroups,
		MaxInvocations: l.MaxGroupInvocations,
		MaxGroupSize:   l.MaxGroupSize,
		MaxBuffers:     min(l.MaxStorageBuffers, maxBuffers),
		SharedMemory:   l.MaxSharedMemory,
		PushBytes:      min(l.MaxPushBytes, MaxPush),
		OffsetAlign:    max(l.StorageOffsetAlign, 4),
		Timestamps:     l.TimestampBits > 0 && l.TimestampPeriod > 0,
		Features:       info.Features,
	}
	if sg.Compute {
		p.SubgroupOps = sg.Ops
	}
	p.Broadcast = info.API >= MakeVersion(1, 2, 0) && p.SubgroupOps&(SubgroupBallot|SubgroupArithmetic) == SubgroupBallot|SubgroupArithmetic
	if info.DriverID == driverLLVMpipe {
		p.LoopLimit = floorLoops
		p.SlowLoads = true // but not on SwiftShader, where kernels that share run at a half to a sixth of the speed
		// Mesa 26.1 reads what all lanes read through an address with one scalar load and computes with it in
		// scalar registers. 22.3 goes around a loop for each lane.
		p.FreeReads = info.API >= MakeVersion(1, 4, 0)
		p.FastTexels = !p.FreeReads // a gather, the same
		p.MaxTexels = l.MaxTexelElements
		p.OffsetAlign = max(p.OffsetAlign, l.TexelOffsetAlign)
	}
	restrict(&p)
	if p.Features.CooperativeMatrix {
		p.Matrices = info.Matrices
	}
	p.FreeReads = p.FreeReads && p.Broadcast && p.Features.BufferAddress && p.Features.Int64 && p.Features.Int8 && p.Features.Storage8
	return p, nil
}

func restrictFloor(p *Profile) {
	p.FastTexels, p.MaxTexels = false, 0
	p.Features = Features{}
	p.Unified = false
	p.SubgroupFixed = false
	p.LoopLimit = floorLoops
	p.SubgroupOps &= SubgroupBasic | SubgroupArithmetic
	p.Broadcast = false
	p.MaxBinding = min(p.MaxBinding, floorRange)
	p.MaxInvocations = min(p.MaxInvocations, floorInvocations)
	p.SharedMemory = min(p.SharedMemory, floorShared)
	p.PushBytes = min(p.PushBytes, floorPush)
	p.MaxBuffers = min(p.MaxBuffers, 8)
	p.OffsetAlign = max(p.OffsetAlign, floorAlign)
	for i := range p.MaxGroups {
		p.MaxGroups[i] = min(p.MaxGroups[i], floorGroups)
		p.MaxGroupSize[i] = min(p.MaxGroupSize[i], []int{256, 256, 64}[i])
	}
}

func restrictKepler(p *Profile) {
	p.FastTexels, p.MaxTexels = false, 0
	f := p.Features
	p.Lanes = true
	// Budget and robustness change no kernel and stay as the device has them.
	p.Features = Features{Timeline: f.Timeline, MemoryBudget: f.MemoryBudget, RobustBufferAccess: f.RobustBufferAccess}
	p.Unified = false
	p.SharedMemory = min(p.SharedMemory, 48<<10)
	p.MaxInvocations = min(p.MaxInvocations, 1024)
	p.OffsetAlign = max(p.OffsetAlign, 16)
	p.SubgroupOps &^= SubgroupClustered
}

func restrictApple(p *Profile) {
	p.FastTexels, p.MaxTexels = false, 0
	f := &p.Features
	p.Lanes = true
	f.IntDotAccelerated = false
	f.CooperativeMatrix = false
	f.SubgroupSize = false
	f.FullSubgroups = false
	f.Float64 = false
	p.SubgroupFixed = false
	p.SubgroupOps &^= SubgroupClustered
	p.SharedMemory = min(p.SharedMemory, 32<<10)
	p.MaxInvocations = min(p.MaxInvocations, 1024)
	p.MaxBuffers = min(p.MaxBuffers, 31)
	p.OffsetAlign = max(p.OffsetAlign, 16)
}

func restrictAdreno(p *Profile) {
	p.FastTexels, p.MaxTexels = false, 0
	f := &p.Features
	p.Lanes = true
	f.Storage8 = false
	f.CooperativeMatrix = false
	f.Int64 = false
	f.Float64 = false
	f.HostImport = false
	p.SubgroupFixed = false
	p.SubgroupOps &^= SubgroupClustered
	p.MaxBinding = min(p.MaxBinding, floorRange)
	p.SharedMemory = min(p.SharedMemory, 32<<10)
	p.MaxInvocations = min(p.MaxInvocations, 1024)
	p.OffsetAlign = max(p.OffsetAlign, 64)
	p.MaxGroups[0] = min(p.MaxGroups[0], floorGroups)
	p.MaxGroups[1] = min(p.MaxGroups[1], floorGroups)
	p.MaxGroups[2] = min(p.MaxGroups[2], floorGroups)
}

// String returns the profile as one line of facts.
func (p Profile) String() string {
	s := fmt.Sprintf("%s: subgroup %d", p.Name, p.SubgroupSize)
	if !p.SubgroupFixed {
		s += " (varies)"
	}
	s += fmt.Sprintf(", binding %d MiB, %d invocations, %d KiB shared", p.MaxBinding>>20, p.MaxInvocations, p.SharedMemory>>10)
	if names := p.Features.Names(); len(names) > 0 {
		s += ", " + strings.Join(names, " ")
	}
	return s
}

// Names returns the names of the features that are set.
func (f Features) Names() []string {
	var names []string
	for i, on := range f.list() {
		if *on {
			names = append(names, featureNames[i])
		}
	}
	return slices.Clip(names)
}

// FeaturesOf returns the features of names as Names gives them, or the first name that is none.
func FeaturesOf(names []string) (f Features, unknown string) {
	on := f.list()
	for _, n := range names {
		i := slices.Index(featureNames, n)
		if i < 0 {
			return f, n
		}
		*on[i] = true
	}
	return f, ""
}

// Without returns the names of the features that f has and have lacks.
func (f Features) Without(have Features) []string {
	var names []string
	h := have.list()
	for i, on := range f.list() {
		if *on && !*h[i] {
			names = append(names, featureNames[i])
		}
	}
	return names
}

var featureNames = []string{
	"storage8", "storage16", "fp16", "int8", "int16", "int64", "fp64", "intdot", "intdot-accelerated",
	"coopmat", "address", "timeline", "hostimport", "budget", "subgroupsize", "fullsubgroups", "memorymodel", "robust",
}

// list returns the fields in the order of the supplement's feature bits.
func (f *Features) list() []*bool {
	return []*bool{
		&f.Storage8, &f.Storage16, &f.Float16, &f.Int8, &f.Int16, &f.Int64, &f.Float64, &f.IntDot, &f.IntDotAccelerated,
		&f.CooperativeMatrix, &f.BufferAddress, &f.Timeline, &f.HostImport, &f.MemoryBudget, &f.SubgroupSize, &f.FullSubgroups, &f.MemoryModel, &f.RobustBufferAccess,
	}
}

// bits packs the features for the supplement.
func (f Features) bits() uint32 {
	var b uint32
	for i, on := range f.list() {
		if *on {
			b |= 1 << i
		}
	}
	return b
}

// featuresOf unpacks feature bits.
func featuresOf(bits uint32) Features {
	var f Features
	for i, on := range f.list() {
		*on = bits>>i&1 != 0
	}
	return f
}
