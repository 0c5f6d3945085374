package vk

import (
	"encoding/binary"
	"errors"
	"testing"
)

// A texel buffer begins where its binding does and ends with it; texels past its end are zeros.
func TestTexels(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		cfg := PipelineConfig{Name: "texels", SPIRV: texelsSPIRV, Buffers: 2, Texels: []int{0}, PushBytes: 4, Spec: []uint32{groupSize}}
		if d.Profile().MaxTexels == 0 {
			if _, err := d.NewPipeline(cfg); !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s has no texel buffers: %v", d.Profile().Name, err)
			}
			return
		}
		p := must(d.NewPipeline(cfg))
		const n = 37
		from, size := max(d.Profile().OffsetAlign, 64), int64(TexelBytes*n)
		in, out := must(d.NewBuffer(from+size+1, DeviceLocal)), must(d.NewBuffer(size+4*TexelBytes, DeviceLocal))
		if in.Size()%TexelBytes != 0 {
			t.Errorf("a buffer of %d bytes is made of parts of a texel", in.Size())
		}
		check(t, d.Upload(in, 0, counting(int(in.Size())/4)))
		set := must(d.NewSet(p, []Binding{{Buffer: in, Offset: from, Size: size}, {Buffer: out}}))
		run(t, d, Dispatch(p, set, groups(n+4), words(n+4)))
		got := make([]byte, out.Size())
		check(t, d.Download(out, 0, got))
		all := make([]byte, in.Size())
		check(t, d.Download(in, 0, all))
		for i := range out.Size() / 4 {
			want := uint32(0)
			if 4*i < size {
				want = binary.LittleEndian.Uint32(all[from+4*i:])
			}
			if v := binary.LittleEndian.Uint32(got[4*i:]); v != want {
				t.Fatalf("word %d is %d, want %d", i, v, want)
			}
		}
		if _, err := d.NewSet(p, []Binding{{Buffer: in, Size: 24}, {Buffer: out}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("a texel and a half: %v", err)
		}
		if _, err := d.NewPipeline(PipelineConfig{SPIRV: texelsSPIRV, Buffers: 2, Texels: []int{2}, PushBytes: 4}); !errors.Is(err, ErrInvalid) {
			t.Errorf("a texel buffer that is not bound: %v", err)
		}
		// A view that could not be made is an error, and the next set is made.
		d.InjectFault("vkCreateBufferView", 1, ErrorOutOfHostMemory)
		if _, err := d.NewSet(p, []Binding{{Buffer: in}, {Buffer: out}}); !errors.Is(err, ErrOutOfHostMemory) {
			t.Errorf("no view: %v", err)
		}
		must(d.NewSet(p, []Binding{{Buffer: in}, {Buffer: out}}))
	})
}
