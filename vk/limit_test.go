package vk

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

// slow returns a command buffer that keeps a device busy for a while.
func slow(t *testing.T, d *Device, dispatches int) *CommandBuffer {
	t.Helper()
	const n = 1 << 14
	a, b := must(d.NewBuffer(4*n, DeviceLocal)), must(d.NewBuffer(4*n, DeviceLocal))
	p := must(newAffine(d, 3))
	check(t, d.Upload(a, 0, counting(n)))
	set := must(d.NewSet(p, []Binding{{Buffer: a}, {Buffer: b}}))
	cb := must(d.NewCommandBuffer())
	var cmds []Command
	for range dispatches {
		cmds = append(cmds, Dispatch(p, set, groups(n), words(n, 1, 8000)).After())
	}
	check(t, cb.Record(cmds))
	return cb
}

// Work that exceeds the limit is a hang, of which nothing is freed while it lasts; once it has ended after all, the device
// can be closed and leaves nothing.
func TestHang(t *testing.T) {
	in := needInstance(t)
	info := must(in.Select(""))
	for _, name := range []string{"auto", "floor"} {
		before := Live()
		d := must(in.NewDevice(info, must(ProfileFor(info, name))))
		cb := slow(t, d, 8)
		d.SetLimit(time.Nanosecond)
		ticket, err := d.Submit([]*CommandBuffer{cb})
		check(t, err)
		err = ticket.Await()
		if err == nil {
			check(t, d.Close())
			t.Skip("the device is too fast")
		}
		if !errors.Is(err, ErrHang) || !errors.Is(err, ErrDeviceLost) || !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "time limit of 1ns") {
			t.Errorf("%s: %v", name, err)
		}
		if !d.Lost() {
			t.Errorf("%s: not lost", name)
		}
		if err := d.Close(); !errors.Is(err, ErrHang) {
			t.Errorf("%s: closed while work runs: %v", name, err)
		} else if Live()["VkCommandBuffer"] == before["VkCommandBuffer"] {
			t.Errorf("%s: a command buffer that runs has been freed", name)
		}
		if _, err := d.NewBuffer(4, DeviceLocal); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: a buffer of a closed device: %v", name, err)
		}
		for start := time.Now(); d.Close() != nil; time.Sleep(10 * time.Millisecond) {
			if time.Since(start) > time.Minute {
				t.Fatalf("%s: the device never ends", name)
			}
		}
		if after := Live(); !equal(before, after) {
			t.Errorf("%s: objects left: %v, before %v", name, after, before)
		}
	}
}

func equal(a, b map[string]int64) bool {
	for k := range objectNames {
		if a[objectNames[k]] != b[objectNames[k]] {
			return false
		}
	}
	return true
}

// A wait that is said to have timed out is a hang, and nothing else is.
func TestAwait(t *testing.T) {
	in := needInstance(t)
	info := must(in.Select(""))
	for _, name := range []string{"auto", "floor"} {
		d := openDevice(t, info, name)
		if d.Limit() != DefaultLimit {
			t.Errorf("the limit is %s", d.Limit())
		}
		d.SetLimit(time.Minute)
		cb := slow(t, d, 1)
		call := "vkWaitForFences"
		if d.Profile().Features.Timeline {
			call = "vkWaitSemaphores"
		}
		for _, c := range []struct {
			r    Result
			want error
		}{{ErrorOutOfHostMemory, ErrOutOfHostMemory}, {Timeout, ErrHang}} {
			d.InjectFault(call, 1, c.r)
			ticket, err := d.Submit([]*CommandBuffer{cb})
			check(t, err)
			err = ticket.Await()
			if err == nil {
				t.Skip("the device is too fast")
			}
			if !errors.Is(err, c.want) || errors.Is(err, ErrHang) != (c.r == Timeout) {
				t.Errorf("%s, %s: %v", name, c.r, err)
			}
			if d.Lost() != (c.r == Timeout) {
				t.Errorf("%s, %s: lost %v", name, c.r, d.Lost())
			}
			check(t, d.Quiesce())
			if done, err := ticket.Done(); err != nil || !done {
				t.Errorf("%s, %s: work runs after Quiesce, %v", name, c.r, err)
			}
		}
		check(t, d.Close())
	}
}

// A transfer that fails leaves nothing on its way, so that its buffer can be freed, and the next one is right.
func TestTransferFaults(t *testing.T) {
	in := needInstance(t)
	info := must(in.Select(""))
	d := openDevice(t, info, "floor")
	data := bytes.Repeat(counting(1<<18), 14) // several pieces
	got := make([]byte, len(data))
	for _, call := range Calls() {
		for _, n := range []int{1, 2, 3} {
			for _, up := range []bool{true, false} {
				b := must(d.NewBuffer(int64(len(data)), DeviceLocal))
				check(t, d.Upload(b, 0, data))
				d.InjectFault(call, n, ErrorOutOfHostMemory)
				var err error
				if up {
					err = d.Upload(b, 0, data)
				} else {
					err = d.Download(b, 0, got)
				}
				if struck := len(d.Armed()) == 0; struck != (err != nil) || struck && !errors.Is(err, ErrOutOfHostMemory) {
					t.Errorf("%s, %d: struck %v, %v", call, n, struck, err)
				}
				d.Disarm()
				b.Free() // the validation layers say if it is in use
				b = must(d.NewBuffer(int64(len(data)), DeviceLocal))
				check(t, d.Upload(b, 0, data))
				clear(got)
				check(t, d.Download(b, 0, got))
				if !bytes.Equal(got, data) {
					t.Errorf("%s, %d: the bytes differ after a fault", call, n)
				}
				b.Free()
			}
		}
	}
	check(t, d.Close())
	if n := d.Left(); n != 0 {
		t.Errorf("%d objects left", n)
	}
}
