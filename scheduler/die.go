package scheduler

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A Die is a device with what lives on it longer than a plan: weights, state and pipelines.
type Die struct {
	Device  *vk.Device
	Kernels shaders.Profile
	// Break names a kernel family whose pipelines are made from damaged code, so that verification can be
	// shown to find it. Empty in all but that use.
	Break string

	places    map[*shaders.Buffer]*vk.Buffer
	pipelines map[string]*vk.Pipeline
	required  int // subgroup size that pipelines ask for, 0 = any
}

// NewDie prepares a device. The scheme of the kernels follows from its profile.
func NewDie(d *vk.Device) *Die {
	p := d.Profile()
	k := shaders.Profile{
		LanesPerRow: !p.Software,
		Subgroup:    uint32(p.SubgroupSize),
		OneSubgroup: p.SubgroupFixed || p.Features.SubgroupSize,
		MaxBinding:  p.MaxBinding,
		MaxGroups:   p.MaxGroups,
		MaxLoops:    p.LoopLimit,
	}
	die := &Die{Device: d, Kernels: k, places: map[*shaders.Buffer]*vk.Buffer{}, pipelines: map[string]*vk.Pipeline{}}
	if !p.SubgroupFixed && p.Features.SubgroupSize {
		die.required = p.SubgroupSize
	}
	return die
}

// Allocate gives a weight or state buffer memory on the die, zeroed if zero is set.
func (d *Die) Allocate(b *shaders.Buffer, zero bool) error {
	if d.places[b] != nil {
		return nil
	}
	m, err := d.Device.NewBuffer(roundUp(max(b.Size, 4), 4), vk.DeviceLocal)
	if err != nil {
		return fmt.Errorf("memory for %s %s (%d bytes): %w", b.Kind, b.Name, b.Size, err)
	}
	d.places[b] = m
	if zero {
		return d.Zero(b)
	}
	return nil
}

// Upload writes bytes of a buffer that has memory.
func (d *Die) Upload(v shaders.View, data []byte) error {
	m := d.places[v.Buf]
	if m == nil {
		return fmt.Errorf("upload of %s, which has no memory on this device", v.Buf.Name)
	}
	if err := d.Device.Upload(m, v.Off, data); err != nil {
		return fmt.Errorf("upload of %s: %w", v.Buf.Name, err)
	}
	return nil
}

// Download reads bytes of a buffer that has memory.
func (d *Die) Download(v shaders.View, dst []byte) error {
	m := d.places[v.Buf]
	if m == nil {
		return fmt.Errorf("download of %s, which has no memory on this device", v.Buf.Name)
	}
	if err := d.Device.Download(m, v.Off, dst); err != nil {
		return fmt.Errorf("download of %s: %w", v.Buf.Name, err)
	}
	return nil
}

// Zero clears a buffer that has memory.
func (d *Die) Zero(b *shaders.Buffer) error {
	zeros := make([]byte, min(b.Size, 1<<20))
	for off := int64(0); off < b.Size; off += int64(len(zeros)) {
		n := min(int64(len(zeros)), b.Size-off)
		if err := d.Upload(b.View().Slice(off, n), zeros[:n]); err != nil {
			return err
		}
	}
	return nil
}

// Free returns a buffer's memory.
func (d *Die) Free(b *shaders.Buffer) {
	if m := d.places[b]; m != nil {
		m.Free()
		delete(d.places, b)
	}
}

// Close frees everything on the die, and the device.
func (d *Die) Close() error {
	for _, p := range d.pipelines {
		p.Free()
	}
	d.pipelines = nil
	for _, b := range d.places {
		b.Free()
	}
	d.places = nil
	return d.Device.Close()
}

// pipeline returns the pipeline of a dispatch, made on first use.
func (d *Die) pipeline(x shaders.Dispatch) (*vk.Pipeline, error) {
	key := fmt.Sprint(x.Module, x.Spec)
	if p := d.pipelines[key]; p != nil {
		return p, nil
	}
	m, code, err := shaders.Lookup(x.Module)
	if err != nil {
		return nil, err
	}
	if d.Break != "" && strings.HasPrefix(x.Module, d.Break) {
		code = damage(code)
	}
	p, err := d.Device.NewPipeline(vk.PipelineConfig{
		Name: x.Module, SPIRV: code, Buffers: m.Buffers, PushBytes: m.PushBytes(), Spec: x.Spec, Subgroup: d.required,
	})
	if err != nil {
		return nil, fmt.Errorf("kernel %s %v: %w", x.Module, x.Spec, err)
	}
	d.pipelines[key] = p
	return p, nil
}

// damage returns code in which every multiplication of floats is an addition: a kernel that runs and is
// wrong.
func damage(code []byte) []byte {
	const opFAdd, opFMul, header = 129, 133, 20
	bad := append([]byte{}, code...)
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(bad[i:]) }
	for i := header; i+4 <= len(bad) && word(i)>>16 > 0; i += 4 * int(word(i)>>16) {
		if word(i)&0xffff == opFMul {
			binary.LittleEndian.PutUint16(bad[i:], opFAdd)
		}
	}
	return bad
}
