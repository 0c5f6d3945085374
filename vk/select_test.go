package vk

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// fake returns a device that has the floor.
func fake(index int, name string, typ DeviceType, driver, info, uuid string) DeviceInfo {
	return DeviceInfo{
		Index: index, Name: name, Type: typ, DriverName: driver, DriverInfo: info, API: MakeVersion(1, 3, 0),
		UUID:   uuid + strings.Repeat("0", 32-len(uuid)),
		Queues: []QueueFamily{{Compute: true, Count: 1}},
		Limits: Limits{
			MaxStorageRange: 1 << 32, MaxBufferSize: 1 << 32, MaxAllocation: 1 << 32, StorageOffsetAlign: 4, MaxPushBytes: 256,
			MaxStorageBuffers: 1 << 20, MaxGroupInvocations: 1024, MaxGroupSize: [3]int{1024, 1024, 64},
			MaxGroups: [3]uint32{1<<31 - 1, 65535, 65535}, MaxSharedMemory: 64 << 10,
			TimestampPeriod: 1, TimestampBits: 64, MinHostPointerAlignment: 4096,
		},
		Subgroup: Subgroup{Size: 32, Min: 32, Max: 32, Ops: 0xff, Compute: true, SizeControl: true},
		Features: featuresOf(^uint32(0)),
	}
}

func TestSelect(t *testing.T) {
	old := fake(3, "Relic", DiscreteDevice, "relic", "", "0badc0de")
	old.API = MakeVersion(1, 0, 3)
	devices := []DeviceInfo{
		fake(0, "llvmpipe (LLVM 15.0.6, 256 bits)", CPUDevice, "llvmpipe", "Mesa 22.3.6 (LLVM 15.0.6)", "6d65736132322e"),
		fake(1, "llvmpipe (LLVM 15.0.6, 256 bits)", CPUDevice, "llvmpipe", "Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)", "6d65736132352e"),
		fake(2, "SwiftShader Device (Subzero)", CPUDevice, "SwiftShader driver", "", "53776966745368"),
		old,
		fake(4, "Intel(R) UHD Graphics 630", IntegratedDevice, "Intel open-source Mesa driver", "Mesa 25.0.7", "86800000"),
		fake(5, "Tesla K80", DiscreteDevice, "NVIDIA", "470.256.02", "de1000000001"),
		fake(6, "Tesla K80", DiscreteDevice, "NVIDIA", "470.256.02", "de1000000002"),
	}
	for _, c := range []struct {
		name string
		want int // -1 = error
	}{
		{"", 5}, {"0", 0}, {"6", 6}, {" 6 ", 6}, {"7", -1}, {"-1", -1},
		{"swift", 2}, {"SWIFTSHADER DRIVER", 2}, {"uhd", 4}, {"mesa", 4},
		{"llvmpipe", -1}, {"22.3.6", 0}, {"25.0.7-2", 1}, {"25.0.7", -1},
		{"k80", -1}, {"tesla k80", -1}, {"de1000000002", 6}, {"DE10-0000-0001", 5}, {"de100000", -1},
		{"6d6573613232", 0}, {"53776966", 2}, {"radeon", -1}, {"relic", 3},
	} {
		got, err := selectDevice(devices, c.name)
		if c.want < 0 {
			if !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "Tesla") && c.name != "llvmpipe" && c.name != "25.0.7" || strings.Contains(err.Error(), "\n") {
				t.Errorf("Select(%q) = %v, %v", c.name, got, err)
			}
			continue
		}
		if err != nil || got.Index != c.want {
			t.Errorf("Select(%q) = %v, %v, want %d", c.name, got.Index, err, c.want)
		}
	}
	if _, err := selectDevice(nil, ""); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "install") {
		t.Error(err)
	}
	if _, err := selectDevice([]DeviceInfo{old}, ""); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "Vulkan 1.1") {
		t.Error(err)
	}
	for order, want := range map[string][]int{"no discrete": {4, 4}, "software only": {2, 0}} {
		list := devices[:want[0]+1]
		if got, err := selectDevice(list, ""); err != nil || got.Index != want[1] {
			t.Errorf("%s: %v, %v", order, got, err)
		}
	}
	// Software computes with vectors as wide as its subgroups; of GPUs the first remains.
	for _, c := range []struct {
		typ   DeviceType
		sizes []int
		want  int
	}{
		{CPUDevice, []int{4, 8}, 1}, {CPUDevice, []int{8, 4}, 0}, {CPUDevice, []int{4, 8, 8}, 1}, {CPUDevice, []int{0, 16, 4}, 1},
		{DiscreteDevice, []int{32, 64}, 0}, {IntegratedDevice, []int{16, 64}, 0},
	} {
		var list []DeviceInfo
		for i, n := range c.sizes {
			d := fake(i, "d", c.typ, "", "", fmt.Sprintf("%02d", i))
			d.Subgroup.Size = n
			list = append(list, d)
		}
		if got, err := selectDevice(list, ""); err != nil || got.Index != c.want {
			t.Errorf("%v with subgroups of %d: %d, %v", c.typ, c.sizes, got.Index, err)
		}
	}
}

func TestMissing(t *testing.T) {
	d := fake(0, "a", DiscreteDevice, "", "", "")
	if m := d.Missing(); len(m) > 0 {
		t.Fatal(m)
	}
	for want, change := range map[string]func(*DeviceInfo){
		"Vulkan 1.1":      func(d *DeviceInfo) { d.API = MakeVersion(1, 0, 200) },
		"compute queue":   func(d *DeviceInfo) { d.Queues = []QueueFamily{{Graphics: true, Count: 1}} },
		"invocations":     func(d *DeviceInfo) { d.Limits.MaxGroupInvocations = 128 },
		"shared memory":   func(d *DeviceInfo) { d.Limits.MaxSharedMemory = 8192 },
		"push constants":  func(d *DeviceInfo) { d.Limits.MaxPushBytes = 64 },
		"storage buffers": func(d *DeviceInfo) { d.Limits.MaxStorageBuffers = 2 },
		"bindings":        func(d *DeviceInfo) { d.Limits.MaxStorageRange = 1 << 20 },
	} {
		c := d
		change(&c)
		if m := c.Missing(); len(m) != 1 || !strings.Contains(m[0], want) {
			t.Errorf("%s: %v", want, m)
		}
		if _, err := ProfileFor(c, ""); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestProfiles(t *testing.T) {
	rich := fake(0, "rich", IntegratedDevice, "", "", "")
	rich.MemoryTypes = []MemoryType{{DeviceLocal: true, HostVisible: true, HostCoherent: true}}
	get := func(name string) Profile { return must(ProfileFor(rich, name)) }

	auto := get("")
	if auto.Name != "auto" || auto.Features != rich.Features || !auto.Unified || !auto.SubgroupFixed || auto.MaxBinding != 1<<32 || auto.PushBytes != MaxPush {
		t.Errorf("auto: %+v", auto)
	}
	soft := rich
	soft.Type = CPUDevice
	for name, lanes := range map[string]bool{"": false, "floor": false, "kepler": true, "apple": true, "adreno": true} {
		if p := must(ProfileFor(soft, name)); p.Lanes != lanes || !p.Software || !get(name).Lanes {
			t.Errorf("%q: lanes on a software device: %t; on a GPU: %t", name, p.Lanes, get(name).Lanes)
		}
	}
	floor := get("floor")
	if floor.Features != (Features{}) || floor.MaxBinding != 128<<20 || floor.MaxInvocations != 256 || floor.PushBytes != 128 ||
		floor.SharedMemory != 16<<10 || floor.MaxGroups != [3]uint32{65535, 65535, 65535} || floor.OffsetAlign != 256 ||
		floor.SubgroupFixed || floor.Unified || floor.MaxBuffers != 8 {
		t.Errorf("floor: %+v", floor)
	}
	kepler := get("Kepler")
	if f := kepler.Features; f.Float16 || f.Storage8 || f.Storage16 || f.IntDot || f.CooperativeMatrix || !f.Timeline || kepler.SharedMemory != 48<<10 || kepler.Unified {
		t.Errorf("kepler: %+v", kepler)
	}
	apple := get("apple")
	if f := apple.Features; !f.Float16 || !f.Storage16 || f.IntDotAccelerated || f.CooperativeMatrix || apple.SubgroupFixed || apple.SubgroupOps&SubgroupClustered != 0 || apple.SharedMemory != 32<<10 {
		t.Errorf("apple: %+v", apple)
	}
	adreno := get("adreno")
	if f := adreno.Features; !f.Float16 || f.Storage8 || adreno.MaxBinding != 128<<20 || adreno.MaxGroups[0] != 65535 || adreno.OffsetAlign != 64 {
		t.Errorf("adreno: %+v", adreno)
	}
	pipe := rich
	pipe.API, pipe.DriverID = MakeVersion(1, 4, 0), driverLLVMpipe
	pipe.Subgroup.Ops |= SubgroupBallot | SubgroupArithmetic
	older := pipe
	older.API = MakeVersion(1, 3, 230)
	for _, c := range []struct {
		info DeviceInfo
		name string
		want bool
	}{{pipe, "", true}, {older, "", false}, {rich, "", false}, {pipe, "floor", false}, {pipe, "kepler", false}} {
		if got := must(ProfileFor(c.info, c.name)).FreeReads; got != c.want {
			t.Errorf("free reads of %s with Vulkan %s under %q: %t", c.info.Name, c.info.API, c.name, got)
		}
	}
	if _, err := ProfileFor(rich, "voodoo"); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "floor") {
		t.Error(err)
	}

	// No restriction claims more than a poor device has.
	poor := rich
	poor.Features = Features{}
	poor.Limits.MaxStorageRange, poor.Limits.MaxGroupInvocations, poor.Limits.MaxSharedMemory = 1<<27, 256, 16<<10
	poor.Limits.MaxStorageBuffers, poor.Limits.StorageOffsetAlign = 4, 256
	for _, name := range ProfileNames() {
		p := must(ProfileFor(poor, name))
		if p.Features != (Features{}) || p.MaxBinding != 1<<27 || p.MaxInvocations != 256 || p.SharedMemory != 16<<10 || p.MaxBuffers != 4 || p.OffsetAlign != 256 {
			t.Errorf("poor device, %s: %+v", name, p)
		}
		if p.String() == "" {
			t.Error("no text")
		}
	}
}

func TestFeatureBits(t *testing.T) {
	if n := len((&Features{}).list()); n != len(featureNames) {
		t.Fatalf("%d features, %d names", n, len(featureNames))
	}
	for i, name := range featureNames {
		f := featuresOf(1 << i)
		if f.bits() != 1<<i || !slices.Equal(f.Names(), []string{name}) || !slices.Equal(f.Without(Features{}), []string{name}) {
			t.Errorf("%s: %b, %v", name, f.bits(), f.Names())
		}
	}
	if f := featuresOf(1 << 11); !f.Timeline {
		t.Errorf("bit 11 is %v", f.Names())
	}
}

func TestTicks(t *testing.T) {
	ns := make([]int64, 4)
	// 36 valid bits that wrap, 52 ns per tick, one unwritten, one before the first.
	ticksToNanoseconds(ns, []uint64{1<<36 - 10, 1, 90, 1, 0, 0, 1<<36 - 11, 1}, 36, 52)
	if !slices.Equal(ns, []int64{0, 100 * 52, -1, 0}) {
		t.Error(ns)
	}
	ticksToNanoseconds(ns[:2], []uint64{0, 0, 5, 1}, 64, 1)
	if !slices.Equal(ns[:2], []int64{-1, 0}) {
		t.Error(ns)
	}
}
