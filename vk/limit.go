package vk

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// DefaultLimit is how long submitted work may take unless SetLimit says
// otherwise.
const DefaultLimit = 10 * time.Minute

// hangGrace is how much longer a device that hangs is waited for, once, before
// what it may still be using is given up.
const hangGrace = 2 * time.Second

// limit is the time limit of a device's submissions, and what came of it.
type limit struct {
	after atomic.Int64 // nanoseconds, 0 for DefaultLimit
	hung  atomic.Bool  // it was exceeded
	spent atomic.Bool  // the grace after it, too
}

// A hangError is work that did not end within the time limit.
type hangError struct {
	op    string
	limit time.Duration
}

func (e *hangError) Error() string {
	return fmt.Sprintf("vk: %s: submitted work has not ended within the time limit of %s; the device hangs", e.op, e.limit)
}

// Is reports whether e is what target stands for. A device that hangs counts as
// lost: nothing can be known of what it works with.
func (e *hangError) Is(target error) bool {
	return target == ErrHang || target == ErrDeviceLost || target == ErrTimeout
}

// SetLimit bounds how long a submission may take, from its beginning on or
// since the end of the one before it. A device that takes longer hangs and
// counts as lost.
func (d *Device) SetLimit(limit time.Duration) { d.limit.after.Store(int64(max(limit, 1))) }

// Limit returns how long a submission may take.
func (d *Device) Limit() time.Duration {
	if n := d.limit.after.Load(); n != 0 {
		return time.Duration(n)
	}
	return DefaultLimit
}

// hang notes that the device has exceeded its limit.
func (d *Device) hang(op string) error {
	d.limit.hung.Store(true)
	d.lost.Store(true)
	return &hangError{op, d.Limit()}
}

// Await blocks until the work is done, but no longer than the device's time
// limit. The error then wraps ErrHang and ErrDeviceLost, and the device counts
// as lost.
func (t *Ticket) Await() error {
	if err := t.Wait(t.d.Limit()); err != nil {
		return t.d.late(err)
	}
	return nil
}

// Look blocks until the work is done or for d, which is no error. Begun is when
// the work was submitted, or when the device came to it: past the time limit
// since then the device hangs, as in Await.
func (t *Ticket) Look(d time.Duration, begun time.Time) error {
	err := t.Wait(d)
	var e *Error
	if err == nil || !errors.As(err, &e) || e.Result != Timeout {
		return err
	}
	if time.Since(begun) > t.d.Limit() {
		return t.d.hang(e.Op)
	}
	return nil
}

// late makes the error of a wait that timed out that of a hang. It is apart from
// Await so that a wait that ends well allocates nothing.
func (d *Device) late(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Result == Timeout {
		return d.hang(e.Op)
	}
	return err
}

// Quiesce blocks until nothing that was submitted runs any more, whether or not
// the device is lost, so that what its work uses can be freed. After a failed
// call it must come before that: the call may have failed while work ran. The
// only error is that of a device that hangs, and wraps ErrHang. No fault strikes
// it.
func (d *Device) Quiesce() error {
	s := &d.submits
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done.Load() >= s.serial {
		return nil
	}
	wait := d.Limit()
	if d.limit.hung.Load() {
		wait = min(wait, hangGrace)
		if d.limit.spent.Swap(true) {
			wait = 0
		}
	}
	op, r := "vkWaitSemaphores", Success
	if s.timeline != 0 {
		r = d.raw.waitTimeline(s.timeline, s.serial, uint64(wait))
	} else {
		op = "vkWaitForFences"
		end := time.Now().Add(wait)
		for _, f := range s.fences {
			if r = d.raw.waitFence(f.handle, uint64(max(0, time.Until(end)))); r != Success {
				break
			}
		}
	}
	switch r {
	case Success:
		s.raise(s.serial)
	case Timeout:
		return d.hang(op)
	case ErrorDeviceLost:
		d.lost.Store(true)
	default:
		// There was no memory to wait with.
		if d.raw.waitIdle() == ErrorDeviceLost {
			d.lost.Store(true)
		}
	}
	return nil
}
