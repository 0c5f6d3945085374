package kv

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// The rule of the package's comment, page by page.
func isCold(p Policy, j, pos int) bool {
	return p.Quantised && j*p.PageTokens >= p.Sink && (j+1)*p.PageTokens+p.Window <= pos
}

func TestPolicy(t *testing.T) {
	for _, p := range []Policy{
		{PageTokens: 4}, {PageTokens: 4, Quantised: true}, {PageTokens: 4, Quantised: true, Window: 3},
		{PageTokens: 4, Quantised: true, Sink: 1, Window: 4}, {PageTokens: 4, Quantised: true, Sink: 5, Window: 9},
		{PageTokens: 256, Quantised: true, Sink: 4, Window: 64},
	} {
		for pos := range 5 * p.PageTokens {
			n := 0
			for j := range 6 {
				if isCold(p, j, pos) {
					n++
				}
				if got, want := p.IsCold(j, p.Cold(pos)), isCold(p, j, pos); got != want {
					t.Errorf("%+v: page %d at %d is cold: %t, want %t", p, j, pos, got, want)
				}
			}
			if p.Cold(pos) != n {
				t.Errorf("%+v: %d cold pages at %d, want %d", p, p.Cold(pos), pos, n)
			}
			if cut := p.Cut(pos); cut < 1 || p.Quantised && (p.Cold(pos+cut-1) != n || p.Cold(pos+cut) != n+1) {
				t.Errorf("%+v: a run at %d is cut after %d", p, pos, cut)
			}
		}
	}
}

// Sequences of random lengths come, grow in random steps, restart from states and go. No page has two owners, none is
// lost, pages are cold by the rule, and nobody who was seated runs out.
func TestPool(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := Policy{PageTokens: 1 + r.IntN(8), Quantised: r.IntN(3) > 0, Sink: r.IntN(20), Window: r.IntN(20)}
		size := Need{Slots: 1 + r.IntN(5), Hot: 1 + r.IntN(30), Cold: r.IntN(40)}
		pool := NewPool(p, size)
		type seq struct {
			*Seat
			pos int
		}
		var seqs []*seq
		check := func() {
			owner := map[int32]bool{}
			var held Need
			for _, s := range seqs {
				if key := int32(1<<30) | s.slot; owner[key] {
					t.Fatalf("seed %d: slot %d has two owners", seed, s.slot)
				} else {
					owner[key] = true
				}
				held.Slots++
				for i, x := range s.Pages() {
					if owner[x] {
						t.Fatalf("seed %d: page %x has two owners", seed, x)
					}
					owner[x] = true
					if (x < 0) != (s.pos > 0 && isCold(p, i, s.pos-1)) {
						t.Fatalf("seed %d: %+v: page %d of %d tokens is cold: %t", seed, p, i, s.pos, x < 0)
					}
					if x < 0 {
						held.Cold++
					} else {
						held.Hot++
					}
				}
			}
			if held != pool.InUse() {
				t.Fatalf("seed %d: %+v are held, %+v are in use", seed, held, pool.InUse())
			}
			if !held.Within(pool.Reserved()) || !pool.Reserved().Within(size) {
				t.Fatalf("seed %d: held %+v, reserved %+v of %+v", seed, held, pool.Reserved(), size)
			}
		}
		for range 300 {
			switch k := r.IntN(10); {
			case k < 2:
				s, err := pool.Seat(1 + r.IntN(size.Hot*p.PageTokens*2))
				if err == nil {
					seqs = append(seqs, &seq{Seat: s})
				} else if !errors.Is(err, ErrFull) && !errors.Is(err, ErrNever) {
					t.Fatal(err)
				}
			case len(seqs) == 0:
			case k == 2:
				i := r.IntN(len(seqs))
				seqs[i].Close()
				seqs[i].Close()
				seqs = append(seqs[:i], seqs[i+1:]...)
			case k == 3:
				s := seqs[r.IntN(len(seqs))]
				s.pos = r.IntN(s.Tokens() + 1)
				if err := s.Hold(s.pos); err != nil {
					t.Fatal(err)
				}
			default:
				s := seqs[r.IntN(len(seqs))]
				if s.pos == s.Tokens() {
					continue
				}
				end := s.pos + 1 + r.IntN(min(p.Cut(s.pos), s.Tokens()-s.pos))
				for {
					_, move, err := s.Grow(s.pos, end)
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					if !move {
						break
					}
					s.Moved()
				}
				s.pos = end
			}
			check()
		}
		for _, s := range seqs {
			s.Close()
		}
		if pool.InUse() != (Need{}) || pool.Reserved() != (Need{}) {
			t.Fatalf("seed %d: %+v in use and %+v reserved when all have gone", seed, pool.InUse(), pool.Reserved())
		}
	}
}

func TestSeatRefusals(t *testing.T) {
	pool := NewPool(Policy{PageTokens: 4}, Need{Slots: 2, Hot: 5})
	if _, err := pool.Seat(21); !errors.Is(err, ErrNever) {
		t.Errorf("21 tokens of 20: %v", err)
	}
	a, err := pool.Seat(12)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Seat(9); !errors.Is(err, ErrFull) {
		t.Errorf("9 tokens where 8 are free: %v", err)
	}
	pool.SetLive(1)
	if _, err := pool.Seat(1); !errors.Is(err, ErrFull) {
		t.Errorf("a second sequence where one may live: %v", err)
	}
	pool.SetLive(9)
	if _, err := pool.Seat(8); err != nil {
		t.Error(err)
	}
	for _, x := range [][2]int{{0, 13}, {-1, 1}, {3, 3}} {
		if _, _, err := a.Grow(x[0], x[1]); err == nil {
			t.Errorf("rows %d to %d of 12 were accepted", x[0], x[1])
		}
	}
	if err := a.Hold(13); err == nil {
		t.Error("a state of 13 tokens in a sequence of 12 was accepted")
	}
	a.Close()
	if _, _, err := a.Grow(0, 1); err == nil {
		t.Error("a seat that was given up still grows")
	}
}
