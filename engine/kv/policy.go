package kv

// A Policy says which pages of a sequence are cold.
type Policy struct {
	PageTokens int
	Quantised  bool // there are cold pages
	Sink       int  // tokens at the start that stay hot, rounded up to whole pages
	Window     int  // most recent tokens that are hot for every row, beside the row's own page
}

// sinks is the number of pages that never turn cold.
func (p Policy) sinks() int { return ceil(p.Sink, p.PageTokens) }

// Cold is the number of pages that are cold for a row at position pos: those from the sinks on.
func (p Policy) Cold(pos int) int {
	if !p.Quantised {
		return 0
	}
	return max(0, (pos-p.Window)/p.PageTokens-p.sinks())
}

// ColdAfter is the number of pages that are cold in the state of a sequence of n tokens, whose last row was at n-1.
func (p Policy) ColdAfter(n int) int { return p.Cold(max(0, n-1)) }

// IsCold reports whether page i is cold where cold pages are.
func (p Policy) IsCold(i, cold int) bool { return i >= p.sinks() && i < p.sinks()+cold }

// Cut is the most tokens that a run beginning at position pos may have: the next row would see a page turn cold.
func (p Policy) Cut(pos int) int {
	if !p.Quantised {
		return int(^uint(0) >> 1)
	}
	first := (p.sinks()+1)*p.PageTokens + p.Window // where the first page turns cold
	if pos < first {
		return first - pos
	}
	return p.PageTokens - (pos-first)%p.PageTokens
}

// Need is what a sequence of at most n tokens holds at any time, at most.
func (p Policy) Need(n int) Need {
	pages := ceil(n, p.PageTokens)
	if !p.Quantised || n == 0 {
		return Need{Slots: 1, Hot: pages}
	}
	// While a page is being re-encoded it has both forms, and the page of the next row is not handed out yet.
	cold := p.ColdAfter(n)
	hot := pages - cold
	if cold > 0 {
		hot = max(hot, p.sinks()+ceil(p.Window, p.PageTokens)+1)
	}
	return Need{Slots: 1, Hot: hot, Cold: cold}
}

// A Need is an amount of what a pool hands out.
type Need struct{ Slots, Hot, Cold int }

// Add is the sum.
func (n Need) Add(m Need) Need { return Need{n.Slots + m.Slots, n.Hot + m.Hot, n.Cold + m.Cold} }

func (n Need) sub(m Need) Need { return Need{n.Slots - m.Slots, n.Hot - m.Hot, n.Cold - m.Cold} }

// Within reports whether there is as much in m.
func (n Need) Within(m Need) bool { return n.Slots <= m.Slots && n.Hot <= m.Hot && n.Cold <= m.Cold }

func ceil(n, d int) int { return (n + d - 1) / d }
