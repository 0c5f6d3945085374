package vk

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// Config says how to open Vulkan.
type Config struct {
	AppName     string
	Validation  bool    // validation layer with synchronisation validation; CALDERA_VALIDATION=1 turns it on too
	GPUAssisted bool    // with Validation: GPU-assisted checks too, which are slow
	Faults      []Fault // faults armed in every device that is made
	// Reject are features with which no device is made, as by drivers that report what they then refuse, in tests.
	Reject Features
}

// An Instance is an open Vulkan loader and the devices it found.
type Instance struct {
	raw        rawInstance
	validating bool
	devices    []DeviceInfo
	cfg        Config

	mu     sync.Mutex
	live   map[*Device]struct{}
	closed bool
	// What the messenger recorded, kept after Close.
	messages []string
	count    int
}

const (
	noLoaderHint = "install the Vulkan loader (Debian: apt install libvulkan1; macOS: brew install vulkan-loader molten-vk)"
	noDeviceHint = "install a Vulkan driver (Debian: apt install mesa-vulkan-drivers, which includes a software device)"
	noLayerHint  = "install the validation layer (Debian: apt install vulkan-validationlayers)"
)

// The loader is process-wide, as the binding's function pointers are.
var (
	loaderMu   sync.Mutex
	loaderProc unsafe.Pointer
)

func loaderNames() []string {
	if runtime.GOOS == "darwin" {
		return []string{
			"libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib",
			// Homebrew's folder on Apple silicon is not on the default search path.
			"/opt/homebrew/lib/libvulkan.1.dylib", "/opt/homebrew/lib/libMoltenVK.dylib",
			"/usr/local/lib/libvulkan.1.dylib", "/usr/local/lib/libMoltenVK.dylib",
		}
	}
	return []string{"libvulkan.so.1", "libvulkan.so"}
}

// loader opens the Vulkan loader on the first call.
func loader(names []string) (unsafe.Pointer, error) {
	if loaderProc != nil {
		return loaderProc, nil
	}
	var first error
	for _, name := range names {
		p, err := loadLibrary(name)
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		vulkan.SetGetInstanceProcAddr(p)
		if err := vulkan.Init(); err != nil {
			return nil, fmt.Errorf("%w: %s: %v", ErrNoLoader, name, err)
		}
		loaderProc = p
		return p, nil
	}
	return nil, fmt.Errorf("%w: %v; %s", ErrNoLoader, first, noLoaderHint)
}

// Open loads the Vulkan loader, makes an instance and describes its devices.
// The error wraps ErrNoLoader, ErrNoDevice or ErrUnsupported and says in one
// line what is missing and what to install.
func Open(cfg Config) (*Instance, error) {
	if v := os.Getenv("CALDERA_VALIDATION"); v != "" && v != "0" {
		cfg.Validation = true
	}
	if cfg.AppName == "" {
		cfg.AppName = "caldera"
	}
	loaderMu.Lock()
	defer loaderMu.Unlock()
	proc, err := loader(loaderNames())
	if err != nil {
		return nil, err
	}
	raw, what, res := newRawInstance(proc, cfg.AppName, cfg.Validation, cfg.GPUAssisted)
	switch res {
	case Success:
	case ErrorIncompatibleDriver:
		return nil, fmt.Errorf("%w: %s", ErrNoDevice, noDeviceHint)
	case ErrorLayerNotPresent:
		return nil, fmt.Errorf("%w: %s", &Error{what, res, ""}, noLayerHint)
	case ErrorFeatureNotPresent:
		return nil, unsupported("the Vulkan loader is older than 1.1: %s", noLoaderHint)
	default:
		return nil, &Error{what, res, ""}
	}
	// The binding's pointers dispatch by handle, so the last instance's serve all.
	if err := vulkan.InitInstance(raw.handle()); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrNoLoader, err)
	}
	in := &Instance{raw: raw, validating: cfg.Validation, cfg: cfg, live: map[*Device]struct{}{}}
	physical, res := raw.physicalDevices()
	if res != Success || len(physical) == 0 {
		in.Close()
		if res != Success && res != ErrorInitializationFailed {
			return nil, &Error{"vkEnumeratePhysicalDevices", res, noDeviceHint}
		}
		return nil, fmt.Errorf("%w: %s", ErrNoDevice, noDeviceHint)
	}
	for i, pd := range physical {
		info := raw.describe(pd)
		info.Index = i
		in.devices = append(in.devices, info)
	}
	return in, nil
}

// Close closes the devices that are still open and the instance. It may be
// called twice. The validation messages stay readable. An instance with a
// device that hangs stays as it is.
func (in *Instance) Close() {
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return
	}
	in.closed = true
	var live []*Device
	for d := range in.live {
		live = append(live, d)
	}
	in.mu.Unlock()
	for _, d := range live {
		d.Close()
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.live) > 0 {
		in.messages, in.count = filterMessages(in.raw.messages())
		return
	}
	in.raw.close()
	vulkan.DestroyInstance(in.raw.handle(), nil)
	in.messages, in.count = filterMessages(in.raw.messages())
	in.raw.free()
}

// Devices returns the devices in the loader's order.
func (in *Instance) Devices() []DeviceInfo { return slices.Clone(in.devices) }

// Validating reports whether the validation layer is on.
func (in *Instance) Validating() bool { return in.validating }

// LoaderVersion returns the API version of the loader.
func (in *Instance) LoaderVersion() Version {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return 0
	}
	return in.raw.version()
}

// ValidationMessages returns the first few hundred warnings and errors of the
// validation layer, each cut at 1 KiB, without those known to be harmless.
func (in *Instance) ValidationMessages() []string {
	m, _ := in.validation()
	return m
}

// ValidationCount returns how many messages there were.
func (in *Instance) ValidationCount() int {
	_, n := in.validation()
	return n
}

func (in *Instance) validation() ([]string, int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.closed {
		return filterMessages(in.raw.messages())
	}
	return slices.Clone(in.messages), in.count
}

// harmless lists parts of messages that say nothing about this program.
var harmless = []struct{ part, reason string }{
	{"rayQuery", "GPU-assisted validation of 1.4 layers warns that it cannot check ray queries, which are not used"},
	{"VUID-VkBufferCreateInfo-pNext-00920", "1.4 layers: SwiftShader imports host memory and does not report it; of other drivers it is not asked then"},
	{"VUID-VkImportMemoryWin32HandleInfoKHR-handleType-00658", "the same"},
	{"No buffer device address checking will be attempted", "GPU-assisted validation cannot check device addresses, which are not used, on a device without 64-bit integers"},
}

// filterMessages drops harmless messages; count includes those that were not kept.
func filterMessages(all []string, count int) ([]string, int) {
	var kept []string
	for _, m := range all {
		if slices.ContainsFunc(harmless, func(h struct{ part, reason string }) bool { return strings.Contains(m, h.part) }) {
			count--
			continue
		}
		kept = append(kept, m)
	}
	return kept, count
}
