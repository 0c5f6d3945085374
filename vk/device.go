package vk

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// A Device is a logical device with one compute queue. Several may be open in
// one process, also on one physical device; they share nothing.
type Device struct {
	in      *Instance
	id      uint16
	info    DeviceInfo
	profile Profile
	raw     rawDevice
	family  int

	faults faults
	lost   atomic.Bool
	closed atomic.Bool
	count  counters
	limit  limit

	closing sync.Mutex // guards the next two
	gone    bool       // everything has been freed
	left    int        // objects that were there when it was

	mu      sync.Mutex // guards owned and layouts
	owned   map[owned]struct{}
	layouts map[layoutKey]*layout

	mem       memory
	cache     pipelineCache
	sets      *SetPool
	recording sync.Mutex // guards the command pool
	commands  handle     // VkCommandPool
	submits   submitter
	stage     stage
}

// owned is an object that a device frees when it is closed.
type owned interface{ release() }

// deviceIDs numbers devices, so that objects of different devices are not mixed.
var deviceIDs atomic.Uint32

// NewDevice makes a logical device that has what the profile has and nothing
// more. The error wraps ErrUnsupported when the device lacks part of the floor
// or of the profile.
func (in *Instance) NewDevice(info DeviceInfo, p Profile) (*Device, error) {
	if m := info.Missing(); len(m) > 0 {
		return nil, unsupported("device %s lacks %v", info, m)
	}
	if m := p.Features.Without(info.Features); len(m) > 0 {
		return nil, unsupported("device %s lacks %v of profile %q", info, m, p.Name)
	}
	if !slices.ContainsFunc(in.devices, func(d DeviceInfo) bool { return d.phys == info.phys }) {
		return nil, invalid("device %s is not of this instance", info)
	}
	d := &Device{
		in: in, id: uint16(deviceIDs.Add(1)), info: info, profile: p, family: info.computeQueue(),
		owned: map[owned]struct{}{}, layouts: map[layoutKey]*layout{},
	}
	for _, f := range in.cfg.Faults {
		d.faults.arm(f)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return nil, ErrClosed
	}
	if err := in.rejects(info, p); err != nil {
		return nil, err
	}
	op := "vkCreateDevice"
	if err := d.do(op, info.Name, func() (r Result) {
		d.raw, op, r = in.raw.newDevice(info.phys, d.family, p.Features.bits())
		return r
	}); err != nil {
		return nil, err
	}
	if err := d.setup(); err != nil {
		d.teardown()
		return nil, err
	}
	in.live[d] = struct{}{}
	return d, nil
}

// setup makes what every device needs.
func (d *Device) setup() error {
	err := d.do("vkCreateCommandPool", "", func() (r Result) {
		d.commands, r = d.raw.createCommandPool(d.family)
		return r
	})
	if err != nil {
		return err
	}
	if err := d.submits.setup(d); err != nil {
		return err
	}
	d.mem.setup(d)
	d.sets = d.NewSetPool()
	return d.cache.load(d)
}

// Close waits for the device, saves its pipeline cache, and frees the device
// and everything made from it. Freeing such an object afterwards does nothing.
// Close may be called twice. The error is that of saving the cache or of
// waiting; the device is closed nevertheless. Only a device that does not come
// to an end within its time limit is left as it is, with an error that wraps
// ErrHang: what it may still be using must not be freed, host memory that it
// imported included. Close may then be called again later.
func (d *Device) Close() error {
	d.closing.Lock()
	defer d.closing.Unlock()
	if d.gone {
		return nil
	}
	d.closed.Store(true)
	if err := d.Quiesce(); err != nil {
		return fmt.Errorf("the device stays open: %w", err)
	}
	d.in.mu.Lock()
	delete(d.in.live, d)
	d.in.mu.Unlock()
	err := d.do("vkDeviceWaitIdle", "", d.raw.waitIdle)
	if !d.lost.Load() {
		if saveErr := d.cache.save(d); err == nil {
			err = saveErr
		}
	}
	d.stage.free()
	d.sets.Free()
	d.mu.Lock()
	d.left = len(d.owned)
	d.mu.Unlock()
	d.teardown()
	d.gone = true
	return err
}

// Left is how many objects the device had to free when it was closed because
// those who made them had not. They are no leak of Vulkan's, but somebody has
// lost them.
func (d *Device) Left() int {
	d.closing.Lock()
	defer d.closing.Unlock()
	return d.left
}

// teardown frees everything in an order that is valid from any state.
func (d *Device) teardown() {
	d.closed.Store(true)
	// An injected failure may have hidden work that is still running.
	d.raw.waitIdle()
	d.mu.Lock()
	all := d.owned
	d.owned = nil
	layouts := d.layouts
	d.layouts = nil
	d.mu.Unlock()
	for o := range all {
		o.release()
	}
	for _, l := range layouts {
		d.raw.destroyLayout(l.layout)
		d.raw.destroySetLayout(l.set)
	}
	d.mem.teardown(d)
	d.submits.teardown(d)
	if d.cache.handle != 0 {
		d.raw.destroyCache(d.cache.handle)
	}
	if d.commands != 0 {
		d.raw.destroyCommandPool(d.commands)
	}
	d.raw.destroy()
	d.raw.free()
}

// own registers an object to be freed at Close.
func (d *Device) own(o owned) {
	d.mu.Lock()
	if d.owned != nil {
		d.owned[o] = struct{}{}
	}
	d.mu.Unlock()
}

// disown reports whether o was still to be freed, and takes it out.
func (d *Device) disown(o owned) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.owned[o]; !ok {
		return false
	}
	delete(d.owned, o)
	return true
}

// usable returns an error when the device is closed or lost.
func (d *Device) usable(op string) error {
	if d.closed.Load() {
		return ErrClosed
	}
	if d.lost.Load() {
		return &Error{op, ErrorDeviceLost, "the device was lost earlier"}
	}
	return nil
}

// Info returns the description of the physical device.
func (d *Device) Info() DeviceInfo { return d.info }

// Profile returns the profile the device was made with.
func (d *Device) Profile() Profile { return d.profile }

// Lost reports whether the device was lost. A lost device can only be closed.
func (d *Device) Lost() bool { return d.lost.Load() }

// WaitIdle blocks until all submitted work is done, for no longer than the time
// limit.
func (d *Device) WaitIdle() error {
	if err := d.usable("vkDeviceWaitIdle"); err != nil {
		return err
	}
	if err := d.Quiesce(); err != nil {
		return err
	}
	// The queue must not be submitted to meanwhile.
	d.submits.mu.Lock()
	defer d.submits.mu.Unlock()
	return d.do("vkDeviceWaitIdle", "", d.raw.waitIdle)
}

// Heaps returns the device's heaps, with budget and usage as they are now when
// the profile has MemoryBudget, else -1.
func (d *Device) Heaps() []Heap {
	heaps := slices.Clone(d.info.Heaps)
	if d.profile.Features.MemoryBudget && !d.closed.Load() {
		d.in.raw.budget(d.info.phys, heaps)
	}
	return heaps
}

// counters is what Stats is read from.
type counters struct {
	submits, buffers, dispatches, barriers, copies, pipelines, recordings, allocations, uploaded, downloaded atomic.Int64
}

// Stats counts what a device did since it was made.
type Stats struct {
	Submits        int64 // queue submissions, staging copies included
	CommandBuffers int64 // command buffers submitted
	Dispatches     int64 // dispatches submitted
	Barriers       int64 // barriers submitted
	Copies         int64 // copies and fills submitted
	Pipelines      int64 // pipelines made
	Recordings     int64 // command buffers recorded
	Allocations    int64 // device memory allocations made
	Uploaded       int64 // bytes
	Downloaded     int64 // bytes
}

// Stats returns the counters.
func (d *Device) Stats() Stats {
	c := &d.count
	return Stats{
		c.submits.Load(), c.buffers.Load(), c.dispatches.Load(), c.barriers.Load(), c.copies.Load(),
		c.pipelines.Load(), c.recordings.Load(), c.allocations.Load(), c.uploaded.Load(), c.downloaded.Load(),
	}
}

// Add returns the sum s + t, for what several devices did.
func (s Stats) Add(t Stats) Stats {
	return Stats{
		s.Submits + t.Submits, s.CommandBuffers + t.CommandBuffers, s.Dispatches + t.Dispatches, s.Barriers + t.Barriers, s.Copies + t.Copies,
		s.Pipelines + t.Pipelines, s.Recordings + t.Recordings, s.Allocations + t.Allocations, s.Uploaded + t.Uploaded, s.Downloaded + t.Downloaded,
	}
}

// Sub returns the difference s - t, for counting what one step did.
func (s Stats) Sub(t Stats) Stats {
	return Stats{
		s.Submits - t.Submits, s.CommandBuffers - t.CommandBuffers, s.Dispatches - t.Dispatches, s.Barriers - t.Barriers, s.Copies - t.Copies,
		s.Pipelines - t.Pipelines, s.Recordings - t.Recordings, s.Allocations - t.Allocations, s.Uploaded - t.Uploaded, s.Downloaded - t.Downloaded,
	}
}
