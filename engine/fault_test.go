package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/demo"
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
	e.die.Device.InjectFault(call, 1, vk.Timeout)
	if _, err := s.Last(ctx, tokens[4:]); err == nil {
		t.Fatal("a failed wait was not reported")
	}
	time.Sleep(100 * time.Millisecond)
	if _, err := s.Last(ctx, tokens[4:]); err == nil {
		t.Fatal("the session went on from an unknown state")
	}
	s.Reset()
	var got []float32
	for range 100 {
		// The step that was given up may still be running.
		if got, err = s.Last(ctx, tokens); err == nil {
			break
		}
		s.Reset()
		time.Sleep(20 * time.Millisecond)
	}
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
