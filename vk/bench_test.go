package vk

import (
	"fmt"
	"runtime"
	"testing"
)

// benchDevices runs a benchmark on every device, without validation.
func benchDevices(b *testing.B, f func(b *testing.B, d *Device)) {
	needInstance(b)
	in, err := Open(Config{})
	check(b, err)
	defer in.Close()
	for _, info := range in.Devices() {
		for _, name := range []string{"auto", "floor"} {
			b.Run(fmt.Sprintf("%d-%s", info.Index, name), func(b *testing.B) {
				if in.Validating() {
					b.Skip("set CALDERA_VALIDATION=0")
				}
				p, err := ProfileFor(info, name)
				check(b, err)
				d, err := in.NewDevice(info, p)
				check(b, err)
				defer d.Close()
				f(b, d)
			})
		}
	}
}

// Recording 500 times set, push constants, dispatch and barrier.
func BenchmarkRecord500(b *testing.B) {
	benchDevices(b, func(b *testing.B, d *Device) {
		buf := must(d.NewBuffer(4096, DeviceLocal))
		p := must(newAffine(d, 1))
		x := must(d.NewSet(p, []Binding{{Buffer: buf}, {Buffer: buf}}))
		y := must(d.NewSet(p, []Binding{{Buffer: buf}, {Buffer: buf}}))
		cmds := make([]Command, 500)
		for i := range cmds {
			s := x
			if i%2 == 0 {
				s = y
			}
			cmds[i] = Dispatch(p, s, groups(32), words(32, 1, 1)).After()
		}
		cb := must(d.NewCommandBuffer())
		b.ReportAllocs()
		for b.Loop() {
			if err := cb.Record(cmds); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkSubmitWait(b *testing.B) {
	benchDevices(b, func(b *testing.B, d *Device) {
		cb := must(d.NewCommandBuffer())
		check(b, cb.Record(nil))
		list := []*CommandBuffer{cb}
		b.ReportAllocs()
		for b.Loop() {
			t, err := d.Submit(list)
			check(b, err)
			check(b, t.Wait(-1))
			t.Release()
		}
	})
}

// The time Submit takes, and that of one poll while work is in flight.
func BenchmarkSubmit(b *testing.B) {
	benchDevices(b, func(b *testing.B, d *Device) {
		cb := must(d.NewCommandBuffer())
		check(b, cb.Record(nil))
		list := []*CommandBuffer{cb}
		b.ReportAllocs()
		for b.Loop() {
			t, err := d.Submit(list)
			check(b, err)
			b.StopTimer()
			for done := false; !done; runtime.Gosched() {
				done, err = t.Done()
				check(b, err)
			}
			t.Release()
			b.StartTimer()
		}
	})
}

func BenchmarkPoll(b *testing.B) {
	benchDevices(b, func(b *testing.B, d *Device) {
		s := &d.submits
		b.ReportAllocs()
		for b.Loop() {
			s.mu.Lock()
			err := s.poll(d)
			s.mu.Unlock()
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
