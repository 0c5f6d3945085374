package vk

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

func TestDevices(t *testing.T) {
	in := needInstance(t)
	t.Logf("loader %s, validating %v", in.LoaderVersion(), in.Validating())
	for i, d := range in.Devices() {
		t.Logf("%s: uuid %s, driver id %d, %+v, %+v, features %v, heaps %+v", d, d.UUID, d.DriverID, d.Limits, d.Subgroup, d.Features.Names(), d.Heaps)
		if d.Index != i || len(d.UUID) != 32 || len(d.Heaps) == 0 || d.Limits.MaxAllocation <= 0 || d.Subgroup.Size == 0 {
			t.Errorf("device %d is not described: %+v", i, d)
		}
		got, err := in.Select(d.UUID)
		if err != nil || got.Index != i {
			t.Errorf("Select(%q) = %v, %v", d.UUID, got, err)
		}
	}
	if _, err := in.Select(""); err != nil {
		t.Error(err)
	}
}

func TestDispatch(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		const n = 1000
		a, err := d.NewBuffer(4*n, DeviceLocal)
		check(t, err)
		b, err := d.NewBuffer(4*n, DeviceLocal)
		check(t, err)
		if (a.Mapped() != nil) != d.Profile().Unified {
			t.Errorf("unified %v, mapped %v", d.Profile().Unified, a.Mapped() != nil)
		}
		check(t, d.Upload(a, 0, counting(n)))
		p, err := newAffine(d, 3)
		check(t, err)
		q, err := newAffine(d, 5) // the same layout, another constant
		check(t, err)
		if p.layout != q.layout {
			t.Error("layouts are not shared")
		}
		pool := d.NewSetPool()
		defer pool.Free()
		ab, err := pool.NewSet(p, []Binding{{Buffer: a}, {Buffer: b}})
		check(t, err)
		ba, err := d.NewSet(q, []Binding{{Buffer: b}, {Buffer: a}})
		check(t, err)
		before := d.Stats()
		run(t, d,
			Dispatch(p, ab, groups(n), words(n, 7, 1)),
			Dispatch(q, ba, groups(n), words(n, 1, 2)).After(),
			HostBarrier())
		if s := d.Stats().Sub(before); s.Submits != 1 || s.Dispatches != 2 || s.Barriers != 2 || s.CommandBuffers != 1 {
			t.Errorf("stats %+v", s)
		}
		out := make([]byte, 4*n)
		check(t, d.Download(a, 0, out))
		for i, v := range wordsOf(out) {
			if want := ((uint32(i)*3+7)*5+1)*5 + 1; v != want {
				t.Fatalf("element %d: %d, want %d", i, v, want)
			}
		}
	})
}

func TestCopyFillIndirect(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		const n = 256
		a := must(d.NewBuffer(4*n, HostVisible))
		b := must(d.NewBuffer(4*n, DeviceLocal))
		c := must(d.NewBuffer(4*n, Readback))
		args := must(d.NewBuffer(12, HostVisible))
		p := must(newAffine(d, 2))
		set := must(d.NewSet(p, []Binding{{Buffer: a}, {Buffer: b}}))
		copy(a.Mapped(), counting(n))
		copy(args.Mapped(), words(n/groupSize, 1, 1))
		run(t, d,
			FillBuffer(b, 0, 4*n, 0xdeadbeef),
			FillBuffer(c, 0, 4*n, 9),
			// Only the first half of the elements is computed.
			DispatchIndirect(p, set, args, 0, words(n/2, 1, 1)).After(),
			CopyBuffer(c, 16, b, 16, 4*n-16).After(),
			HostBarrier())
		check(t, c.Invalidate(0, c.Size()))
		for i, v := range wordsOf(c.Mapped()) {
			want := uint32(i)*2 + 1
			if i < 4 {
				want = 9
			} else if i >= n/2 {
				want = 0xdeadbeef
			}
			if v != want {
				t.Fatalf("element %d: %#x, want %#x", i, v, want)
			}
		}
	})
}

// A transfer of several staging pieces at odd offsets.
func TestTransfer(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		const n = 3*stagePiece + 12345
		b := must(d.NewBuffer(n+100, DeviceLocal))
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i * 7 >> 3)
		}
		check(t, d.Upload(b, 13, data))
		got := make([]byte, n)
		check(t, d.Download(b, 13, got))
		if !bytes.Equal(got, data) {
			t.Error("what came back differs")
		}
		if err := d.Upload(b, 200, data); !errors.Is(err, ErrInvalid) {
			t.Errorf("upload past the end: %v", err)
		}
		if s := d.Stats(); s.Uploaded != n || s.Downloaded != n {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestTicket(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		const n = 1 << 14
		a := must(d.NewBuffer(4*n, DeviceLocal))
		b := must(d.NewBuffer(4*n, DeviceLocal))
		check(t, d.Upload(a, 0, counting(n)))
		p := must(newAffine(d, 3))
		set := must(d.NewSet(p, []Binding{{Buffer: a}, {Buffer: b}}))
		long, short := must(d.NewCommandBuffer()), must(d.NewCommandBuffer())
		rounds := uint32(8000)
		check(t, long.Record([]Command{Dispatch(p, set, groups(n), words(n, 1, rounds))}))
		check(t, short.Record([]Command{Dispatch(p, set, groups(n), words(n, 1, 1)).After()}))
		var tickets []*Ticket
		start := time.Now()
		tickets = append(tickets, must(d.Submit([]*CommandBuffer{long})))
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Logf("Submit took %v", took)
		}
		tickets = append(tickets, must(d.Submit([]*CommandBuffer{short})))
		busy := false
		if done, err := tickets[0].Done(); err != nil {
			t.Fatal(err)
		} else if !done {
			busy = true
			if err := tickets[1].Wait(0); err != nil && !errors.Is(err, ErrTimeout) {
				t.Errorf("Wait(0): %v", err)
			}
			if err := long.Record(nil); err != nil && !errors.Is(err, ErrBusy) {
				t.Errorf("recording a busy command buffer: %v", err)
			}
		}
		if !busy {
			t.Log("the device was too fast to be seen busy")
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for _, ticket := range tickets {
					if err := ticket.Wait(time.Minute); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for {
			done, err := tickets[1].Done()
			check(t, err)
			if done {
				break
			}
			time.Sleep(50 * time.Microsecond)
		}
		wg.Wait()
		if done, err := tickets[0].Done(); !done || err != nil {
			t.Errorf("first ticket: %v, %v", done, err)
		}
		// Many submissions whose tickets nobody looks at.
		for range 50 {
			ticket, err := d.Submit([]*CommandBuffer{short})
			if errors.Is(err, ErrBusy) {
				runtime.Gosched()
				continue
			}
			check(t, err)
			ticket.Release()
		}
		check(t, d.WaitIdle())
		if _, err := d.Submit([]*CommandBuffer{short, short}); !errors.Is(err, ErrBusy) {
			t.Errorf("twice in one submission: %v", err)
		}
		check(t, must(d.Submit(nil)).Wait(-1))
		if k := len(d.submits.fences) + len(d.submits.spare); k > 10 {
			t.Errorf("%d fences", k)
		}
	})
}

func TestSubmitAllocates(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		cb := must(d.NewCommandBuffer())
		check(t, cb.Record(nil))
		list := []*CommandBuffer{cb}
		allocs := testing.AllocsPerRun(200, func() {
			ticket, err := d.Submit(list)
			check(t, err)
			for {
				done, err := ticket.Done()
				check(t, err)
				if done {
					break
				}
				runtime.Gosched()
			}
			ticket.Release()
		})
		if allocs >= 1 {
			t.Errorf("%v allocations per submission", allocs)
		}
	})
}

func TestTimestamps(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		if !d.Profile().Timestamps {
			t.Skip("no timestamps")
		}
		const n = 4096
		a := must(d.NewBuffer(4*n, DeviceLocal))
		b := must(d.NewBuffer(4*n, DeviceLocal))
		check(t, d.Upload(a, 0, counting(n)))
		p := must(newAffine(d, 3))
		set := must(d.NewSet(p, []Binding{{Buffer: a}, {Buffer: b}}))
		q := must(d.NewQueries(4))
		defer q.Free()
		kernel := func(rounds uint32) Command { return Dispatch(p, set, groups(n), words(n, 1, rounds)) }
		run(t, d, kernel(1))
		start := time.Now()
		run(t, d, ResetQueries(q), kernel(1).Stamped(q, 0, 1), kernel(5000).After().Stamped(q, -1, 2))
		wall := time.Since(start)
		ns := make([]int64, 4)
		check(t, q.Read(ns))
		t.Logf("%v in %v", ns, wall)
		if ns[0] != 0 || ns[1] < ns[0] || ns[2] < ns[1] || ns[3] != -1 || time.Duration(ns[2]) > wall {
			t.Errorf("timestamps %v in %v", ns, wall)
		}
	})
}

// Two devices at once, also when there is only one physical one.
func TestTwoDevices(t *testing.T) {
	in := needInstance(t)
	infos := in.Devices()
	a, b := openDevice(t, infos[0], ""), openDevice(t, infos[len(infos)-1], "")
	c := openDevice(t, infos[0], "floor")
	const n = 512
	data := counting(n)
	for _, d := range []*Device{a, b, c} {
		x, y := must(d.NewBuffer(4*n, DeviceLocal)), must(d.NewBuffer(4*n, DeviceLocal))
		check(t, d.Upload(x, 0, data))
		p := must(newAffine(d, 3))
		set := must(d.NewSet(p, []Binding{{Buffer: x}, {Buffer: y}}))
		run(t, d, Dispatch(p, set, groups(n), words(n, 1, 1)), HostBarrier())
		check(t, d.Download(y, 0, data))
	}
	for i, v := range wordsOf(data) {
		if want := ((uint32(i)*3+1)*3+1)*3 + 1; v != want {
			t.Fatalf("element %d: %d, want %d", i, v, want)
		}
	}
	// Objects of one device are refused by another.
	x := must(a.NewBuffer(64, DeviceLocal))
	p := must(newAffine(b, 1))
	if _, err := b.NewSet(p, []Binding{{Buffer: x}, {Buffer: x}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("foreign buffer in a set: %v", err)
	}
	cb := must(b.NewCommandBuffer())
	if err := cb.Record([]Command{FillBuffer(x, 0, 64, 0)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("foreign buffer in a command: %v", err)
	}
	if err := b.Upload(x, 0, []byte{1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("foreign buffer in an upload: %v", err)
	}
}

func TestInvalidCommands(t *testing.T) {
	in := needInstance(t)
	d := openDevice(t, must(in.Select("")), "floor")
	a := must(d.NewBuffer(1024, DeviceLocal))
	freed := must(d.NewBuffer(1024, DeviceLocal))
	freed.Free()
	freed.Free()
	p := must(newAffine(d, 1))
	set := must(d.NewSet(p, []Binding{{Buffer: a, Size: 512}, {Buffer: a, Offset: 512}}))
	other := must(d.NewPipeline(PipelineConfig{Name: "other", SPIRV: affineSPIRV, Buffers: 2, PushBytes: 16, Spec: []uint32{32, 1}}))
	push := words(1, 1, 1)
	for name, c := range map[string]Command{
		"zero":         {},
		"no pipeline":  Dispatch(nil, set, groups(1), push),
		"no set":       Dispatch(p, nil, groups(1), push),
		"other layout": Dispatch(other, set, groups(1), append(push, 0, 0, 0, 0)),
		"short push":   Dispatch(p, set, groups(1), push[:8]),
		"long push":    Dispatch(p, set, groups(1), make([]byte, 132)),
		"groups":       Dispatch(p, set, [3]uint32{65536, 1, 1}, push),
		"args":         DispatchIndirect(p, set, a, 1020, push),
		"args align":   DispatchIndirect(p, set, a, 2, push),
		"freed":        FillBuffer(freed, 0, 4, 0),
		"range":        FillBuffer(a, 1000, 28, 0),
		"fill align":   FillBuffer(a, 2, 4, 0),
		"overlap":      CopyBuffer(a, 0, a, 8, 16),
		"no queries":   ResetQueries(nil),
		"stamp":        FillBuffer(a, 0, 4, 0).Stamped(nil, 0, 0),
	} {
		cb := must(d.NewCommandBuffer())
		if err := cb.Record([]Command{c}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := d.Submit([]*CommandBuffer{cb}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: submitted: %v", name, err)
		}
		cb.Free()
	}
	for name, b := range map[string][]Binding{
		"count":  {{Buffer: a}},
		"freed":  {{Buffer: a}, {Buffer: freed}},
		"nil":    {{Buffer: a}, {}},
		"range":  {{Buffer: a}, {Buffer: a, Offset: 768, Size: 512}},
		"align":  {{Buffer: a}, {Buffer: a, Offset: 16}},
		"beyond": {{Buffer: a}, {Buffer: a, Offset: 2048}},
	} {
		if _, err := d.NewSet(p, b); !errors.Is(err, ErrInvalid) {
			t.Errorf("set, %s: %v", name, err)
		}
	}
	for name, cfg := range map[string]PipelineConfig{
		"no code": {},
		"garbage": {SPIRV: make([]byte, 64)},
		"push":    {SPIRV: affineSPIRV, PushBytes: 132},
		"buffers": {SPIRV: affineSPIRV, Buffers: 9},
	} {
		if _, err := d.NewPipeline(cfg); !errors.Is(err, ErrInvalid) {
			t.Errorf("pipeline, %s: %v", name, err)
		}
	}
	if _, err := d.NewPipeline(PipelineConfig{SPIRV: affineSPIRV, Subgroup: 8}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("subgroup size: %v", err)
	}
}

// Unaligned code is copied; a required subgroup size is taken where there is one.
func TestPipelineForms(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		odd := append(make([]byte, 1), affineSPIRV...)[1:]
		if uintptr(unsafe.Pointer(&odd[0]))%4 == 0 {
			t.Error("the code is aligned after all")
		}
		must(d.NewPipeline(PipelineConfig{Name: "odd", SPIRV: odd, Buffers: 2, PushBytes: 12, Spec: []uint32{32, 1}})).Free()
		if d.Profile().Features.SubgroupSize {
			must(d.NewPipeline(PipelineConfig{Name: "sized", SPIRV: affineSPIRV, Buffers: 2, PushBytes: 12, Spec: []uint32{32, 1}, Subgroup: d.Info().Subgroup.Size})).Free()
		}
	})
}

// The garbage collector runs all the time while structs and slices cross.
func TestGarbageCollector(t *testing.T) {
	in := needInstance(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	seconds := 2 * time.Second
	if testing.Short() {
		seconds /= 4
	}
	infos := in.Devices()
	for _, info := range infos {
		d := openDevice(t, info, "")
		const n = 64
		a, b := must(d.NewBuffer(4*n, HostVisible)), must(d.NewBuffer(4*n, Readback))
		copy(a.Mapped(), counting(n))
		cb := must(d.NewCommandBuffer())
		loops := 0
		for end := time.Now().Add(seconds / time.Duration(len(infos))); time.Now().Before(end); loops++ {
			factor := uint32(loops%5 + 2)
			p := must(newAffine(d, factor))
			pool := d.NewSetPool()
			var cmds []Command
			for range 20 {
				s := must(pool.NewSet(p, []Binding{{Buffer: a}, {Buffer: b}}))
				cmds = append(cmds, Dispatch(p, s, groups(n), words(n, uint32(loops), 1)).After())
			}
			check(t, cb.Record(append(cmds, HostBarrier())))
			check(t, must(d.Submit([]*CommandBuffer{cb})).Wait(time.Minute))
			if got, want := wordsOf(b.Mapped())[n-1], (n-1)*factor+uint32(loops); got != want {
				t.Fatalf("loop %d: %d, want %d", loops, got, want)
			}
			pool.Free()
			p.Free()
		}
		t.Logf("%s: %d loops", info.Name, loops)
	}
	close(stop)
	wg.Wait()
}

// Pages of an anonymous mapping and of this test's own file are read in place.
func TestImportHost(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		size := int(max(d.Info().Limits.MinHostPointerAlignment, 4096)) * 4
		mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		check(t, err)
		defer syscall.Munmap(mem)
		b, err := d.ImportHost(mem)
		if !d.Profile().Features.HostImport {
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("import without the feature: %v", err)
			}
			return
		}
		if err != nil {
			t.Skipf("the driver refuses: %v", err)
		}
		defer b.Free()
		if d.MemoryInUse().Reserved[Imported] != int64(size) {
			t.Errorf("in use %+v", d.MemoryInUse())
		}
		copy(mem, counting(size/4))
		out := must(d.NewBuffer(int64(size), Readback))
		run(t, d, CopyBuffer(out, 0, b, 0, int64(size)), HostBarrier())
		if !bytes.Equal(out.Mapped(), mem) {
			t.Error("the import reads differently")
		}
		cb := must(d.NewCommandBuffer())
		if err := cb.Record([]Command{FillBuffer(b, 0, 4, 0)}); !errors.Is(err, ErrInvalid) {
			t.Errorf("writing to imported memory: %v", err)
		}
		if _, err := d.ImportHost(mem[4:]); !errors.Is(err, ErrInvalid) {
			t.Errorf("unaligned import: %v", err)
		}
	})
}

// Buffers have addresses of their own where the profile has them, and none elsewhere.
func TestAddress(t *testing.T) {
	eachDevice(t, func(t *testing.T, d *Device) {
		a, b := must(d.NewBuffer(4096, DeviceLocal)), must(d.NewBuffer(4096, DeviceLocal))
		defer a.Free()
		defer b.Free()
		if !d.Profile().Features.BufferAddress {
			if a.Address() != 0 {
				t.Errorf("address %#x without the feature", a.Address())
			}
			return
		}
		if lo, hi := min(a.Address(), b.Address()), max(a.Address(), b.Address()); lo == 0 || hi-lo < 4096 || lo%4 != 0 {
			t.Errorf("addresses %#x and %#x of 4096 bytes each", a.Address(), b.Address())
		}
	})
}

// Everything may be freed twice, after Close, and in any order.
func TestCloseOrder(t *testing.T) {
	in := needInstance(t)
	info := must(in.Select(""))
	d := openDevice(t, info, "")
	b := must(d.NewBuffer(4096, DeviceLocal))
	p := must(newAffine(d, 1))
	pool := d.NewSetPool()
	s := must(pool.NewSet(p, []Binding{{Buffer: b}, {Buffer: b}}))
	cb := must(d.NewCommandBuffer())
	check(t, cb.Record([]Command{FillBuffer(b, 0, 4096, 0)}))
	ticket := must(d.Submit([]*CommandBuffer{cb}))
	check(t, d.Close())
	check(t, d.Close())
	for range 2 {
		cb.Free()
		pool.Free()
		p.Free()
		b.Free()
	}
	_ = s
	if _, err := ticket.Done(); err != nil && !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := d.NewBuffer(4, DeviceLocal); !errors.Is(err, ErrClosed) {
		t.Errorf("buffer of a closed device: %v", err)
	}
	if _, err := d.Submit(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("submit to a closed device: %v", err)
	}
	second, err := Open(Config{})
	check(t, err)
	d2 := must(second.NewDevice(second.Devices()[info.Index], must(ProfileFor(info, ""))))
	must(newAffine(d2, 2))
	second.Close() // closes d2
	second.Close()
	if _, err := newAffine(d2, 2); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if second.ValidationCount() != 0 || instance.ValidationCount() != 0 {
		t.Error(instance.ValidationMessages())
	}
}
