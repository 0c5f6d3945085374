package vk

import (
	"encoding/binary"
	"fmt"
)

// maxBuffers bounds the storage buffers of one kernel; no kernel needs more.
const maxBuffers = 32

// A PipelineConfig describes a compute kernel. Its entry point is "main", its
// operands are buffers at bindings 0..Buffers-1 of set 0.
type PipelineConfig struct {
	Name      string   // for errors
	SPIRV     []byte   // read only during NewPipeline
	Buffers   int      // number of buffers
	Texels    []int    // the bindings that are uniform texel buffers of four 32-bit words; the others are storage buffers
	PushBytes int      // size of the push constants: a multiple of 4, at most Profile.PushBytes
	Spec      []uint32 // specialization constants with ids 0..len-1
	Subgroup  int      // required subgroup size, 0 = any; needs Features.SubgroupSize
	Full      bool     // every subgroup has all its lanes, which takes a workgroup of a multiple of the size; asked for where Features.FullSubgroups is
}

// A Pipeline is a compiled kernel.
type Pipeline struct {
	d      *Device
	name   string
	handle handle
	layout *layout
}

// A layout is shared by the pipelines of one shape.
type layout struct {
	set, layout handle
	key         layoutKey
}

type layoutKey struct {
	buffers, push int
	texels        uint32 // a bit for each binding that is a texel buffer
}

// layoutFor returns the layout of a shape, making it on the first call.
func (d *Device) layoutFor(key layoutKey) (*layout, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.layouts[key]; l != nil {
		return l, nil
	}
	if d.layouts == nil {
		return nil, ErrClosed
	}
	l := &layout{key: key}
	detail := fmt.Sprintf("%d buffers, %d bytes of push constants", key.buffers, key.push)
	if err := d.do("vkCreateDescriptorSetLayout", detail, func() (r Result) {
		l.set, r = d.raw.createSetLayout(key.buffers, key.texels)
		return r
	}); err != nil {
		return nil, err
	}
	if err := d.do("vkCreatePipelineLayout", detail, func() (r Result) {
		l.layout, r = d.raw.createLayout(l.set, key.push)
		return r
	}); err != nil {
		d.raw.destroySetLayout(l.set)
		return nil, err
	}
	d.layouts[key] = l
	return l, nil
}

// NewPipeline compiles a kernel. Some drivers compile on the first dispatch
// instead. Several pipelines may be made at once by different goroutines. A
// software driver may end the process when the kernel needs a feature that the
// device lacks: choose kernels by Profile.Features.
func (d *Device) NewPipeline(cfg PipelineConfig) (*Pipeline, error) {
	if err := d.usable("vkCreateComputePipelines"); err != nil {
		return nil, err
	}
	switch {
	case len(cfg.SPIRV) < 20 || len(cfg.SPIRV)%4 != 0 || binary.LittleEndian.Uint32(cfg.SPIRV) != 0x07230203:
		return nil, invalid("kernel %q: not SPIR-V (%d bytes)", cfg.Name, len(cfg.SPIRV))
	case cfg.Buffers < 0 || cfg.Buffers > min(d.profile.MaxBuffers, maxBuffers):
		return nil, invalid("kernel %q: %d buffers, the profile allows %d", cfg.Name, cfg.Buffers, min(d.profile.MaxBuffers, maxBuffers))
	case cfg.PushBytes < 0 || cfg.PushBytes%4 != 0 || cfg.PushBytes > min(d.profile.PushBytes, MaxPush):
		return nil, invalid("kernel %q: %d bytes of push constants, the profile allows %d", cfg.Name, cfg.PushBytes, min(d.profile.PushBytes, MaxPush))
	case cfg.Subgroup != 0 && !d.profile.Features.SubgroupSize:
		return nil, unsupported("kernel %q: a required subgroup size", cfg.Name)
	case cfg.Subgroup != 0 && (cfg.Subgroup < d.info.Subgroup.Min || cfg.Subgroup > d.info.Subgroup.Max || cfg.Subgroup&(cfg.Subgroup-1) != 0):
		return nil, unsupported("kernel %q: a subgroup size of %d, the device has %d to %d", cfg.Name, cfg.Subgroup, d.info.Subgroup.Min, d.info.Subgroup.Max)
	}
	key := layoutKey{buffers: cfg.Buffers, push: cfg.PushBytes}
	for _, i := range cfg.Texels {
		if i < 0 || i >= cfg.Buffers {
			return nil, invalid("kernel %q: texel buffer %d of %d buffers", cfg.Name, i, cfg.Buffers)
		}
		if d.profile.MaxTexels == 0 {
			return nil, unsupported("kernel %q: texel buffers", cfg.Name)
		}
		key.texels |= 1 << i
	}
	l, err := d.layoutFor(key)
	if err != nil {
		return nil, err
	}
	detail := fmt.Sprintf("kernel %q", cfg.Name)
	var module handle
	if err := d.do("vkCreateShaderModule", detail, func() (r Result) {
		module, r = d.raw.createModule(cfg.SPIRV)
		return r
	}); err != nil {
		return nil, err
	}
	defer d.raw.destroyModule(module)
	p := &Pipeline{d: d, name: cfg.Name, layout: l}
	if err := d.do("vkCreateComputePipelines", detail, func() (r Result) {
		p.handle, r = d.raw.createPipeline(d.cache.handle, module, l.layout, cfg.Spec, cfg.Subgroup, cfg.Full && d.profile.Features.FullSubgroups)
		return r
	}); err != nil {
		return nil, err
	}
	d.count.pipelines.Add(1)
	d.cache.dirty.Store(true)
	d.own(p)
	return p, nil
}

// Name returns the kernel's name.
func (p *Pipeline) Name() string { return p.name }

// Buffers returns the number of buffers the kernel takes.
func (p *Pipeline) Buffers() int { return p.layout.key.buffers }

// PushBytes returns the size of the kernel's push constants.
func (p *Pipeline) PushBytes() int { return p.layout.key.push }

// Free frees the pipeline. No submitted work may still use it. It may be called
// twice, and on nil.
func (p *Pipeline) Free() {
	if p != nil && p.d.disown(p) {
		p.release()
	}
}

func (p *Pipeline) release() {
	p.d.raw.destroyPipeline(p.handle)
	p.handle = 0
}
