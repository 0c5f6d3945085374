//go:build unix

package scheduler

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A pretended is a device that does nothing, one submission after the other, each in the time that it takes.
type pretended struct {
	takes  func() time.Duration
	free   time.Time // when it will have done everything
	order  []int     // the flights in the order in which they came
	fail   int       // the submission, from 1, that fails; 0 for none
	worked time.Duration
}

type pretendedTicket struct{ at time.Time }

func (t *pretendedTicket) Done() (bool, error) { return !time.Now().Before(t.at), nil }
func (t *pretendedTicket) Release()            {}
func (t *pretendedTicket) Await() error {
	sleepExactly(time.Until(t.at))
	return nil
}
func (t *pretendedTicket) Look(d time.Duration, _ time.Time) error {
	sleepExactly(min(time.Until(t.at), d))
	return nil
}

// sleepExactly sleeps in the kernel, as waiting for a device does: the runtime's timers are a millisecond late.
func sleepExactly(d time.Duration) {
	if d > 0 {
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil)
	}
}

// pretendedPlan is a plan on pretended devices, the flights of which are told apart by id.
func pretendedPlan(m *Machine, ds []*pretended, id int) *Plan {
	p := &Plan{Graph: NewGraph(shaders.StepShape{Rows: 1}), machine: m, work: &Workspace{}}
	p.flight.plan = p
	for i, d := range ds {
		s := &stage{index: i, graph: p.Graph, name: "pretended", pace: pace{took: make([]cost, 1)}}
		s.submit = func(int, int) (ticket, error) {
			if d.order = append(d.order, id); len(d.order) == d.fail {
				return nil, &vk.Error{Op: "vkQueueSubmit", Result: vk.ErrorDeviceLost}
			}
			t := d.takes()
			d.free, d.worked = later(time.Now(), d.free).Add(t), d.worked+t
			return &pretendedTicket{d.free}, nil
		}
		p.stages = append(p.stages, s)
	}
	return p
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Steps keep their order on every device, however long each takes, and each ends once.
func TestMachineOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	for range 40 {
		var ds []*pretended
		for range 1 + r.IntN(5) {
			ds = append(ds, &pretended{takes: func() time.Duration { return time.Duration(r.IntN(300)) * time.Microsecond }})
		}
		m := &Machine{}
		var plans []*Plan
		for i := range 1 + r.IntN(4) {
			plans = append(plans, pretendedPlan(m, ds, i))
		}
		var want []int
		begun, ended := 0, 0
		for ended < 30 {
			for begun < 30 && begun-ended < len(plans) && r.IntN(4) > 0 {
				if err := plans[begun%len(plans)].launch(1); err != nil {
					t.Fatal(err)
				}
				want = append(want, begun%len(plans))
				begun++
			}
			switch {
			case ended == begun:
			case r.IntN(2) == 0:
				m.Poll()
			default:
				f := &plans[ended%len(plans)].flight
				if err := m.wait(f); err != nil {
					t.Fatal(err)
				}
				if done, _ := f.Ended(); !done || f.stage != len(ds)-1 {
					t.Fatalf("a step that was waited for is on device %d of %d", f.stage, len(ds))
				}
				ended++
			}
		}
		for i, d := range ds {
			if !slices.Equal(d.order, want) {
				t.Fatalf("device %d of %d had the steps %v, want %v", i, len(ds), d.order, want)
			}
		}
		if m.InAir() != 0 {
			t.Fatalf("%d steps are under way in the end", m.InAir())
		}
	}
}

// A device that fails ends the step that it was given, says which device it was, and the steps around it go on.
func TestMachineFailure(t *testing.T) {
	short := func() time.Duration { return 100 * time.Microsecond }
	for at := range 3 {
		ds := []*pretended{{takes: short}, {takes: short}, {takes: short}}
		ds[at].fail = 2
		m := &Machine{}
		var errs []error
		var plans []*Plan
		for i := range 3 {
			plans = append(plans, pretendedPlan(m, ds, i))
			errs = append(errs, plans[i].launch(1))
		}
		for i, p := range plans {
			if errs[i] == nil {
				errs[i] = m.wait(&p.flight)
			}
		}
		if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], vk.ErrDeviceLost) || !strings.Contains(errs[1].Error(), "device "+string(rune('0'+at))) {
			t.Errorf("device %d fails: %v", at, errs)
		}
		if done, err := plans[1].flight.settled(); !done || err != nil || m.InAir() != 0 {
			t.Errorf("device %d fails: settled %v, %v, %d under way", at, done, err, m.InAir())
		}
	}
}

// Nothing under way has to be waited for: a step that has not ended leaves Poll at once.
func TestMachinePoll(t *testing.T) {
	d := &pretended{takes: func() time.Duration { return time.Hour }}
	m := &Machine{}
	if p := pretendedPlan(m, []*pretended{d, d}, 0); p.launch(1) != nil || m.Poll() || m.InAir() != 1 {
		t.Error("a step of an hour has ended")
	}
}

// BenchmarkMachine keeps eight pretended devices busy and reports how much longer that takes than the devices work, and
// how much of a processor it takes.
func BenchmarkMachine(b *testing.B) {
	const devices = 8
	for _, takes := range []time.Duration{500 * time.Microsecond, 2 * time.Millisecond, 10 * time.Millisecond} {
		b.Run(takes.String(), func(b *testing.B) {
			var ds []*pretended
			for range devices {
				ds = append(ds, &pretended{takes: func() time.Duration { return takes }})
			}
			m := &Machine{}
			var plans []*Plan
			for i := range devices + 1 {
				plans = append(plans, pretendedPlan(m, ds, i))
			}
			const steps = 100
			var spent time.Duration
			for b.Loop() {
				before := processorTime()
				begun := 0
				for ended := range steps {
					for begun < steps && begun-ended < len(plans) {
						if err := plans[begun%len(plans)].launch(1); err != nil {
							b.Fatal(err)
						}
						begun++
					}
					if err := m.wait(&plans[ended%len(plans)].flight); err != nil {
						b.Fatal(err)
					}
				}
				spent += processorTime() - before
			}
			ideal := time.Duration(b.N) * takes * (steps + devices - 1)
			b.ReportMetric(100*(b.Elapsed().Seconds()/ideal.Seconds()-1), "%longer")
			b.ReportMetric(100*spent.Seconds()/b.Elapsed().Seconds(), "%cpu")
		})
	}
}

// processorTime is what the process has taken.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPoll is a look at a step that has not ended.
func BenchmarkPoll(b *testing.B) {
	var ds []*pretended
	for range 8 {
		ds = append(ds, &pretended{takes: func() time.Duration { return time.Hour }})
	}
	m := &Machine{}
	for i := range 8 {
		if err := pretendedPlan(m, ds, i).launch(1); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		m.Poll()
	}
}
