package vk

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// randomBytes returns n bytes that differ everywhere.
func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// What is written through a ring of staging buffers arrives, whatever the sizes: many small pieces in one staging
// buffer, pieces that end inside one, and one that goes around the ring several times.
func TestUploader(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		r := rand.New(rand.NewPCG(7, 7))
		u := must(d.NewUploader(leastPiece, 3))
		var bufs []*Buffer
		var want [][]byte
		used := d.MemoryInUse().Reserved[HostVisible]
		for _, n := range []int{1, 4, 10, 1000, leastPiece - 1500, leastPiece, leastPiece + 1, 7*leastPiece + 123, 8, 3} {
			b := must(d.NewBuffer(int64(n)+40, DeviceLocal))
			data := randomBytes(r, n)
			const off = 12
			// In two writes, of which the second begins between words.
			check(t, u.Write(b, off, data[:n/3]))
			check(t, u.Write(b, off+int64(n/3), data[n/3:]))
			bufs, want = append(bufs, b), append(want, data)
		}
		check(t, u.Flush())
		for i, b := range bufs {
			got := make([]byte, len(want[i]))
			check(t, d.Download(b, 12, got))
			if !bytes.Equal(got, want[i]) {
				t.Errorf("%d bytes arrive differently", len(got))
			}
		}
		staged := d.MemoryInUse().Buffers[HostVisible]
		if !d.Profile().Unified && (staged < 3*leastPiece || staged > 4*leastPiece) {
			t.Errorf("%d bytes of staging", staged)
		}
		check(t, u.Close())
		check(t, u.Close())
		if now := d.MemoryInUse().Reserved[HostVisible]; now > used+firstBlock {
			t.Errorf("%d bytes of staging are left, %d before", now, used)
		}
		if d.MemoryInUse().Buffers[HostVisible] != 0 {
			t.Errorf("%d bytes of staging buffers are left", d.MemoryInUse().Buffers[HostVisible])
		}
	})
}

// Memory that is short makes the staging buffers smaller; a submission that fails is the write's error.
func TestUploaderFaults(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		if _, err := d.NewUploader(leastPiece-1, 2); !errors.Is(err, ErrInvalid) {
			t.Errorf("too small: %v", err)
		}
		if _, err := d.NewUploader(leastPiece, 1); !errors.Is(err, ErrInvalid) {
			t.Errorf("no ring: %v", err)
		}
		if d.Profile().Unified {
			return // nothing is staged
		}
		data := randomBytes(rand.New(rand.NewPCG(1, 1)), 40<<20)
		b := must(d.NewBuffer(int64(len(data)), DeviceLocal))
		u := must(d.NewUploader(32<<20, 2))
		d.InjectFault("vkAllocateMemory", 1, ErrorOutOfDeviceMemory)
		check(t, u.Write(b, 0, data))
		check(t, u.Flush())
		if staged := d.MemoryInUse().Buffers[HostVisible]; staged != 2*16<<20 {
			t.Errorf("%d bytes of staging", staged)
		}
		got := make([]byte, len(data))
		check(t, d.Download(b, 0, got))
		if !bytes.Equal(got, data) {
			t.Error("the bytes arrive differently")
		}
		d.InjectFault("vkQueueSubmit", 2, ErrorOutOfHostMemory)
		if err := u.Write(b, 0, data); !errors.Is(err, ErrOutOfHostMemory) {
			t.Errorf("a failed submission: %v", err)
		}
		check(t, u.Close())
		foreign := must(d.NewUploader(leastPiece, 2))
		if err := foreign.Write(b, b.Size()-3, data[:4]); !errors.Is(err, ErrInvalid) {
			t.Errorf("beyond the end: %v", err)
		}
		check(t, foreign.Close())
	})
}
