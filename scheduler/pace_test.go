package scheduler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// bounds are the ends of a step's submissions.
func (p *pace) bounds(rows int) (ends []int) {
	for i := 0; i < len(p.took); {
		i = p.next(i, rows)
		ends = append(ends, i)
	}
	return ends
}

func TestPace(t *testing.T) {
	const ms = time.Millisecond
	p := pace{took: make([]cost, 4)}
	if got := p.bounds(8); !slices.Equal(got, []int{4}) {
		t.Errorf("without a budget a step is submitted as %v", got)
	}
	p.budget = 10 * ms
	if got := p.bounds(8); !slices.Equal(got, []int{1, 2, 3, 4}) {
		t.Errorf("what has not run is submitted as %v", got)
	}
	for i, d := range []time.Duration{4, 6, 3, 25} {
		p.note(i, i+1, 8, d*ms)
	}
	for rows, want := range map[int][]int{8: {2, 3, 4}, 1: {2, 3, 4}, 16: {1, 2, 3, 4}} {
		if got := p.bounds(rows); !slices.Equal(got, want) {
			t.Errorf("%d rows are submitted as %v, want %v", rows, got, want)
		}
	}
	if got := p.longest(16); got != 50*ms {
		t.Errorf("the longest takes %v at twice the rows, want 50ms", got)
	}
	// A submission of two that takes longer is divided as before; one that takes less is believed by half.
	p.note(0, 2, 8, 20*ms)
	if p.took[0].time != 8*ms || p.took[1].time != 12*ms {
		t.Errorf("20 ms over 4 and 6: %v", p.took[:2])
	}
	p.note(0, 2, 8, 10*ms)
	if p.took[0].time != 6*ms || p.took[1].time != 9*ms {
		t.Errorf("10 ms over 8 and 12, by half: %v", p.took[:2])
	}
	// A command buffer that is new among known ones goes alone and does not end the step.
	p.took[1] = cost{}
	if got := p.bounds(8); !slices.Equal(got, []int{1, 2, 3, 4}) {
		t.Errorf("one that has not run is submitted as %v", got)
	}
}

// Whatever the times, submissions cover a step in order, and after a few steps few are longer than twice the budget
// though the work grows and varies.
func TestPaceRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	const budget = 50 * time.Millisecond
	long, all := 0, 0
	for range 50 {
		p := pace{budget: budget, took: make([]cost, 1+r.IntN(60))}
		unit := make([]float64, len(p.took))
		for i := range unit {
			unit[i] = float64(budget) * r.Float64() * r.Float64()
		}
		for step := range 40 {
			rows, from := 1+r.IntN(64), 0
			for _, to := range p.bounds(rows) {
				if to <= from {
					t.Fatalf("a submission from %d to %d", from, to)
				}
				took := 0.0
				for _, u := range unit[from:to] {
					took += u * float64(rows) / 64 * (1 + float64(step)/80) * (0.9 + 0.2*r.Float64())
				}
				if all++; took > 2*float64(budget) {
					long++
				}
				p.note(from, to, rows, time.Duration(took))
				from = to
			}
			if from != len(unit) {
				t.Fatalf("a step ends at %d of %d", from, len(unit))
			}
		}
	}
	if long*100 > all {
		t.Errorf("%d of %d submissions took more than twice the budget", long, all)
	}
}
