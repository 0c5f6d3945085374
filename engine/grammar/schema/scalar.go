package schema

import (
	"math/big"
	"strings"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/grammar/pattern"
)

// formats are the supported formats as patterns of the whole string. They are at least as narrow as the RFCs: dates
// are those of the calendar, there are no leap seconds, a fraction has up to nine digits, and an address of electronic
// mail has neither quotes nor more than 63 characters before the @.
var formats = map[string]string{
	"date-time": datePattern + `T` + timePattern,
	"date":      datePattern,
	"time":      timePattern,
	"uuid":      `[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`,
	"email": `[A-Za-z0-9_+-](\.?[A-Za-z0-9_+-]){0,31}@` +
		`[A-Za-z0-9](-?[A-Za-z0-9]){0,30}(\.[A-Za-z0-9](-?[A-Za-z0-9]){0,30}){1,3}`,
}

const (
	datePattern = `([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|` +
		`([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)`
	timePattern = `([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])`
)

// string returns the JSON strings of a leaf.
func (c *compiler) string(l *leaf) grammar.Expr {
	quote := grammar.Lit(`"`)
	switch {
	case len(l.patterns) > 0:
		e, err := pattern.Compile(c.ctx, c.b, pattern.Constraint{Patterns: l.patterns, Min: l.minLength, Max: l.maxLength},
			pattern.JSON)
		if err != nil {
			return c.errPattern(l.pattern, l.patternKey, err)
		}
		return grammar.Seq(quote, e, quote)
	case l.limitsStrings():
		if l.maxLength != grammar.Unbounded && l.maxLength < l.minLength {
			return grammar.Never()
		}
		return grammar.Seq(quote, grammar.Repeat(c.char(), l.minLength, l.maxLength), quote)
	}
	return c.once("string", func() grammar.Expr {
		return grammar.Seq(quote, grammar.Repeat(stringChar, 0, grammar.Unbounded), quote)
	})
}

// char is a rule of one character of a JSON string.
func (c *compiler) char() grammar.Expr {
	return c.once("character", func() grammar.Expr { return stringChar })
}

// stringChar is one character of a JSON string in any of its forms.
var stringChar = grammar.Alt(
	grammar.Runes(grammar.Complement([]grammar.RuneRange{{Lo: 0, Hi: 0x1f}, {Lo: '"', Hi: '"'}, {Lo: '\\', Hi: '\\'}})...),
	grammar.Seq(grammar.Lit(`\`), grammar.Alt(
		grammar.Byte(anyOf(`"\/bfnrt`)),
		grammar.Seq(grammar.Lit("u"), grammar.Alt(
			grammar.Seq(grammar.Byte(anyOf("0123456789abcefABCEF")), hex, hex, hex),
			grammar.Seq(grammar.Byte(anyOf("dD")), grammar.Byte(anyOf("01234567")), hex, hex),
			grammar.Seq(grammar.Byte(anyOf("dD")), grammar.Byte(anyOf("89abAB")), hex, hex,
				grammar.Lit(`\u`), grammar.Byte(anyOf("dD")), grammar.Byte(anyOf("cdefCDEF")), hex, hex),
		)),
	)),
)

var (
	hex    = grammar.Byte(anyOf("0123456789abcdefABCDEF"))
	digit  = grammar.Byte(anyOf("0123456789"))
	digit1 = grammar.Byte(anyOf("123456789"))
)

func anyOf(s string) grammar.ByteSet {
	var set grammar.ByteSet
	for i := range len(s) {
		set.Add(s[i], s[i])
	}
	return set
}

// maxDigits is the greatest number of digits of an integer or of either part of a number. It leaves room for every
// 64-bit integer and every number that a float64 prints as without exponent, and ends the digits of a model that
// would go on for ever.
const maxDigits = 24

// number is any JSON number.
func (c *compiler) number() grammar.Expr {
	return c.once("number", func() grammar.Expr {
		return grammar.Seq(
			grammar.Opt(grammar.Lit("-")),
			grammar.Alt(grammar.Lit("0"), grammar.Seq(digit1, grammar.Repeat(digit, 0, maxDigits-1))),
			grammar.Opt(grammar.Seq(grammar.Lit("."), grammar.Repeat(digit, 1, maxDigits))),
			grammar.Opt(grammar.Seq(grammar.Byte(anyOf("eE")), grammar.Opt(grammar.Byte(anyOf("+-"))),
				grammar.Alt(digit, grammar.Seq(digit, digit), grammar.Seq(grammar.Byte(anyOf("012")), digit, digit)))))
	})
}

// integer is an integer from least to most.
func (c *compiler) integer(least, most *big.Int) grammar.Expr {
	if least == nil && most == nil {
		return c.once("integer", func() grammar.Expr {
			return grammar.Alt(grammar.Lit("0"),
				grammar.Seq(grammar.Opt(grammar.Lit("-")), digit1, grammar.Repeat(digit, 0, maxDigits-1)))
		})
	}
	// Without a bound there are up to maxDigits digits, and one more than the other bound has.
	far := func(bound *big.Int) *big.Int {
		n := max(maxDigits, len(bound.Text(10))+1)
		return new(big.Int).Sub(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil), big.NewInt(1))
	}
	if most == nil {
		most = far(least)
	}
	if least == nil {
		least = new(big.Int).Neg(far(most))
	}
	var alts []grammar.Expr
	if least.Sign() < 0 {
		// The magnitudes of the negative ones.
		from, to := big.NewInt(1), new(big.Int).Neg(least)
		if most.Sign() < 0 {
			from = new(big.Int).Neg(most)
		}
		alts = append(alts, grammar.Seq(grammar.Lit("-"), naturals(from, to)))
	}
	if most.Sign() >= 0 {
		from := least
		if from.Sign() < 0 {
			from = new(big.Int)
		}
		alts = append(alts, naturals(from, most))
	}
	return grammar.Alt(alts...)
}

// naturals are the numbers from lo to hi, which are not negative, in decimal digits without leading zeros.
func naturals(lo, hi *big.Int) grammar.Expr {
	a, b := lo.Text(10), hi.Text(10)
	if lo.Cmp(hi) > 0 {
		return grammar.Never()
	}
	var alts []grammar.Expr
	for n := len(a); n <= len(b); n++ {
		from, to := "1"+strings.Repeat("0", n-1), strings.Repeat("9", n)
		if n == len(a) {
			from = a
		}
		if n == len(b) {
			to = b
		}
		alts = append(alts, digits(from, to))
	}
	return grammar.Alt(alts...)
}

// digits are the strings of digits from lo to hi, which have the same length.
func digits(lo, hi string) grammar.Expr {
	n := len(lo)
	if n == 0 {
		return grammar.Expr{}
	}
	free := grammar.Repeat(digit, n-1, n-1)
	lows, highs := strings.Repeat("0", n-1), strings.Repeat("9", n-1)
	if lo[0] == hi[0] {
		return grammar.Seq(grammar.Lit(lo[:1]), digits(lo[1:], hi[1:]))
	}
	var alts []grammar.Expr
	first, last := lo[0], hi[0]
	if lo[1:] != lows {
		alts = append(alts, grammar.Seq(grammar.Lit(lo[:1]), digits(lo[1:], highs)))
		first++
	}
	if hi[1:] != highs {
		alts = append(alts, grammar.Seq(grammar.Lit(hi[:1]), digits(lows, hi[1:])))
		last--
	}
	if first <= last {
		alts = append(alts, grammar.Seq(grammar.Byte(grammar.Range(first, last)), free))
	}
	return grammar.Alt(alts...)
}
