package engine

import (
	"fmt"
	"time"

	"github.com/calderaml/caldera/scheduler"
)

// DefaultSubmitBudget is how long one submission should occupy a GPU at most: drivers give up on one after some seconds, two on
// Windows, and the screen stands still while it lasts.
const DefaultSubmitBudget = 500 * time.Millisecond

// rowLimit keeps steps so small that no part of one that cannot be divided takes longer than a submission should. A plan divides
// a step at its layers ([scheduler.Options], Budget); where one layer takes too long, as with a long context, steps get
// fewer rows.
type rowLimit struct {
	budget time.Duration // 0 for none
	rows   int           // most of a step, 0 for no limit
}

// of is the most rows of a step whose batch is as given.
func (l *rowLimit) of(batch int) int {
	if l.rows == 0 {
		return batch
	}
	return min(l.rows, batch)
}

// saw takes in how long the longest part of a step of so many rows took, and returns what is to be said about it. A limit
// is lifted by doubling, when steps near it take half the budget.
func (l *rowLimit) saw(rows, batch int, longest time.Duration) error {
	switch {
	case l.budget <= 0 || longest <= 0:
	case longest > l.budget:
		fewer := max(1, int(float64(rows)*float64(l.budget)/float64(longest)))
		if rows == 1 || fewer >= l.of(batch) {
			return nil // there is nothing to give up, or it was given up since the step was formed
		}
		l.rows = fewer
		return fmt.Errorf("a layer of a step of %d tokens takes %v, and a submission shall not take more than %v: prompts go in by %d tokens at most",
			rows, longest.Round(time.Millisecond), l.budget, l.rows)
	case l.rows > 0 && 2*rows > l.rows && 2*longest <= l.budget:
		if l.rows *= 2; l.rows >= batch {
			l.rows = 0
		}
	}
	return nil
}

// Pace says how the submissions of the engine's plans kept to Config.SubmitBudget.
func (e *Engine) Pace() (s scheduler.PaceStats) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.plans {
		if x, ok := p.runner.(interface{ Pace() scheduler.PaceStats }); ok {
			s = s.Plus(x.Pace())
		}
	}
	return s
}

// maxStep is the most rows that the next step may have. e.mu is held.
func (e *Engine) maxStep() int { return e.limit.of(e.cfg.Batch) }

// watch takes in a step that has run. e.mu is held.
func (e *Engine) watch(p *planned, rows int) {
	timed, ok := p.runner.(interface{ Longest(rows int) time.Duration })
	if !ok {
		return
	}
	if err := e.limit.saw(rows, e.cfg.Batch, timed.Longest(rows)); err != nil && e.cfg.Warn != nil {
		e.cfg.Warn(err)
	}
}
