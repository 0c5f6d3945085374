package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// interrupts is what a signal does: it stops what a command has set, and the program where there is nothing to stop.
type interrupts struct {
	mu     sync.Mutex
	stop   context.CancelFunc
	hangup func() // what SIGHUP does in place of ending the program
}

// catch returns a context that the next interrupt cancels, instead of the program's. Done ends that.
func (i *interrupts) catch(ctx context.Context) (own context.Context, done func()) {
	own, cancel := context.WithCancel(ctx)
	i.mu.Lock()
	i.stop = cancel
	i.mu.Unlock()
	return own, func() {
		i.mu.Lock()
		i.stop = nil
		i.mu.Unlock()
		cancel()
	}
}

// interrupt reports whether there was something to stop.
func (i *interrupts) interrupt() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stop == nil {
		return false
	}
	i.stop()
	i.stop = nil
	return true
}

// onHangup has SIGHUP call f instead of ending the program, until the function that it returns is called.
func onHangup(ctx context.Context, f func()) (done func()) {
	i := interruptsOf(ctx)
	set := func(f func()) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.hangup = f
	}
	set(f)
	return func() { set(nil) }
}

// hungUp reports whether there was something to do about a SIGHUP.
func (i *interrupts) hungUp() bool {
	i.mu.Lock()
	f := i.hangup
	i.mu.Unlock()
	if f != nil {
		f()
	}
	return f != nil
}

type interruptsKey struct{}

// interruptsOf are those that the program's signals go to.
func interruptsOf(ctx context.Context) *interrupts {
	if i, ok := ctx.Value(interruptsKey{}).(*interrupts); ok {
		return i
	}
	return new(interrupts)
}

// withSignals returns a context that ends with the program: an interrupt ends it unless a command catches it, other signals
// do at once. After that a second signal ends the program itself, should the first be ignored for long.
func withSignals(ctx context.Context) context.Context {
	i := new(interrupts)
	ctx, cancel := context.WithCancel(context.WithValue(ctx, interruptsKey{}, i))
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for s := range ch {
			if s == os.Interrupt && i.interrupt() || s == syscall.SIGHUP && i.hungUp() {
				continue
			}
			signal.Stop(ch)
			cancel()
			return
		}
	}()
	return ctx
}
