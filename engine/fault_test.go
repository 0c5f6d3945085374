package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/vk"
)

// A step whose end was not seen may have run: its session refuses to go on until it is reset, and is right
// again then. A session that goes on would be silently wrong, because the recurrent state has moved.
func TestFailedStep(t *testing.T) {
	e, err := Open(Config{Data: demo.Model(), Name: demo.Name, Context: 64})
	if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	ctx, tokens := context.Background(), []int32{2553, 558, 258, 586, 466, 309}
	row, err := s.Last(ctx, tokens)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Clone(row)

	s.Reset()
	if err := s.Prefill(ctx, tokens[:4]); err != nil {
		t.Fatal(err)
	}
	call := "vkWaitSemaphores"
	if !e.die.Device.Profile().Features.Timeline {
		call = "vkWaitForFences"
	}
	e.die.Device.InjectFault(call, 1, vk.ErrorOutOfHostMemory)
	if _, err := s.Last(ctx, tokens[4:]); err == nil {
		t.Fatal("a failed wait was not reported")
	}
	if _, err := s.Last(ctx, tokens[4:]); err == nil {
		t.Fatal("the session went on from an unknown state")
	}
	s.Reset()
	got, err := s.Last(ctx, tokens) // the step that was given up is over
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Error("the logits after a reset differ")
	}
}

// What is closed says so.
func TestClosed(t *testing.T) {
	e, err := Open(Config{Data: demo.Model(), Name: demo.Name, Context: 64, Backend: Reference})
	if err != nil {
		t.Fatal(err)
	}
	first, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	second, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := first.Prefill(ctx, []int32{1}); err == nil {
		t.Error("a closed session took tokens")
	}
	for _, k := range []int{0, -1, 65} {
		if _, err := second.Top(ctx, []int32{1}, k, nil); err == nil {
			t.Errorf("%d candidates were selected", k)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.Prefill(ctx, []int32{1}); err == nil {
		t.Error("a session of a closed engine took tokens")
	}
	if _, err := e.NewSession(); err == nil {
		t.Error("a closed engine opened a session")
	}
	if _, err := e.DecodeCounts(1); err == nil {
		t.Error("a closed engine made a plan")
	}
}

// The error of a lost device names the submission and its ops.
func TestLossNamesOps(t *testing.T) {
	for _, c := range []struct {
		name   string
		budget time.Duration
		call   string
		n      int
		r      vk.Result
		part   int
		waited bool
		text   []string
	}{
		{"lost while waiting", -1, "vkWaitSemaphores", 1, vk.ErrorDeviceLost, 1, true, []string{"a step of 3 rows by the plan of 4 rows and 8 layers: submission 1 of 1, from layer -1 token_embd (embed) to layer 8 ", "VK_ERROR_DEVICE_LOST"}},
		{"hang", -1, "vkWaitSemaphores", 1, vk.Timeout, 1, true, []string{"from layer -1 token_embd (embed) to layer 8 ", "time limit of 1h0m0s"}},
		{"lost while submitting", 1, "vkQueueSubmit", 4, vk.ErrorDeviceLost, 4, false, []string{"handing over submission 4, from layer 2 ", " to layer 2 ", " before it ended: ", "VK_ERROR_DEVICE_LOST"}},
	} {
		e, err := Open(Config{Data: demo.Model(), Name: demo.Name, Context: 64, Device: "llvmpipe", SubmitBudget: c.budget, HangTimeout: time.Hour})
		if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		e.InjectFault(c.call, c.n, c.r)
		_, err = s.Last(context.Background(), []int32{1, 2, 3})
		var step *scheduler.StepError
		if !errors.As(err, &step) || !errors.Is(err, ErrDeviceLost) || errors.Is(err, ErrHang) != (c.r == vk.Timeout) {
			t.Fatalf("%s: %v", c.name, err)
		}
		if step.Part != c.part || step.Waited != c.waited || step.Ended >= c.part {
			t.Errorf("%s: %+v", c.name, step)
		}
		for _, want := range c.text {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q lacks %q", c.name, err, want)
			}
		}
		if !errors.Is(e.Lost(), ErrDeviceLost) {
			t.Errorf("%s: Lost gives %v", c.name, e.Lost())
		}
		if err := e.Close(); err != nil {
			t.Errorf("%s: closing: %v", c.name, err)
		}
	}
}
