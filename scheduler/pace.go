package scheduler

import "time"

// A pace divides the command buffers of a step among submissions so that none takes longer than a budget. Drivers end work
// that occupies a device for too long, after two seconds on some, and a display that the device also serves stands still
// meanwhile. How long a command buffer takes is what it took in the step before; a sequence's growing context is in that.
type pace struct {
	budget time.Duration // 0: one submission
	took   []cost        // of each command buffer
	stats  PaceStats
}

// PaceStats says how submissions kept to their budget.
type PaceStats struct {
	Timed   int           // submissions, since there is a budget
	Over    int           // of them, those that took more than twice the budget
	Longest time.Duration // the longest of them
}

// Plus is the sum of two.
func (s PaceStats) Plus(t PaceStats) PaceStats {
	return PaceStats{s.Timed + t.Timed, s.Over + t.Over, max(s.Longest, t.Longest)}
}

// cost is how long a command buffer took with so many rows; no rows say that it has not run.
type cost struct {
	time time.Duration
	rows int
}

// of is what a command buffer will take, more rows at most in proportion.
func (c cost) of(rows int) time.Duration {
	if rows <= c.rows {
		return c.time
	}
	return c.time * time.Duration(rows) / time.Duration(c.rows)
}

// next is the end of the submission that begins with command buffer i, in a step of so many rows. What has not run yet
// goes alone, to be measured.
func (p *pace) next(i, rows int) int {
	if p.budget <= 0 {
		return len(p.took)
	}
	sum := time.Duration(0)
	for j := i; j < len(p.took); j++ {
		c := p.took[j]
		if c.rows == 0 {
			return max(j, i+1)
		}
		if sum += c.of(rows); sum > p.budget && j > i {
			return j
		}
	}
	return len(p.took)
}

// note divides the time of a submission among its command buffers, in the proportion of before. A time that falls is followed
// by half, so that a step that was quick by chance does not make the next submission too long.
func (p *pace) note(from, to, rows int, took time.Duration) {
	p.stats.Timed++
	if took > 2*p.budget {
		p.stats.Over++
	}
	p.stats.Longest = max(p.stats.Longest, took)
	known := time.Duration(0)
	for _, c := range p.took[from:to] {
		known += c.time
	}
	for i := from; i < to; i++ {
		c := &p.took[i]
		t := took / time.Duration(to-from)
		if known > 0 {
			t = time.Duration(float64(took) * float64(c.time) / float64(known))
		}
		if c.rows == rows && t < c.time {
			t += (c.time - t) / 2
		}
		*c = cost{max(t, 1), rows}
	}
}

// longest is what the slowest command buffer will take, of those that have run.
func (p *pace) longest(rows int) (most time.Duration) {
	for _, c := range p.took {
		if c.rows > 0 {
			most = max(most, c.of(rows))
		}
	}
	return most
}
