package scheduler

import (
	"fmt"
	"strings"
)

// A StepError is a step that failed on the device. It says what had been handed to the driver, so that the log of a lost device
// tells where to look for the kernel at fault.
type StepError struct {
	Rows        int    // of the step
	Plan        int    // rows of its plan
	Layers      int    // of the plan
	Part        int    // the submission that failed, from 1
	Parts       int    // submissions that were made, without one that the driver did not take
	Ended       int    // submissions before it that are known to have ended
	First, Last string // ops of the submission
	Waited      bool   // the driver took it, and it did not end well
	Err         error
}

// Error describes the step in one line.
func (e *StepError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "a step of %d rows by the plan of %d rows and %d layers: ", e.Rows, e.Plan, e.Layers)
	if e.Waited {
		fmt.Fprintf(&b, "submission %d of %d", e.Part, e.Parts)
	} else {
		fmt.Fprintf(&b, "handing over submission %d", e.Part)
	}
	fmt.Fprintf(&b, ", from %s to %s", e.First, e.Last)
	if e.Part > 1 {
		fmt.Fprintf(&b, ", with %d before it ended", e.Ended)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap returns the device's error.
func (e *StepError) Unwrap() error { return e.Err }

// failed is the error of the submission of command buffers [first, last) of the stage that the flight is on, which is part i there, or was
// to be.
func (f *Flight) failed(i, first, last int, err error) error {
	p := f.plan
	s := p.stages[f.stage]
	if len(s.units) < last || first >= last {
		return err
	}
	e := &StepError{
		Rows: f.rows, Plan: p.Graph.Shape.Rows, Layers: max(0, p.Graph.layer), Part: i + 1, Parts: len(f.parts), Waited: i < len(f.parts), Err: err,
		First: p.Graph.Nodes[s.units[first].first].Label(), Last: p.Graph.Nodes[s.units[last-1].last-1].Label(),
	}
	for _, x := range f.parts[:i] {
		if done, err := x.ticket.Done(); err == nil && done {
			e.Ended++
		}
	}
	return e
}
