package vk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Each call of the package fails once, the error says which and why, and the
// same call works the next time.
func TestFaults(t *testing.T) {
	in := needInstance(t)
	info := must(in.Select(""))
	for _, name := range []string{"auto", "floor"} {
		d := openDevice(t, info, name)
		buf := must(d.NewBuffer(1<<16, DeviceLocal))
		p := must(newAffine(d, 1))
		cb := must(d.NewCommandBuffer())
		check(t, cb.Record([]Command{FillBuffer(buf, 0, 1<<16, 1)}))
		list := []*CommandBuffer{cb}
		var q *Queries
		if d.Profile().Timestamps {
			q = must(d.NewQueries(1))
		}
		submitWait := func() error {
			ticket, err := d.Submit(list)
			if err != nil {
				return err
			}
			err = ticket.Wait(time.Minute)
			d.WaitIdle()
			return err
		}
		shapes := 0 // layouts are made once per shape
		shape := func() error {
			shapes += 4
			_, err := d.layoutFor(layoutKey{buffers: 7, push: shapes})
			return err
		}
		size := int64(40 << 20) // its own allocation
		kinds := []struct {
			call string
			do   func() error
			skip bool
		}{
			{"vkCreateBuffer", func() error { b, err := d.NewBuffer(64, DeviceLocal); b.Free(); return err }, false},
			{"vkBindBufferMemory", func() error { b, err := d.NewBuffer(64, DeviceLocal); b.Free(); return err }, false},
			{"vkAllocateMemory", func() error { b, err := d.NewBuffer(size, DeviceLocal); b.Free(); return err }, false},
			{"vkMapMemory", func() error { b, err := d.NewBuffer(size, HostVisible); b.Free(); return err }, false},
			{"vkCreateShaderModule", func() error { p, err := newAffine(d, 1); p.Free(); return err }, false},
			{"vkCreateComputePipelines", func() error { p, err := newAffine(d, 1); p.Free(); return err }, false},
			{"vkCreateDescriptorSetLayout", shape, false},
			{"vkCreatePipelineLayout", shape, false},
			{"vkCreateDescriptorPool", func() error {
				s := d.NewSetPool()
				defer s.Free()
				_, err := s.NewSet(p, []Binding{{Buffer: buf}, {Buffer: buf}})
				return err
			}, false},
			{"vkAllocateDescriptorSets", func() error { _, err := d.NewSet(p, []Binding{{Buffer: buf}, {Buffer: buf}}); return err }, false},
			{"vkAllocateCommandBuffers", func() error { c, err := d.NewCommandBuffer(); c.Free(); return err }, false},
			{"vkBeginCommandBuffer", func() error { return cb.Record([]Command{FillBuffer(buf, 0, 1<<16, 1)}) }, false},
			{"vkEndCommandBuffer", func() error { return cb.Record([]Command{FillBuffer(buf, 0, 1<<16, 1)}) }, false},
			{"vkQueueSubmit", submitWait, false},
			{"vkQueueSubmit", func() error { return d.Upload(buf, 3, make([]byte, 99)) }, d.Profile().Unified},
			{"vkQueueSubmit", func() error { return d.Download(buf, 3, make([]byte, 99)) }, d.Profile().Unified},
			{"vkGetSemaphoreCounterValue", submitWait, !d.Profile().Features.Timeline},
			{"vkGetFenceStatus", submitWait, d.Profile().Features.Timeline},
			{"vkDeviceWaitIdle", d.WaitIdle, false},
			{"vkCreateQueryPool", func() error { q, err := d.NewQueries(2); q.Free(); return err }, q == nil},
			{"vkGetQueryPoolResults", func() error { return q.Read(make([]int64, 1)) }, true}, // needs a written query: below
			{"vkGetPipelineCacheData", func() error { d.cache.dirty.Store(true); return d.SavePipelineCache() }, false},
		}
		for _, k := range kinds {
			if k.skip {
				continue
			}
			for _, r := range []Result{ErrorOutOfHostMemory, ErrorOutOfDeviceMemory} {
				if r == ErrorOutOfDeviceMemory && k.call == "vkGetPipelineCacheData" {
					continue
				}
				d.InjectFault(k.call, 1, r)
				err := k.do()
				var e *Error
				if !errors.As(err, &e) || e.Op != k.call || e.Result != r || !strings.Contains(err.Error(), r.String()) {
					t.Errorf("%s, %s: %v", name, k.call, err)
				}
				if sentinel := map[Result]error{ErrorOutOfHostMemory: ErrOutOfHostMemory, ErrorOutOfDeviceMemory: ErrOutOfDeviceMemory}[r]; !errors.Is(err, sentinel) {
					t.Errorf("%s, %s: %v is not %v", name, k.call, err, sentinel)
				}
				if err := k.do(); err != nil {
					t.Errorf("%s, %s: again: %v", name, k.call, err)
				}
			}
		}
		if q != nil {
			run(t, d, ResetQueries(q), FillBuffer(buf, 0, 4, 0).Stamped(q, -1, 0))
			d.InjectFault("vkGetQueryPoolResults", 1, ErrorOutOfHostMemory)
			if err := q.Read(make([]int64, 1)); !errors.Is(err, ErrOutOfHostMemory) {
				t.Errorf("vkGetQueryPoolResults: %v", err)
			}
			check(t, q.Read(make([]int64, 1)))
		}
		if left := d.faults.armed.Load(); left != 0 {
			t.Errorf("%d faults left: %v", left, d.faults.list)
		}
	}
}

// The waiting calls are reached only while work is in flight.
func TestWaitFaults(t *testing.T) {
	in := needInstance(t)
	info := must(in.Select(""))
	for _, name := range []string{"auto", "floor"} {
		d := openDevice(t, info, name)
		const n = 1 << 14
		a := must(d.NewBuffer(4*n, DeviceLocal))
		p := must(newAffine(d, 3))
		b := must(d.NewBuffer(4*n, DeviceLocal))
		check(t, d.Upload(a, 0, counting(n)))
		set := must(d.NewSet(p, []Binding{{Buffer: a}, {Buffer: b}}))
		cb := must(d.NewCommandBuffer())
		check(t, cb.Record([]Command{Dispatch(p, set, groups(n), words(n, 1, 8000))}))
		call := "vkWaitForFences"
		if d.Profile().Features.Timeline {
			call = "vkWaitSemaphores"
		}
		for _, c := range []struct {
			r    Result
			want error
		}{{Timeout, ErrTimeout}, {ErrorOutOfDeviceMemory, ErrOutOfDeviceMemory}, {ErrorDeviceLost, ErrDeviceLost}} {
			d.InjectFault(call, 1, c.r)
			ticket, err := d.Submit([]*CommandBuffer{cb})
			check(t, err)
			err = ticket.Wait(time.Minute)
			if err == nil {
				t.Skip("the device is too fast")
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%s, %s: %v", name, c.r, err)
			}
			if c.r != ErrorDeviceLost {
				check(t, ticket.Wait(time.Minute))
			}
		}
		// Lost devices stay lost, say so at once, and close.
		if !d.Lost() {
			t.Error("not lost")
		}
		if _, err := d.Submit([]*CommandBuffer{cb}); !errors.Is(err, ErrDeviceLost) {
			t.Errorf("submit: %v", err)
		}
		if _, err := d.NewBuffer(4, DeviceLocal); !errors.Is(err, ErrDeviceLost) {
			t.Errorf("buffer: %v", err)
		}
		if err := d.Upload(a, 0, []byte{1}); !errors.Is(err, ErrDeviceLost) {
			t.Errorf("upload: %v", err)
		}
		if err := d.WaitIdle(); !errors.Is(err, ErrDeviceLost) {
			t.Errorf("wait: %v", err)
		}
		check(t, d.Close())
	}
}

// A device that cannot be made leaves nothing behind; the n-th call counts.
func TestOpenFaults(t *testing.T) {
	needInstance(t)
	for _, f := range []Fault{
		{"vkCreateDevice", 1, ErrorInitializationFailed},
		{"vkCreateCommandPool", 1, ErrorOutOfHostMemory},
		{"vkCreateSemaphore", 1, ErrorOutOfHostMemory},
	} {
		in, err := Open(Config{Faults: []Fault{f}})
		check(t, err)
		info := must(in.Select(""))
		_, err = in.NewDevice(info, must(ProfileFor(info, "")))
		var e *Error
		if !errors.As(err, &e) || e.Op != f.Call || e.Result != f.Result {
			if f.Call != "vkCreateSemaphore" || info.Features.Timeline {
				t.Errorf("%+v: %v", f, err)
			}
		}
		in.Close()
	}
	d := openDevice(t, must(instance.Select("")), "")
	d.InjectFault("vkCreateBuffer", 3, ErrorOutOfDeviceMemory)
	for i := 1; i <= 4; i++ {
		b, err := d.NewBuffer(16, HostVisible)
		if (err != nil) != (i == 3) {
			t.Errorf("call %d: %v", i, err)
		}
		b.Free()
	}
	// A pool that reports to be full is replaced.
	p := must(newAffine(d, 1))
	b := must(d.NewBuffer(16, HostVisible))
	d.InjectFault("vkAllocateDescriptorSets", 1, ErrorOutOfPoolMemory)
	must(d.NewSet(p, []Binding{{Buffer: b}, {Buffer: b}}))
	for range 200 {
		must(d.NewSet(p, []Binding{{Buffer: b}, {Buffer: b}}))
	}
	// A shared block that does not fit falls back to what is needed.
	d.InjectFault("vkAllocateMemory", 1, ErrorOutOfDeviceMemory)
	if _, err := d.NewBuffer(1000, Readback); err != nil {
		t.Error(err)
	}
	if r := d.MemoryInUse().Reserved[Readback]; r >= firstBlock {
		t.Errorf("%d bytes reserved", r)
	}
}

func TestErrors(t *testing.T) {
	e := &Error{"vkAllocateMemory", ErrorOutOfDeviceMemory, "64 bytes"}
	if got := e.Error(); got != "vk: vkAllocateMemory: VK_ERROR_OUT_OF_DEVICE_MEMORY (64 bytes)" {
		t.Error(got)
	}
	if !errors.Is(fmt.Errorf("x: %w", e), ErrOutOfDeviceMemory) || errors.Is(e, ErrDeviceLost) {
		t.Error("Is")
	}
	if Result(-77).String() != "VkResult(-77)" {
		t.Error(Result(-77))
	}
	_, err := loaderError()
	if !errors.Is(err, ErrNoLoader) || !strings.Contains(err.Error(), "install") || strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
}

func loaderError() (any, error) {
	loaderMu.Lock()
	defer loaderMu.Unlock()
	old := loaderProc
	loaderProc = nil
	defer func() { loaderProc = old }()
	return loader([]string{"libvulkan-missing.so.1", "libc.so.6"})
}

func TestCacheFile(t *testing.T) {
	info := fake(0, "a", DiscreteDevice, "", "", "12345678")
	info.CacheUUID = strings.Repeat("ab", 16)
	data := []byte("compiled kernels")
	file := encodeCache(info, data)
	if got, err := decodeCache(info, file); err != nil || string(got) != string(data) {
		t.Fatal(got, err)
	}
	for i := range file {
		bad := append([]byte(nil), file...)
		bad[i] ^= 1
		if _, err := decodeCache(info, bad); err == nil {
			t.Errorf("byte %d changed unnoticed", i)
		}
		if _, err := decodeCache(info, file[:i]); err == nil {
			t.Errorf("length %d unnoticed", i)
		}
	}
	other := info
	other.DriverVersion++
	if _, err := decodeCache(other, file); err == nil {
		t.Error("another driver unnoticed")
	}
	other = info
	other.CacheUUID = strings.Repeat("cd", 16)
	if _, err := decodeCache(other, file); err == nil {
		t.Error("another cache UUID unnoticed")
	}
	t.Setenv("CALDERA_CACHE_DIR", "off")
	if p := PipelineCachePath(info); p != "" {
		t.Error(p)
	}
	t.Setenv("CALDERA_CACHE_DIR", "")
	t.Setenv("XDG_CACHE_HOME", "/somewhere")
	t.Setenv("HOME", "/somewhere")
	if p := PipelineCachePath(info); !strings.Contains(p, filepath.Join("caldera", info.UUID+"-00000000.bin")) {
		t.Error(p)
	}
}

// The cache is written at Close, read by the next device, and a bad file is
// ignored and replaced.
func TestCacheReuse(t *testing.T) {
	in := needInstance(t)
	t.Setenv("CALDERA_CACHE_DIR", t.TempDir())
	for _, info := range in.Devices() {
		path := PipelineCachePath(info)
		cycle := func() []byte {
			d := openDevice(t, info, "")
			must(newAffine(d, 3))
			check(t, d.Close())
			file, err := os.ReadFile(path)
			check(t, err)
			if _, err := decodeCache(info, file); err != nil {
				t.Fatal(err)
			}
			return file
		}
		file := cycle()
		t.Logf("%s: %d bytes", info.Name, len(file))
		cycle()
		file[len(file)-1] ^= 0x80
		check(t, os.WriteFile(path, file, 0o644))
		d := openDevice(t, info, "")
		if _, err := os.Stat(path); err == nil {
			t.Error("the bad file was kept")
		}
		check(t, d.Close()) // nothing was compiled, nothing is written
		if _, err := os.Stat(path); err == nil {
			t.Error("an empty cache was written")
		}
		cycle()
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*.bin.*")); len(left) > 0 {
			t.Errorf("left %v", left)
		}
		// The driver refuses what was read: start afresh.
		failing, err := Open(Config{Faults: []Fault{{"vkCreatePipelineCache", 1, ErrorInitializationFailed}}})
		check(t, err)
		d = must(failing.NewDevice(failing.Devices()[info.Index], must(ProfileFor(info, ""))))
		if _, err := os.Stat(path); err == nil {
			t.Error("the refused file was kept")
		}
		must(newAffine(d, 3))
		failing.Close()
	}
}
