package engine

import (
	"errors"
	"time"

	"github.com/calderaml/caldera/vk"
)

var (
	// ErrDeviceLost reports that the driver gave the device up, or that it hangs. An engine cannot go on after it.
	ErrDeviceLost = vk.ErrDeviceLost
	// ErrHang is in the chain of the ErrDeviceLost of a device that exceeded Config.HangTimeout.
	ErrHang = vk.ErrHang
	// ErrOutOfMemory reports that the device had no memory for something while requests ran. Others may go on.
	ErrOutOfMemory = vk.ErrOutOfDeviceMemory
)

// The default times after which a device counts as hanging. A GPU's submissions take [DefaultSubmitBudget], or what a layer
// takes, and its driver gives up on one after seconds. On a software device a step is one submission, of up to a batch of rows.
const (
	DefaultHangTimeout  = time.Minute
	SoftwareHangTimeout = vk.DefaultLimit
)

// hangTimeout is the time for a device with a profile.
func (c *Config) hangTimeout(p vk.Profile) time.Duration {
	switch {
	case c.HangTimeout > 0:
		return c.HangTimeout
	case p.Software:
		return SoftwareHangTimeout
	}
	return DefaultHangTimeout
}

// quiesce waits until nothing runs on the devices. With an error one hangs, and nothing that it may use can be freed.
func (e *Engine) quiesce() error {
	var errs []error
	for _, d := range e.where.Dies {
		errs = append(errs, d.Device.Quiesce())
	}
	return errors.Join(errs...)
}

// failed takes in that something failed on the device. What had been submitted before that has ended when it returns, so that
// the next step does not find the memory of this one in use. e.mu is held.
func (e *Engine) failed(err error) {
	_ = e.quiesce() // a device that hangs is lost, which the next step finds out
	e.noteLoss(err)
}

// noteLoss keeps the first error that tells of a lost device.
func (e *Engine) noteLoss(err error) {
	if errors.Is(err, ErrDeviceLost) {
		e.loss.CompareAndSwap(nil, &err)
	}
}

// Lost returns why the engine cannot go on, once its device has been lost, and nil before. A device may be lost while a
// snapshot is taken, which fails no request.
func (e *Engine) Lost() error {
	if p := e.loss.Load(); p != nil {
		return *p
	}
	return nil
}
