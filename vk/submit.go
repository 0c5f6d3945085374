package vk

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// A submitter numbers the submissions of a queue. They complete in order, so
// one number says which are done. With a timeline semaphore the number is its
// value; without, each submission has a fence.
type submitter struct {
	mu       sync.Mutex // guards the queue and everything below
	serial   uint64     // of the last submission
	done     atomic.Uint64
	timeline handle
	fences   []*fence // in flight, oldest first
	spare    []*fence
	tickets  []*Ticket
	scratch  []uint64
}

// A fence is signalled when a submission is done.
type fence struct {
	handle  handle
	serial  uint64
	waiters int
	retired bool // out of flight, to be reused when nobody waits any more
}

func (s *submitter) setup(d *Device) error {
	if !d.profile.Features.Timeline {
		return nil
	}
	return d.do("vkCreateSemaphore", "timeline", func() (r Result) {
		s.timeline, r = d.raw.createTimeline()
		return r
	})
}

func (s *submitter) teardown(d *Device) {
	if s.timeline != 0 {
		d.raw.destroySemaphore(s.timeline)
	}
	for _, f := range append(s.fences, s.spare...) {
		d.raw.destroyFence(f.handle)
	}
	s.fences, s.spare = nil, nil
}

// A Ticket stands for one submission. It may be polled and waited for any
// number of times, from several goroutines.
type Ticket struct {
	d      *Device
	serial uint64
}

// Submit queues recorded command buffers, in order, and returns at once. Work
// of later commands and submissions is ordered after it only by barriers. The
// error wraps ErrBusy when one of them still executes.
func (d *Device) Submit(cbs []*CommandBuffer) (*Ticket, error) {
	if err := d.usable("vkQueueSubmit"); err != nil {
		return nil, err
	}
	s := &d.submits
	s.mu.Lock()
	defer s.mu.Unlock()
	serial := s.serial + 1
	s.scratch = s.scratch[:0]
	for i, c := range cbs {
		if c == nil || c.d != d || !c.recorded {
			return nil, invalid("command buffer %d is not recorded, or of another device", i)
		}
		if c.last > s.done.Load() {
			if err := s.poll(d); err != nil {
				return nil, err
			}
		}
		if c.last > s.done.Load() {
			return nil, fmt.Errorf("vk: vkQueueSubmit: command buffer %d: %w", i, ErrBusy)
		}
		for _, e := range cbs[:i] {
			if e == c {
				return nil, fmt.Errorf("vk: vkQueueSubmit: command buffer %d is there twice: %w", i, ErrBusy)
			}
		}
		s.scratch = append(s.scratch, uint64(uintptr(unsafe.Pointer(c.cb))))
	}
	var f *fence
	var signal handle
	if s.timeline == 0 {
		var err error
		if f, err = s.fence(d); err != nil {
			return nil, err
		}
		f.serial = serial
		signal = f.handle
	}
	r := d.call("vkQueueSubmit", func() Result { return d.raw.submit(s.scratch, s.timeline, serial, signal) })
	if r != Success {
		if f != nil {
			s.spare = append(s.spare, f)
		}
		return nil, &Error{"vkQueueSubmit", r, fmt.Sprintf("%d command buffers", len(cbs))}
	}
	if f != nil {
		s.fences = append(s.fences, f)
	}
	s.serial = serial
	d.count.submits.Add(1)
	d.count.buffers.Add(int64(len(cbs)))
	var dispatches, barriers, copies int64
	for _, c := range cbs {
		c.last = serial
		dispatches += c.dispatches
		barriers += c.barriers
		copies += c.copies
	}
	d.count.dispatches.Add(dispatches)
	d.count.barriers.Add(barriers)
	d.count.copies.Add(copies)
	return s.ticket(d, serial), nil
}

// ticket returns a released ticket, or a new one.
func (s *submitter) ticket(d *Device, serial uint64) *Ticket {
	if n := len(s.tickets); n > 0 {
		t := s.tickets[n-1]
		s.tickets = s.tickets[:n-1]
		*t = Ticket{d, serial}
		return t
	}
	return &Ticket{d, serial}
}

// fence returns an unsignalled fence.
func (s *submitter) fence(d *Device) (*fence, error) {
	if len(s.spare) == 0 {
		if err := s.poll(d); err != nil {
			return nil, err
		}
	}
	if n := len(s.spare); n > 0 {
		f := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return f, nil
	}
	f := &fence{}
	err := d.do("vkCreateFence", "", func() (r Result) {
		f.handle, r = d.raw.createFence()
		return r
	})
	return f, err
}

// reuse resets a fence that is out of flight.
func (s *submitter) reuse(d *Device, f *fence) error {
	f.retired = false
	if err := d.do("vkResetFences", "", func() Result { return d.raw.resetFence(f.handle) }); err != nil {
		d.raw.destroyFence(f.handle)
		return err
	}
	s.spare = append(s.spare, f)
	return nil
}

// poll finds out which submissions are done. It needs mu in fence mode only.
func (s *submitter) poll(d *Device) error {
	if s.timeline != 0 {
		var v uint64
		if err := d.do("vkGetSemaphoreCounterValue", "", func() (r Result) {
			v, r = d.raw.timelineValue(s.timeline)
			return r
		}); err != nil {
			return err
		}
		if v == math.MaxUint64 {
			// What some drivers report of a lost device.
			d.lost.Store(true)
			return &Error{"vkGetSemaphoreCounterValue", ErrorDeviceLost, "the timeline jumped"}
		}
		s.raise(v)
		return nil
	}
	for len(s.fences) > 0 {
		f := s.fences[0]
		r := d.call("vkGetFenceStatus", func() Result { return d.raw.fenceStatus(f.handle) })
		if r == NotReady {
			return nil
		}
		if r != Success {
			return &Error{"vkGetFenceStatus", r, ""}
		}
		s.fences = append(s.fences[:0], s.fences[1:]...)
		s.raise(f.serial)
		if f.waiters > 0 {
			f.retired = true
			continue
		}
		if err := s.reuse(d, f); err != nil {
			return err
		}
	}
	return nil
}

// raise notes that everything up to serial is done.
func (s *submitter) raise(serial uint64) {
	for {
		old := s.done.Load()
		if serial <= old || s.done.CompareAndSwap(old, serial) {
			return
		}
	}
}

// finished reports whether a submission is done, without waiting.
func (s *submitter) finished(d *Device, serial uint64) (bool, error) {
	if s.done.Load() >= serial {
		return true, nil
	}
	if d.closed.Load() {
		return false, ErrClosed
	}
	if d.lost.Load() {
		return false, &Error{"vkQueueSubmit", ErrorDeviceLost, "the device was lost"}
	}
	if s.timeline == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	if err := s.poll(d); err != nil {
		return false, err
	}
	return s.done.Load() >= serial, nil
}

// Done reports whether the work is done. It never waits.
func (t *Ticket) Done() (bool, error) { return t.d.submits.finished(t.d, t.serial) }

// Wait blocks until the work is done, or for the timeout; a negative one never
// ends. The error wraps ErrTimeout or ErrDeviceLost. The thread is blocked too:
// poll Done where many wait.
func (t *Ticket) Wait(timeout time.Duration) error {
	d, s := t.d, &t.d.submits
	if done, err := s.finished(d, t.serial); done || err != nil {
		return err
	}
	ns := uint64(math.MaxUint64)
	if timeout >= 0 {
		ns = uint64(timeout)
	}
	if s.timeline != 0 {
		if err := d.do("vkWaitSemaphores", "", func() Result { return d.raw.waitTimeline(s.timeline, t.serial, ns) }); err != nil {
			return err
		}
		s.raise(t.serial)
		return nil
	}
	s.mu.Lock()
	var f *fence
	for _, g := range s.fences {
		if g.serial == t.serial {
			f = g
			f.waiters++
			break
		}
	}
	s.mu.Unlock()
	if f == nil {
		return nil // done meanwhile
	}
	err := d.do("vkWaitForFences", "", func() Result { return d.raw.waitFence(f.handle, ns) })
	s.mu.Lock()
	defer s.mu.Unlock()
	f.waiters--
	if f.retired && f.waiters == 0 {
		if rerr := s.reuse(d, f); err == nil {
			err = rerr
		}
	}
	if err != nil {
		return err
	}
	s.raise(t.serial)
	return s.poll(d)
}

// Release gives the ticket back, to be used again by a later Submit. It is
// optional, and the ticket must not be used afterwards.
func (t *Ticket) Release() {
	s := &t.d.submits
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickets = append(s.tickets, t)
}
