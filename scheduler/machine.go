package scheduler

import (
	"fmt"
	"slices"
	"time"
)

// A Machine carries steps on from die to die. A step is idle, on die k, on the last die, or has ended; several may be under
// way, one behind the other, so that dies work at the same time. Plan.Begin and Poll never wait, and there is no thread: whoever
// waits for one step carries the others on too.
//
// Steps keep their order on every die, so that a sequence may have several under way. One goroutine at a time begins steps, polls and
// waits.
type Machine struct {
	// Trace, if not nil, is told what each die did.
	Trace func(Stretch)

	air    []*Flight   // under way, in the order in which they began
	busy   []time.Time // by die, when it had done what is known to have ended
	looked time.Time   // when it was last seen whether anything has ended
}

// A Stretch is the time that a die took for its part of a step, as the host saw it, or the time that the host took to carry rows to
// a die.
type Stretch struct {
	Die        int
	Carry      bool
	Rows       int
	Begin, End time.Time
}

// A Flight is a step that has begun.
type Flight struct {
	plan  *Plan
	rows  int
	stage int    // the die that it is on
	parts []part // what that die was given, in order
	next  int    // the first part that is not known to have ended
	ended bool
	err   error

	timing Timing
	bytes  int64 // that were carried
}

// part is a submission of a stage.
type part struct {
	ticket      ticket
	first, last int // command buffers [first, last)
	begun       time.Time
}

// A ticket stands for a submission; see [vk.Ticket].
type ticket interface {
	Done() (bool, error)
	Await() error
	Look(d time.Duration, begun time.Time) error
	Release()
}

func (f *Flight) reset(rows int) {
	*f = Flight{plan: f.plan, rows: rows, parts: f.parts[:0], stage: -1}
}

// Ended reports whether the step has ended, as far as the machine was asked, and how.
func (f *Flight) Ended() (bool, error) { return f.ended, f.err }

// Wait waits for the end of the step and returns where the host's time went. Other steps are carried on meanwhile.
func (f *Flight) Wait() (Timing, error) {
	if f.plan == nil {
		return f.timing, f.err // of a Reference
	}
	start := time.Now()
	err := f.plan.machine.wait(f)
	f.timing.Wait += time.Since(start)
	return f.timing, err
}

// Carried is how many bytes of rows the host has carried from die to die.
func (f *Flight) Carried() int64 { return f.bytes }

// begin takes in a step whose step buffers are written.
func (m *Machine) begin(f *Flight) error {
	m.air = append(m.air, f)
	if !m.mayEnter(len(m.air)-1, 0) {
		return nil // Poll sees to it
	}
	if f.enter(m); f.err != nil {
		m.air = m.air[:len(m.air)-1]
	}
	return f.err
}

// mayEnter reports whether flight i may be given to a die: the one before it has been.
func (m *Machine) mayEnter(i, stage int) bool { return i == 0 || m.air[i-1].stage >= stage }

// enter carries the flight's rows to the next die that has something to do and submits what that does.
func (f *Flight) enter(m *Machine) {
	p := f.plan
	f.parts, f.next = f.parts[:0], 0
	f.stage++
	if f.stage > 0 {
		start := time.Now()
		n, err := p.carry(f.stage, f.rows)
		if err != nil {
			f.fail(err)
			return
		}
		now := time.Now()
		f.timing.Carry, f.bytes = f.timing.Carry+now.Sub(start), f.bytes+n
		if m.Trace != nil && n > 0 {
			m.Trace(Stretch{Die: f.stage, Carry: true, Rows: f.rows, Begin: start, End: now})
		}
	}
	s := p.stages[f.stage]
	s.stamps.ran = true
	for i := 0; i < len(s.pace.took); {
		n := s.pace.next(i, f.rows)
		t, err := s.submit(i, n)
		if err != nil {
			f.fail(f.failed(len(f.parts), i, n, err))
			return
		}
		f.parts = append(f.parts, part{t, i, n, time.Now()})
		i = n
	}
}

// fail ends the flight.
func (f *Flight) fail(err error) {
	if p := f.plan; len(p.stages) > 1 {
		err = fmt.Errorf("device %d, %s: %w", f.stage, p.stages[f.stage].name, err)
	}
	f.err, f.ended = err, true
}

// failPart ends the flight with the error of its next submission.
func (f *Flight) failPart(err error) {
	x := f.parts[f.next]
	f.fail(f.failed(f.next, x.first, x.last, err))
}

// settled reports whether nothing of the flight is running any more, without waiting: it has ended, or it failed and
// what was submitted of it has run out.
func (f *Flight) settled() (bool, error) {
	if !f.ended {
		return f.plan == nil, nil
	}
	for f.next < len(f.parts) {
		if done, err := f.parts[f.next].ticket.Done(); err != nil || !done {
			return done, err
		}
		f.next++
	}
	return true, nil
}

// noteParts takes in the submissions that have ended, and reports whether the die has done its part.
func (f *Flight) noteParts(m *Machine) bool {
	for f.next < len(f.parts) {
		done, err := f.parts[f.next].ticket.Done()
		if err != nil {
			f.failPart(err)
			return true
		}
		if !done {
			return false
		}
		f.note(m)
	}
	return true
}

// note takes in the end of the flight's next submission.
func (f *Flight) note(m *Machine) {
	s, x, now := f.plan.stages[f.stage], &f.parts[f.next], time.Now()
	for len(m.busy) <= f.stage {
		m.busy = append(m.busy, time.Time{})
	}
	// The die begins with it when it has it and what came before has ended.
	from := x.begun
	if m.busy[f.stage].After(from) {
		from = m.busy[f.stage]
	}
	m.busy[f.stage] = now
	// What ended while nobody looked, as when a plan was made meanwhile, may have ended long before.
	if s.pace.budget > 0 && now.Sub(m.looked) <= max(s.pace.budget/10, time.Millisecond) {
		s.pace.note(x.first, x.last, f.rows, now.Sub(from))
	}
	if m.Trace != nil {
		m.Trace(Stretch{Die: f.stage, Rows: f.rows, Begin: from, End: now})
	}
	x.ticket.Release()
	f.next++
}

// Poll carries on what can be carried on, and reports whether anything was. It never waits.
func (m *Machine) Poll() bool {
	moved := false
	defer func() { m.looked = time.Now() }()
	for i := 0; i < len(m.air); i++ {
		f := m.air[i]
		for !f.ended {
			before := f.next
			if f.stage >= 0 && !f.noteParts(m) {
				moved = moved || f.next > before
				break
			}
			if f.ended {
				break // it has failed
			}
			if f.stage == len(f.plan.stages)-1 {
				f.ended = true
				break
			}
			if !m.mayEnter(i, f.stage+1) {
				break
			}
			f.enter(m)
			moved = true
		}
		if f.ended {
			m.air = slices.Delete(m.air, i, i+1)
			i--
			moved = true
		}
	}
	return moved
}

// While several steps are under way, wait looks at all of them again after a share of the time that the longest of them is with its
// die, so that no die stands still for longer than that.
const (
	lookShare = 16
	shortLook = 20 * time.Microsecond
	longLook  = 500 * time.Microsecond
)

// wait waits for the end of a step, carrying on the others meanwhile. The error of a device that is lost or hangs is a [*StepError].
func (m *Machine) wait(f *Flight) error {
	for !f.ended {
		if m.Poll() {
			continue
		}
		// Nothing holds the first one up, so that it is on a die.
		g := m.air[0]
		t := g.parts[g.next].ticket
		var err error
		if len(m.air) == 1 {
			err = t.Await()
		} else {
			err = t.Look(min(max(m.longest()/lookShare, shortLook), longLook), g.parts[g.next].begun)
		}
		m.looked = time.Now()
		if err != nil {
			g.failPart(err)
			m.air = slices.Delete(m.air, 0, 1)
		}
	}
	return f.err
}

// longest is how long ago the first of the submissions that have not ended was made.
func (m *Machine) longest() (most time.Duration) {
	for _, f := range m.air {
		if f.next < len(f.parts) {
			most = max(most, time.Since(f.parts[f.next].begun))
		}
	}
	return most
}

// InAir is how many steps are under way.
func (m *Machine) InAir() int { return len(m.air) }
