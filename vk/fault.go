package vk

import (
	"slices"
	"sync"
	"sync/atomic"
)

// A Fault makes a Vulkan call fail in a test: the N-th call (1 = the next) of
// the named kind returns Result instead of being made.
type Fault struct {
	Call   string // such as "vkAllocateMemory"
	N      int
	Result Result
}

// faults is the set of armed faults of a device. While none is armed a call
// costs one atomic load.
type faults struct {
	armed atomic.Int32
	mu    sync.Mutex
	list  []Fault
}

func (f *faults) arm(t Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, t)
	f.armed.Store(int32(len(f.list)))
}

// strike counts a call and reports the result to pretend, if any.
func (f *faults) strike(call string) (Result, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	hit := -1
	for i := range f.list {
		if f.list[i].Call != call {
			continue
		}
		f.list[i].N--
		if f.list[i].N <= 0 && hit < 0 {
			hit = i
		}
	}
	if hit < 0 {
		return Success, false
	}
	r := f.list[hit].Result
	f.list = append(f.list[:hit], f.list[hit+1:]...)
	f.armed.Store(int32(len(f.list)))
	return r, true
}

// InjectFault arms a fault: the n-th call of the named Vulkan function on this
// device, counted from now (1 = the next), returns result instead of being
// made. Several may be armed. A fault that returns ErrorDeviceLost makes the
// device behave as lost from then on.
func (d *Device) InjectFault(call string, n int, result Result) {
	d.faults.arm(Fault{call, n, result})
}

// Armed returns the faults that have not struck, each with how many calls are
// left until it does. One that is armed far in advance so counts calls.
func (d *Device) Armed() []Fault {
	d.faults.mu.Lock()
	defer d.faults.mu.Unlock()
	return slices.Clone(d.faults.list)
}

// Disarm takes back the faults that have not struck.
func (d *Device) Disarm() {
	d.faults.mu.Lock()
	defer d.faults.mu.Unlock()
	d.faults.list = nil
	d.faults.armed.Store(0)
}

// call makes a Vulkan call, or pretends its failure. Every call that can fail
// passes here.
func (d *Device) call(op string, f func() Result) Result {
	r := Success
	hit := false
	if d.faults.armed.Load() != 0 {
		r, hit = d.faults.strike(op)
	}
	if !hit {
		r = f()
	}
	if r == ErrorDeviceLost {
		d.lost.Store(true)
	}
	return r
}

// do is call with an error.
func (d *Device) do(op, detail string, f func() Result) error {
	if r := d.call(op, f); r != Success {
		return &Error{op, r, detail}
	}
	return nil
}
