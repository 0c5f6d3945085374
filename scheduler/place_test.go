package scheduler

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// Whatever kernels may bind lies in one span, whatever the sizes.
func TestSpans(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		size := 4 * (1 + r.Int64N(1<<r.IntN(30)))
		most := spanAlign * (2 + r.Int64N(200))
		limit := 4 * (1 + r.Int64N(1<<r.IntN(28)))
		spans, binding := Spans(size, most, limit)
		if len(spans) == 1 && (size > most || binding != limit) || binding > limit || binding <= 0 {
			t.Fatalf("Spans(%d, %d, %d) = %v, %d", size, most, limit, spans, binding)
		}
		if len(spans) > 1 && binding < min(limit, most/2/spanAlign*spanAlign) {
			t.Fatalf("Spans(%d, %d, %d): bindings of %d", size, most, limit, binding)
		}
		end := int64(0)
		for i, s := range spans {
			if s.N <= 0 || s.N > most || s.From%spanAlign != 0 || i > 0 && s.From > end-min(binding, size) || i == 0 && s.From != 0 {
				t.Fatalf("Spans(%d, %d, %d) = %v, %d", size, most, limit, spans, binding)
			}
			end = s.From + s.N
		}
		if end != size {
			t.Fatalf("Spans(%d, %d, %d) ends at %d", size, most, limit, end)
		}
		for range 20 {
			n := 1 + r.Int64N(min(size, binding))
			off := r.Int64N(size - n + 1)
			held := false
			for _, s := range spans {
				held = held || place{from: s.From, n: s.N}.holds(off, n)
			}
			if !held {
				t.Fatalf("Spans(%d, %d, %d) = %v: none holds %d..%d", size, most, limit, spans, off, off+n)
			}
		}
	}
}

// eachDie runs a test on a die of every device.
func eachDie(t *testing.T, f func(t *testing.T, d *Die)) {
	in, err := vk.Open(vk.Config{AppName: "scheduler tests"})
	if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for _, info := range in.Devices() {
		for _, profile := range []string{"auto", "floor"} {
			t.Run(info.Name+"/"+profile, func(t *testing.T) {
				p, err := vk.ProfileFor(info, profile)
				if err != nil {
					t.Fatal(err)
				}
				dev, err := in.NewDevice(info, p)
				if err != nil {
					t.Fatal(err)
				}
				d := NewDie(dev)
				defer func() {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				}()
				f(t, d)
			})
		}
	}
	if n := in.ValidationCount(); n > 0 {
		t.Errorf("validation: %v", in.ValidationMessages())
	}
}

func randomBytes(r *rand.Rand, n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// A weight buffer that is larger than a piece of memory lies in several, which all hold what is written; state that
// is larger is refused.
func TestAllocateInPieces(t *testing.T) {
	eachDie(t, func(t *testing.T, d *Die) {
		r := rand.New(rand.NewPCG(1, 9))
		d.largest = 1 << 20
		b := &shaders.Buffer{Name: "w", Kind: shaders.Weight, Size: 5<<20 + 1000}
		if err := d.Allocate(b, true); err != nil {
			t.Fatal(err)
		}
		if d.Kernels.MaxBinding != 1<<19 || len(d.places[b]) < 6 {
			t.Errorf("bindings of %d, %d places", d.Kernels.MaxBinding, len(d.places[b]))
		}
		data := randomBytes(r, b.Size)
		half := b.Size / 2
		if err := d.Upload(b.View().Slice(0, half), data[:half]); err != nil {
			t.Fatal(err)
		}
		if err := d.Stream(b.View().Slice(half, b.Size-half), data[half:]); err != nil {
			t.Fatal(err)
		}
		if err := d.Settle(); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, b.Size)
		if err := d.Download(b.View(), got); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the bytes come back differently, %v", err)
		}
		for range 200 {
			n := 4 * (1 + r.Int64N(d.Kernels.MaxBinding/4))
			off := 4 * r.Int64N((b.Size-n)/4+1)
			m, at := d.place(b.View().Slice(off, n))
			if m == nil {
				t.Fatalf("no place holds %d..%d", off, off+n)
			}
			part := make([]byte, n)
			if err := d.Device.Download(m, at, part); err != nil || !bytes.Equal(part, data[off:off+n]) {
				t.Fatalf("bytes %d..%d lie elsewhere, %v", off, off+n, err)
			}
		}
		if m, _ := d.place(b.View()); m != nil {
			t.Error("one place holds all of it")
		}
		d.Free(b)
		if n := d.Device.MemoryInUse().Buffers[vk.DeviceLocal]; n != 0 {
			t.Errorf("%d bytes are left", n)
		}
		if err := d.Download(b.View(), got); err == nil {
			t.Error("a freed buffer was read")
		}
	})
}

// Buffers share an import, which goes with the last of them.
func TestImport(t *testing.T) {
	eachDie(t, func(t *testing.T, d *Die) {
		if !d.Device.Profile().Features.HostImport {
			if err := d.Import(make([]byte, 4096), nil); !errors.Is(err, vk.ErrUnsupported) {
				t.Errorf("without the feature: %v", err)
			}
			return
		}
		size := 16 * os.Getpagesize()
		mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(mem)
		copy(mem, randomBytes(rand.New(rand.NewPCG(2, 3)), int64(size)))
		a := &shaders.Buffer{Name: "a", Kind: shaders.Weight, Size: 100}
		b := &shaders.Buffer{Name: "b", Kind: shaders.Weight, Size: 8000}
		for _, bad := range []Bind{{a, 0, 100, 2}, {a, 2, 98, 0}, {a, 0, 104, 0}, {a, 0, 100, int64(size) - 96}, {a, 0, 100, -4}, {a, 0, -4, 0}} {
			if err := d.Import(mem, []Bind{{b, 0, 8000, 0}, bad}); err == nil || len(d.places) != 0 {
				t.Errorf("%+v: %v, %d places", bad, err, len(d.places))
			}
		}
		if err := d.Import(mem, []Bind{{a, 0, 100, 4}, {b, 0, 8000, 104}}); err != nil {
			t.Fatal(err)
		}
		in := func() int64 { return d.Device.MemoryInUse().Buffers[vk.Imported] }
		for _, x := range []struct {
			b   *shaders.Buffer
			off int
		}{{a, 4}, {b, 104}} {
			got := make([]byte, x.b.Size)
			if err := d.Download(x.b.View(), got); err != nil || !bytes.Equal(got, mem[x.off:x.off+len(got)]) {
				t.Errorf("%s reads differently, %v", x.b.Name, err)
			}
			if err := d.Upload(x.b.View(), got); !errors.Is(err, vk.ErrInvalid) {
				t.Errorf("%s was written to: %v", x.b.Name, err)
			}
		}
		if err := d.Allocate(a, false); err != nil || len(d.places[a]) != 1 || in() != int64(size) {
			t.Errorf("an imported buffer was given memory: %v", err)
		}
		d.Free(a)
		if in() != int64(size) {
			t.Error("the import went with the first buffer")
		}
		d.Free(b)
		d.Free(b)
		if in() != 0 || len(d.users) != 0 {
			t.Error("the import is left")
		}
	})
}
