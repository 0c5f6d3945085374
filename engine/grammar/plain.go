package grammar

// sequences are the well-formed UTF-8 sequences of more than one byte, as ranges of their bytes (Unicode 15, table
// 3-7).
var sequences = [][][2]byte{
	{{0xc2, 0xdf}, {0x80, 0xbf}},
	{{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}},
	{{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}},
	{{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}},
	{{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}},
	{{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
	{{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
	{{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}},
}

// plainBytes are the ASCII characters among the plain ones.
var plainBytes = func() ByteSet {
	s := Range(0x20, 0x7f)
	for _, b := range []byte{'"', '\\'} {
		s[b>>6] &^= 1 << (b & 63)
	}
	return s
}()

// absorbs reports whether every plain token is allowed at a state. It is when each plain character leads to one and
// the same state, and so on for as many characters as a plain token has.
func (w *walk) absorbs(s *state) bool {
	for range maxPlain {
		next := w.plainStep(s)
		if next == s || next.refuses() {
			return next == s
		}
		s = next
	}
	return true
}

// plainStep returns the state to which every plain character leads, or dead.
func (w *walk) plainStep(s *state) *state {
	if to := s.plain.Load(); to != nil {
		return to
	}
	to := w.uniform(s, plainBytes)
	for _, seq := range sequences {
		if to.refuses() {
			break
		}
		end := s
		for _, r := range seq {
			end = w.uniform(end, Range(r[0], r[1]))
		}
		if end != to {
			to = dead
		}
	}
	if to == over {
		to = dead
	}
	if !w.exhausted() {
		s.plain.Store(to)
	}
	return to
}

// uniform returns the state to which every byte of a set leads, or dead.
func (w *walk) uniform(s *state, set ByteSet) *state {
	if s.refuses() {
		return dead
	}
	var seen [256]bool
	var to *state
	for b := range 256 {
		c := w.g.prog.class[b]
		if !set.Has(byte(b)) || seen[c] {
			continue
		}
		seen[c] = true
		next := w.step(s, c)
		if next.refuses() || to != nil && to != next {
			return dead
		}
		to = next
	}
	return to
}
