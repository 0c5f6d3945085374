package engine

import "sync"

// turns are who runs steps. The batcher leaves steps under way while it does other things and does not hold e.mu then; everybody else
// runs one step after the other, alone.
type turns struct {
	changed sync.Cond // with e.mu
	wanting int       // that wait to be alone
	under   int       // steps of the batcher under way
}

// alone waits until no step of the batcher is under way. E.mu is held, and as long as it stays so, none begins.
func (e *Engine) alone() {
	t := &e.turns
	t.wanting++
	for t.under > 0 {
		t.changed.Wait()
	}
	t.wanting--
	t.changed.Broadcast()
}

// giveWay waits as long as others want to be alone and no step is under way. E.mu is held.
func (e *Engine) giveWay() {
	for t := &e.turns; t.wanting > 0 && t.under == 0; {
		t.changed.Wait()
	}
}

// moreUnder notes that n steps more are under way.
func (e *Engine) moreUnder(n int) {
	e.turns.under += n
	e.turns.changed.Broadcast()
}
