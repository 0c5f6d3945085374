package vk

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// Random takes and gives never overlap and leave one whole span.
func TestSpans(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const size = 1 << 16
	s := spans{{0, size}}
	var live []span
	for range 5000 {
		if len(live) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(live))
			s.give(live[i].off, live[i].size)
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		} else {
			n, align := r.Int64N(2000)+1, int64(1)<<r.IntN(9)
			off := s.take(n, align)
			if off < 0 {
				continue
			}
			if off%align != 0 || off+n > size {
				t.Fatalf("take(%d, %d) = %d", n, align, off)
			}
			for _, l := range live {
				if off < l.off+l.size && l.off < off+n {
					t.Fatalf("[%d, %d) overlaps [%d, %d)", off, off+n, l.off, l.off+l.size)
				}
			}
			live = append(live, span{off, n})
		}
		var free, used int64
		for i, f := range s {
			free += f.size
			if i > 0 && s[i-1].off+s[i-1].size >= f.off {
				t.Fatalf("spans touch: %v", s)
			}
		}
		for _, l := range live {
			used += l.size
		}
		if free+used != size {
			t.Fatalf("%d free + %d used", free, used)
		}
	}
	for _, l := range live {
		s.give(l.off, l.size)
	}
	if len(s) != 1 || s[0] != (span{0, size}) {
		t.Errorf("left %v", s)
	}
}

func TestArena(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		for _, use := range []MemoryUse{DeviceLocal, HostVisible, Readback} {
			start := d.Stats().Allocations
			var list []*Buffer
			for i := range 100 {
				b := must(d.NewBuffer(int64(i*37+1), use))
				if b.Size()%4 != 0 || b.Size() < int64(i*37+1) {
					t.Fatalf("size %d", b.Size())
				}
				list = append(list, b)
			}
			if n := d.Stats().Allocations - start; n != 1 {
				t.Errorf("%s: %d allocations for 100 small buffers", use, n)
			}
			for i, b := range list {
				if m := b.Mapped(); m != nil {
					for j := range m {
						m[j] = byte(i)
					}
				} else if use != DeviceLocal {
					t.Fatalf("%s is not mapped", use)
				}
			}
			for i, b := range list {
				for _, v := range b.Mapped() {
					if v != byte(i) {
						t.Fatal("buffers overlap")
					}
				}
			}
			in := d.MemoryInUse()
			if in.Buffers[use] < 100*37 || in.Reserved[use] != firstBlock {
				t.Errorf("%s: in use %+v", use, in)
			}
			for i, b := range list {
				if i%2 == 0 {
					b.Free()
				}
			}
			again := must(d.NewBuffer(64, use)) // fits a hole
			again.Free()
			for _, b := range list {
				b.Free()
			}
			in = d.MemoryInUse()
			if in.Buffers[use] != 0 || in.Reserved[use] != firstBlock {
				t.Errorf("%s: after freeing: %+v", use, in)
			}
			// A large one has its own allocation, returned at once.
			big := must(d.NewBuffer(24<<20, use))
			if in := d.MemoryInUse(); in.Reserved[use] < firstBlock+24<<20 {
				t.Errorf("%s: with a large buffer: %+v", use, in)
			}
			big.Free()
			if in := d.MemoryInUse(); in.Reserved[use] != firstBlock || in.Total() == 0 {
				t.Errorf("%s: after the large buffer: %+v", use, in)
			}
			// A second block is given back but for one.
			x, y, z := must(d.NewBuffer(7<<20, use)), must(d.NewBuffer(7<<20, use)), must(d.NewBuffer(7<<20, use))
			x.Free()
			y.Free()
			z.Free()
			if in := d.MemoryInUse(); in.Buffers[use] != 0 || in.Reserved[use] > 2*firstBlock {
				t.Errorf("%s: after the second block: %+v", use, in)
			}
		}
		if _, err := d.NewBuffer(d.Info().Limits.MaxBufferSize+4, DeviceLocal); !errors.Is(err, ErrUnsupported) {
			t.Errorf("too large: %v", err)
		}
		if _, err := d.NewBuffer(0, DeviceLocal); !errors.Is(err, ErrInvalid) {
			t.Errorf("empty: %v", err)
		}
	})
}

func TestChooseType(t *testing.T) {
	heaps := []Heap{{Size: 12 << 30, DeviceLocal: true}, {Size: 32 << 30}, {Size: 256 << 20, DeviceLocal: true}}
	local := MemoryType{Heap: 0, DeviceLocal: true}
	host := MemoryType{Heap: 1, HostVisible: true, HostCoherent: true}
	cached := MemoryType{Heap: 1, HostVisible: true, HostCoherent: true, HostCached: true}
	window := MemoryType{Heap: 2, DeviceLocal: true, HostVisible: true, HostCoherent: true}
	all := MemoryType{Heap: 0, DeviceLocal: true, HostVisible: true, HostCoherent: true, HostCached: true}
	loose := MemoryType{Heap: 0, DeviceLocal: true, HostVisible: true, HostCached: true}
	strict := MemoryType{Heap: 0, DeviceLocal: true, HostVisible: true, HostCoherent: true}
	hidden := MemoryType{Heap: 0, DeviceLocal: true, other: true}
	for _, c := range []struct {
		name                  string
		types                 []MemoryType
		unified               bool
		local, host, readback int
	}{
		{"discrete", []MemoryType{{Heap: 1}, hidden, local, host, cached, window}, false, 2, 3, 4},
		{"software", []MemoryType{all}, true, 0, 0, 0},
		{"integrated", []MemoryType{local, strict, loose}, true, 1, 1, 2},
		{"apple", []MemoryType{local, loose, all}, true, 2, 2, 2},
	} {
		for use, want := range map[MemoryUse]int{DeviceLocal: c.local, HostVisible: c.host, Readback: c.readback} {
			if got := chooseType(c.types, heaps, use, c.unified, ^uint32(0)); got != want {
				t.Errorf("%s, %s: type %d, want %d", c.name, use, got, want)
			}
		}
	}
	if got := chooseType([]MemoryType{local}, heaps, HostVisible, false, ^uint32(0)); got != -1 {
		t.Errorf("no host memory: type %d", got)
	}
	if got := chooseType([]MemoryType{host, cached}, heaps, Readback, false, 1); got != 0 {
		t.Errorf("masked: type %d", got)
	}
}
