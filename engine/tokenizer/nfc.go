package tokenizer

import (
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxSafeRun is how many characters may follow a starter before its stretch is
// normalised here instead of by package norm.
const maxSafeRun = 20

// normalize returns text in Unicode normalisation form C.
//
// Package norm implements the stream-safe form (UAX #15, section 13): after 30
// non-starters in a row it puts a U+034F, which the tokenizers that the models were
// trained with do not. So stretches with a long run are cut out and normalised by
// appendLongRun; package norm does the rest.
func normalize(s string) string {
	n := norm.NFC.QuickSpanString(s)
	if n == len(s) {
		return s
	}
	dst := make([]byte, 0, len(s))
	for from := 0; ; {
		dst = append(dst, s[from:from+n]...)
		from += n
		if from == len(s) {
			return string(dst)
		}
		// What is in doubt ends before the next ASCII character: none composes
		// with what comes before it.
		to := from + 1
		for to < len(s) && s[to] >= utf8.RuneSelf {
			to++
		}
		dst = appendNormal(dst, s[from:to])
		from = to
		n = norm.NFC.QuickSpanString(s[from:])
	}
}

// appendNormal appends form C of a stretch that nothing before composes with. (Across
// such a boundary norm.NFC.AppendString does not look back at what is in dst.)
func appendNormal(dst []byte, s string) []byte {
	done := 0  // s[:done] is in dst
	start := 0 // the last place that nothing composes across
	run := 0   // decomposed characters since
	for i := 0; i < len(s); {
		p := norm.NFC.PropertiesString(s[i:])
		if p.BoundaryBefore() {
			if run > maxSafeRun {
				dst = norm.NFC.AppendString(dst, s[done:start])
				dst = appendLongRun(dst, s[start:i])
				done = i
			}
			start, run = i, 0
		}
		run += max(utf8.RuneCount(p.Decomposition()), 1)
		i += max(p.Size(), 1)
	}
	if run > maxSafeRun {
		dst = norm.NFC.AppendString(dst, s[done:start])
		return appendLongRun(dst, s[start:])
	}
	return norm.NFC.AppendString(dst, s[done:])
}

// appendLongRun appends form C of a stretch that nothing composes into or out of: the
// canonical decomposition of each character, the canonical ordering of each run of
// non-starters, then the canonical composition (Unicode standard, section 3.11). Package norm
// is asked only about single characters and pairs, for which stream safety plays no part.
func appendLongRun(dst []byte, s string) []byte {
	type char struct {
		r   rune
		ccc uint8 // canonical combining class, 0 for a starter
	}
	var chars, sorted []char
	var buf, pair []byte
	for i := 0; i < len(s); {
		_, n := utf8.DecodeRuneInString(s[i:])
		buf = norm.NFD.AppendString(buf[:0], s[i:i+n])
		i += n
		for p := buf; len(p) > 0; {
			r, n := utf8.DecodeRune(p)
			chars = append(chars, char{r, norm.NFD.Properties(p).CCC()})
			p = p[n:]
		}
	}
	for i := 0; i < len(chars); {
		if chars[i].ccc == 0 {
			i++
			continue
		}
		j := i
		var places [257]int // number of characters of lower class
		for ; j < len(chars) && chars[j].ccc != 0; j++ {
			places[int(chars[j].ccc)+1]++
		}
		for c := range 256 {
			places[c+1] += places[c]
		}
		sorted = append(sorted[:0], chars[i:j]...)
		for _, c := range sorted {
			chars[i+places[c.ccc]] = c
			places[c.ccc]++
		}
		i = j
	}
	out := chars[:0]
	starter := -1 // in out
	for _, c := range chars {
		if starter >= 0 {
			// A character is blocked from its starter by one between them that is
			// a starter or of a class not below its own.
			last := out[len(out)-1]
			if len(out)-1 == starter || last.ccc != 0 && last.ccc < c.ccc {
				pair = utf8.AppendRune(utf8.AppendRune(pair[:0], out[starter].r), c.r)
				buf = norm.NFC.Append(buf[:0], pair...)
				if r, n := utf8.DecodeRune(buf); n == len(buf) {
					out[starter].r = r
					continue
				}
			}
		}
		if c.ccc == 0 {
			starter = len(out)
		}
		out = append(out, c)
	}
	for _, c := range out {
		dst = utf8.AppendRune(dst, c.r)
	}
	return dst
}
