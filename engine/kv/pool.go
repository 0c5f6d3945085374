package kv

import (
	"errors"
	"fmt"
	"slices"
)

// Cold marks a number in a page table as one of a cold page. It is the sign of an int32.
const Cold = -1 << 31

// ErrFull reports that what a sequence may need is not free. It is there again when others end.
var ErrFull = errors.New("no room for another sequence")

// ErrNever reports that a sequence may need more than there is at all.
var ErrNever = errors.New("more than the cache holds")

// A Pool is what sequences share. It is not safe for concurrent use.
type Pool struct {
	policy   Policy
	size     Need
	reserved Need
	live     int // sequences that may be seated; at most the slots

	slots, hot, cold []int32 // free ones; the last is handed out first
}

// NewPool returns a pool of so many slots and pages.
func NewPool(policy Policy, size Need) *Pool {
	return &Pool{policy: policy, size: size, live: size.Slots, slots: free(size.Slots), hot: free(size.Hot), cold: free(size.Cold)}
}

// free lists n numbers so that the lowest is handed out first.
func free(n int) []int32 {
	s := make([]int32, n)
	for i := range s {
		s[i] = int32(n - 1 - i)
	}
	return s
}

// Policy returns the pool's policy.
func (p *Pool) Policy() Policy { return p.policy }

// Size is what there is.
func (p *Pool) Size() Need { return p.size }

// Reserved is what the sequences that are seated may come to hold.
func (p *Pool) Reserved() Need { return p.reserved }

// InUse is what they hold.
func (p *Pool) InUse() Need {
	return p.size.sub(Need{len(p.slots), len(p.hot), len(p.cold)})
}

// SetLive limits how many sequences may be seated from now on, at least one. Those that are seated stay.
func (p *Pool) SetLive(n int) { p.live = max(1, min(n, p.size.Slots)) }

// Live is how many sequences may be seated.
func (p *Pool) Live() int { return p.live }

// Check fails with [ErrNever] if a sequence of n tokens does not fit even alone.
func (p *Pool) Check(n int) error {
	need := p.policy.Need(n)
	if !need.Within(p.size) {
		return fmt.Errorf("%w: %d tokens take %d pages of %d tokens, and %d cold ones; there are %d and %d",
			ErrNever, n, need.Hot, p.policy.PageTokens, need.Cold, p.size.Hot, p.size.Cold)
	}
	return nil
}

// Seat reserves what a sequence of at most n tokens may need. It fails with [ErrFull] or [ErrNever].
func (p *Pool) Seat(n int) (*Seat, error) {
	if err := p.Check(n); err != nil {
		return nil, err
	}
	need := p.policy.Need(n)
	if all := p.reserved.Add(need); all.Slots > p.live || !all.Within(p.size) {
		return nil, fmt.Errorf("%w: %d of %d sequences, %d of %d pages and %d of %d cold ones are reserved, %d tokens more take %d and %d",
			ErrFull, p.reserved.Slots, p.live, p.reserved.Hot, p.size.Hot, p.reserved.Cold, p.size.Cold, n, need.Hot, need.Cold)
	}
	p.reserved = p.reserved.Add(need)
	return &Seat{pool: p, tokens: n, need: need, slot: pop(&p.slots)}, nil
}

func pop(s *[]int32) int32 {
	n := len(*s) - 1
	x := (*s)[n]
	*s = (*s)[:n]
	return x
}

// A Move is a hot page to be re-encoded as a cold one.
type Move struct{ Hot, Cold int32 }

// A Seat is what one sequence holds.
type Seat struct {
	pool   *Pool
	tokens int
	need   Need
	slot   int32
	pages  []int32 // in order; cold ones have Cold set
	cold   int
	moving int32 // the hot page that is being re-encoded, if there is one
	move   bool
}

// Slot is the recurrent slot.
func (s *Seat) Slot() int { return int(s.slot) }

// Tokens is the most tokens that the sequence may have.
func (s *Seat) Tokens() int { return s.tokens }

// Pages is the page table. It may change with the next call of Grow, Moved, Hold or Clear.
func (s *Seat) Pages() []int32 { return s.pages }

// ColdPages is how many pages are cold.
func (s *Seat) ColdPages() int { return s.cold }

// Grow prepares for the rows at positions pos up to end. If a page has turned cold it is returned with the page that
// it is to be copied to, and nothing else has been prepared: re-encode it, call Moved, and Grow again.
func (s *Seat) Grow(pos, end int) (Move, bool, error) {
	if s.pool == nil {
		return Move{}, false, errors.New("kv: the seat has been given up")
	}
	p := s.pool.policy
	switch {
	case s.move:
		return Move{}, false, errors.New("kv: a page is still being re-encoded")
	case pos < 0 || end <= pos || end > s.tokens || end-pos > p.Cut(pos):
		return Move{}, false, fmt.Errorf("kv: rows %d to %d of a sequence of at most %d tokens", pos, end, s.tokens)
	}
	if s.cold < p.Cold(pos) {
		i := p.sinks() + s.cold
		m := Move{Hot: s.pages[i], Cold: pop(&s.pool.cold)}
		s.move, s.moving = true, m.Hot
		s.pages[i] = m.Cold | Cold
		s.cold++
		return m, true, nil
	}
	for len(s.pages)*p.PageTokens < end {
		s.pages = append(s.pages, pop(&s.pool.hot))
	}
	return Move{}, false, nil
}

// Moved says that the page of the last Move has been re-encoded.
func (s *Seat) Moved() {
	if s.move {
		s.pool.hot = append(s.pool.hot, s.moving)
		s.move = false
	}
}

// Hold gives the sequence the pages of a state of n tokens, which is then to be written into them.
func (s *Seat) Hold(n int) error {
	if s.pool == nil || n < 0 || n > s.tokens {
		return fmt.Errorf("kv: a state of %d tokens in a sequence of at most %d", n, s.tokens)
	}
	s.Clear()
	p := s.pool.policy
	s.cold = p.ColdAfter(n)
	for i := range ceil(n, p.PageTokens) {
		if p.IsCold(i, s.cold) {
			s.pages = append(s.pages, pop(&s.pool.cold)|Cold)
		} else {
			s.pages = append(s.pages, pop(&s.pool.hot))
		}
	}
	return nil
}

// Clear gives back all pages; slot and reservation stay.
func (s *Seat) Clear() {
	if s.pool == nil {
		return
	}
	s.Moved()
	// In reverse, so that the next sequence gets the same pages in the same order.
	for _, x := range slices.Backward(s.pages) {
		if x < 0 {
			s.pool.cold = append(s.pool.cold, x&^Cold)
		} else {
			s.pool.hot = append(s.pool.hot, x)
		}
	}
	s.pages, s.cold = s.pages[:0], 0
}

// Close gives back everything. It may be called more than once.
func (s *Seat) Close() {
	if s.pool == nil {
		return
	}
	s.Clear()
	s.pool.slots = append(s.pool.slots, s.slot)
	s.pool.reserved = s.pool.reserved.sub(s.need)
	s.pool = nil
}
