package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/vk"
)

func TestExitCode(t *testing.T) {
	p := sample.Neutral()
	p.TopP = 2
	tests := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything"), 1},
		{usagef("wrong"), 2},
		{fmt.Errorf("wrapped: %w", usagef("wrong")), 2},
		{p.Validate(), 2},
		{fmt.Errorf("%w: bad file", engine.ErrModel), 3},
		{vk.ErrNoLoader, 4},
		{fmt.Errorf("%w: install it", vk.ErrNoDevice), 4},
		{vk.ErrUnsupported, 4},
		{&vk.Error{Op: "vkCreateInstance", Result: vk.ErrorIncompatibleDriver}, 4},
		{vk.ErrOutOfDeviceMemory, 5},
		{fmt.Errorf("scratch: %w", &vk.Error{Op: "vkAllocateMemory", Result: vk.ErrorOutOfDeviceMemory}), 5},
		{fmt.Errorf("%w: needs more", engine.ErrDoesNotFit), 5},
		{vk.ErrDeviceLost, 6},
		{errors.Join(&vk.Error{Op: "vkQueueSubmit", Result: vk.ErrorDeviceLost}, vk.ErrOutOfDeviceMemory), 6},
		{fmt.Errorf("%w: layer 3", errCheck), 7},
		{errInterrupted, 130},
		{fmt.Errorf("chunk 3: %w", context.Canceled), 130},
	}
	for _, tt := range tests {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestMessage(t *testing.T) {
	err := errors.Join(errors.New("one"), errors.New("two\x1b[31m"))
	if got, want := message(err), `one; two\x1b[31m`; got != want {
		t.Errorf("message is %q, want %q", got, want)
	}
	got := message(fmt.Errorf("state: %w", vk.ErrOutOfDeviceMemory))
	if !strings.Contains(got, "--ctx") {
		t.Errorf("message %q gives no advice", got)
	}
}
