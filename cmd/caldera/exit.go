package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/vk"
)

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1   // anything not below
	exitUsage       = 2   // wrong command line or configuration
	exitModel       = 3   // file or model refused
	exitNoDevice    = 4   // no usable device
	exitMemory      = 5   // not enough memory
	exitLost        = 6   // device lost
	exitCheck       = 7   // a check or a benchmark's bar was not met
	exitInterrupted = 130 // SIGINT or SIGTERM
)

// A usageError is a command line or configuration that makes no sense.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usagef makes a usageError.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// asUsage marks an error as one of usage.
func asUsage(err error) error {
	var u usageError
	if errors.As(err, &u) {
		return err
	}
	return usageError{err}
}

var (
	// errCheck is in the chain of the error of a check that was not passed.
	errCheck = errors.New("check failed")
	// errInterrupted ends a command that the user stopped.
	errInterrupted = errors.New("interrupted")
)

// advice is what to do about errors whose text does not say it.
var advice = []struct {
	target error
	text   string
}{
	{vk.ErrOutOfDeviceMemory, "a smaller --ctx or --batch, --kv q8_0, fewer --slots or a smaller model needs less memory"},
	{vk.ErrHang, "a slow device may need a longer --hang-timeout; if it hangs again run caldera verify"},
	{vk.ErrDeviceLost, "the driver gave the device up: run again, and if that fails too run caldera verify"},
	{engine.ErrContext, "see --ctx"},
	{gguf.ErrMissing, "caldera inspect shows what the file holds"},
}

// exitCode is the exit code for an error.
func exitCode(err error) int {
	var usage usageError
	var param *sample.ParamError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &usage), errors.As(err, &param), errors.Is(err, engine.ErrContext):
		return exitUsage
	case errors.Is(err, errCheck), errors.Is(err, engine.ErrSelfTest):
		return exitCheck
	case errors.Is(err, vk.ErrDeviceLost):
		return exitLost
	case errors.Is(err, vk.ErrOutOfDeviceMemory), errors.Is(err, vk.ErrOutOfHostMemory), errors.Is(err, engine.ErrDoesNotFit):
		return exitMemory
	case errors.Is(err, vk.ErrNoLoader), errors.Is(err, vk.ErrNoDevice), errors.Is(err, vk.ErrUnsupported):
		return exitNoDevice
	case errors.Is(err, engine.ErrModel), errors.Is(err, gguf.ErrChanged):
		return exitModel
	}
	return exitFailed
}

// message is an error as one line that says what to do.
func message(err error) string {
	s := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	for _, a := range advice {
		if errors.Is(err, a.target) {
			s += " (" + a.text + ")"
			break
		}
	}
	return printable(s)
}

// report prints an error, if there is one, and returns the exit code.
func (a *app) report(err error) int {
	if err != nil {
		fmt.Fprintf(a.errw, "%s %s\n", a.paint(a.errColor, red, "caldera:"), message(err))
	}
	return exitCode(err)
}
