package pattern

import (
	"fmt"
	"unicode"

	"github.com/calderaml/caldera/engine/grammar"
)

// An Encoder returns the expression of one character of a set, as it is written in the text. The ranges are in order.
type Encoder func(ranges []grammar.RuneRange) grammar.Expr

// Raw writes a character as UTF-8.
func Raw(ranges []grammar.RuneRange) grammar.Expr { return grammar.Runes(ranges...) }

// escapes are JSON's short escapes of characters that may not stand in a string as they are.
var escapes = map[rune]string{
	'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`,
}

// JSON writes a character as in a JSON string: as it is where JSON allows that, else by its short escape, else as
// \u00XX with either case of the hexadecimal digits. Other ways to write a character, such as \u0041 or \/, are left
// out, so that there is one.
func JSON(ranges []grammar.RuneRange) grammar.Expr {
	alts := []grammar.Expr{grammar.Runes(grammar.Intersect(ranges, plain)...)}
	for _, r := range ranges {
		for c := r.Lo; c <= min(r.Hi, '\\'); c++ {
			short, special := escapes[c]
			switch {
			case special:
				alts = append(alts, grammar.Lit(short))
			case c < 0x20:
				upper, lower := fmt.Sprintf(`\u%04X`, c), fmt.Sprintf(`\u%04x`, c)
				alts = append(alts, grammar.Lit(lower))
				if upper != lower {
					alts = append(alts, grammar.Lit(upper))
				}
			}
		}
	}
	return grammar.Alt(alts...)
}

// plain are the characters that stand for themselves in a JSON string.
var plain = grammar.Complement([]grammar.RuneRange{{Lo: 0, Hi: 0x1f}, {Lo: '"', Hi: '"'}, {Lo: '\\', Hi: '\\'}})

// folded returns the characters that differ from r at most in case.
func folded(r rune) []rune {
	all := []rune{r}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		all = append(all, f)
	}
	return all
}
