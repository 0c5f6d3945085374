package grammar

import (
	"slices"
	"unicode/utf8"
)

// A RuneRange is the characters from Lo up to and including Hi.
type RuneRange struct{ Lo, Hi rune }

// AnyRune holds every character that UTF-8 can encode.
var AnyRune = []RuneRange{{0, utf8.MaxRune}}

// surrogates are no characters.
const surrogateMin, surrogateMax = 0xd800, 0xdfff

// Normalize returns the ranges in order and without overlaps, without what is no character.
func Normalize(ranges []RuneRange) []RuneRange {
	var in []RuneRange
	for _, r := range ranges {
		r.Lo, r.Hi = max(r.Lo, 0), min(r.Hi, utf8.MaxRune)
		if r.Lo < surrogateMin {
			in = append(in, RuneRange{r.Lo, min(r.Hi, surrogateMin-1)})
		}
		if r.Hi > surrogateMax {
			in = append(in, RuneRange{max(r.Lo, surrogateMax+1), r.Hi})
		}
	}
	in = slices.DeleteFunc(in, func(r RuneRange) bool { return r.Lo > r.Hi })
	slices.SortFunc(in, func(a, b RuneRange) int { return int(a.Lo - b.Lo) })
	out := in[:0]
	for _, r := range in {
		if n := len(out); n > 0 && r.Lo <= out[n-1].Hi+1 {
			out[n-1].Hi = max(out[n-1].Hi, r.Hi)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// Complement returns the characters that are in none of the ranges.
func Complement(ranges []RuneRange) []RuneRange {
	var out []RuneRange
	from := rune(0)
	for _, r := range Normalize(ranges) {
		if r.Lo > from {
			out = append(out, RuneRange{from, r.Lo - 1})
		}
		from = r.Hi + 1
	}
	if from <= utf8.MaxRune {
		out = append(out, RuneRange{from, utf8.MaxRune})
	}
	return Normalize(out)
}

// Intersect returns the characters that are in both.
func Intersect(a, b []RuneRange) []RuneRange {
	return Complement(append(Complement(a), Complement(b)...))
}

// Runes is one character of the ranges, in UTF-8. It is read in one way, however many ranges there are.
func Runes(ranges ...RuneRange) Expr {
	var seqs [][][2]byte
	for _, r := range Normalize(ranges) {
		// Cut where the number of bytes changes.
		for _, end := range []rune{0x7f, 0x7ff, 0xffff, utf8.MaxRune} {
			if r.Lo <= min(r.Hi, end) {
				seqs = appendSequences(seqs, utf8.AppendRune(nil, r.Lo), utf8.AppendRune(nil, min(r.Hi, end)))
				r.Lo = end + 1
			}
		}
	}
	return joinSequences(seqs)
}

// appendSequences appends byte ranges for the encodings from lo up to hi, which are equally long.
func appendSequences(dst [][][2]byte, lo, hi []byte) [][][2]byte {
	n := len(lo)
	full := true // all continuation bytes run over their whole range
	for i := 1; i < n; i++ {
		full = full && lo[i] == 0x80 && hi[i] == 0xbf
	}
	if n == 1 || full || lo[0] == hi[0] {
		head := [2]byte{lo[0], hi[0]}
		if n == 1 {
			return append(dst, [][2]byte{head})
		}
		for _, tail := range appendSequences(nil, lo[1:], hi[1:]) {
			dst = append(dst, append([][2]byte{head}, tail...))
		}
		return dst
	}
	// The first lead byte's part, the lead bytes that are whole, and the last one's part.
	lows, highs := slices.Repeat([]byte{0x80}, n-1), slices.Repeat([]byte{0xbf}, n-1)
	first, last := lo[0], hi[0]
	if !slices.Equal(lo[1:], lows) {
		dst = appendSequences(dst, lo, append([]byte{first}, highs...))
		first++
	}
	var end [][][2]byte
	if !slices.Equal(hi[1:], highs) {
		end = appendSequences(nil, append([]byte{last}, lows...), hi)
		last--
	}
	if first <= last {
		dst = appendSequences(dst, append([]byte{first}, lows...), append([]byte{last}, highs...))
	}
	return append(dst, end...)
}

// joinSequences is one of some sequences of byte ranges, in order. Their first ranges are equal or apart.
func joinSequences(seqs [][][2]byte) Expr {
	var alts []Expr
	var ends ByteSet // of sequences of one byte
	for i := 0; i < len(seqs); {
		head := seqs[i][0]
		if len(seqs[i]) == 1 {
			ends.Add(head[0], head[1])
			i++
			continue
		}
		var tails [][][2]byte
		for ; i < len(seqs) && seqs[i][0] == head; i++ {
			tails = append(tails, seqs[i][1:])
		}
		alts = append(alts, Seq(Byte(Range(head[0], head[1])), joinSequences(tails)))
	}
	if ends != (ByteSet{}) {
		alts = append(alts, Byte(ends))
	}
	return Alt(alts...)
}

// Choice is one of some strings.
func Choice(choices ...string) Expr {
	alts := make([]Expr, len(choices))
	for i, c := range choices {
		alts[i] = Lit(c)
	}
	return Alt(alts...)
}

// Until is text up to and including the first occurrence of end; nothing when end is empty. The text is any bytes, or
// with valid set UTF-8 and end ASCII.
func (b *Builder) Until(end string, valid bool) Expr { return b.until(end, valid, false) }

// Lazy is any bytes without trigger; or any bytes up to and including the first trigger, and then e. So the text is
// free until the trigger has been seen, wherever the borders between tokens lie, and is constrained from then on.
// It may end while it is free.
func (b *Builder) Lazy(trigger string, e Expr) Expr {
	// The free part can end in every rule of until, so that each has the alternative of the end.
	return Alt(Seq(b.until(trigger, false, false), e), b.without(trigger))
}

// without is any bytes in which end does not occur.
func (b *Builder) without(end string) Expr { return b.until(end, false, true) }

// until makes one rule for each number of bytes of end that the text so far ends with (Knuth, Morris and Pratt's
// automaton). With absent set, end must not occur and the text may end anywhere.
func (b *Builder) until(end string, valid, absent bool) Expr {
	if end == "" {
		return Expr{}
	}
	states := make([]Rule, len(end))
	for i := range states {
		states[i] = b.Rule("text before " + end)
	}
	if b.err != nil {
		return Never()
	}
	for i := range states {
		to := make([]ByteSet, len(end)+1)
		for c := range 256 {
			if !valid || c < utf8.RuneSelf {
				to[follow(end, i, byte(c))].Add(byte(c), byte(c))
			}
		}
		var alts []Expr
		for j, set := range to {
			switch {
			case set == (ByteSet{}):
			case j < len(end):
				alts = append(alts, Seq(Byte(set), Ref(states[j])))
			case !absent:
				alts = append(alts, Byte(set))
			}
		}
		if valid {
			// No byte of end begins or continues such a character.
			alts = append(alts, Seq(Runes(RuneRange{utf8.RuneSelf, utf8.MaxRune}), Ref(states[0])))
		}
		if absent {
			alts = append(alts, Expr{})
		}
		b.Define(states[i], Alt(alts...))
	}
	return Ref(states[0])
}

// follow returns how many bytes of end a text ends with that ended with n of them before c, at most len(end).
func follow(end string, n int, c byte) int {
	seen := end[:n] + string([]byte{c})
	for k := min(len(seen), len(end)); k > 0; k-- {
		if seen[len(seen)-k:] == end[:k] {
			return k
		}
	}
	return 0
}

// After is any bytes up to and including the first occurrence of end, such as </think>, up to two newlines, and e.
func (b *Builder) After(end string, e Expr) Expr {
	return Seq(b.Until(end, false), Repeat(Lit("\n"), 0, 2), e)
}
