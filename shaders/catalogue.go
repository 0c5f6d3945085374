package shaders

import (
	"embed"
	"fmt"
	"sync"
)

// A Module is one compiled form of a kernel.
type Module struct {
	Name    string   // e.g. "matmul.q8_0.row"
	Source  string   // file under shaders/, e.g. "matmul.comp"
	Include []string // further include folders under shaders/: the block type of a weight kernel
	Defines []string // macro definitions, NAME or NAME=VALUE
	Buffers int      // bindings 0..Buffers-1
	Params  int      // words of push constants after the operand offsets
	SPIRV15 bool     // needs SPIR-V 1.5, and with it Vulkan 1.2
	// Matrices says that the module has cooperative matrices, for which Debian 12's compiler and validator are too old.
	// The target stays what SPIRV15 says: SPIR-V 1.6 would state the size of workgroups in a way that needs one more feature.
	Matrices bool
	Texels   []int // the bindings that are texel buffers of words; the others are storage buffers
	// Addresses are the bindings whose first bytes' addresses follow the parameters, two words each, the low one first.
	// Such a kernel reads them through these, unchecked, and needs 64-bit integers, and 8-bit ones in memory too.
	Addresses []int
}

// Target is the lowest version of Vulkan that takes the module, as glslc and spirv-val name it. SPIR-V 1.3
// (Vulkan 1.1) is enough for subgroup operations and is the floor of supported devices.
func (m Module) Target() string {
	if m.SPIRV15 {
		return "vulkan1.2"
	}
	return "vulkan1.1"
}

// PushBytes is the size of the module's push constants.
func (m Module) PushBytes() int { return 4 * (m.Buffers + m.Params + 2*len(m.Addresses)) }

//go:embed spirv
var spirvFiles embed.FS

// Modules lists every module of every kernel.
func Modules() []Module {
	var all []Module
	for _, f := range []func() []Module{
		packModules,
		matmulModules,
		routerModules,
		expertGroupModules,
		expertGateUpModules,
		expertDownModules,
		topkModules,
		rmsnormModules,
		embedModules,
		qkRopeModules,
		attentionModules,
		kvEncodeModules,
		gdnConvModules,
		deltaRuleModules,
		gatedNormModules,
	} {
		all = append(all, f()...)
	}
	return all
}

var catalogue = sync.OnceValue(func() map[string]Module {
	c := map[string]Module{}
	for _, m := range Modules() {
		c[m.Name] = m
	}
	return c
})

// Describe returns what a module is.
func Describe(name string) (Module, error) {
	m, ok := catalogue()[name]
	if !ok {
		return Module{}, fmt.Errorf("no kernel module %q", name)
	}
	return m, nil
}

// Lookup returns a module and its SPIR-V.
func Lookup(name string) (Module, []byte, error) {
	m, err := Describe(name)
	if err != nil {
		return Module{}, nil, err
	}
	b, err := spirvFiles.ReadFile("spirv/" + name + ".spv")
	if err != nil {
		return m, nil, fmt.Errorf("kernel module %q is not compiled: run make shaders", name)
	}
	return m, b, nil
}
