package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokenEOF   tokenKind = iota
	tokenText            // between tags
	tokenOpen            // {{ or {%, in text
	tokenClose           // }} or %}
	tokenName
	tokenString
	tokenNumber
	tokenOp
)

type token struct {
	kind  tokenKind
	at    pos
	text  string
	value Value // of a number
}

// operators are tried in this order, so the longer ones come first.
var operators = []string{
	"**", "//", "==", "!=", ">=", "<=",
	"+", "-", "*", "/", "%", "~", "(", ")", "[", "]", "{", "}", ">", "<", "=", ".", ":", "|", ",",
}

// A lexer cuts a template into tokens. White space around tags is dealt with here: blocks are trimmed (the newline after a
// {% %} tag goes) and left-stripped (so do blanks between a line's start and such a tag), as Hugging Face sets jinja2 up.
type lexer struct {
	name   string
	src    string
	i      int
	at     pos // of src[i]
	tokens []token
	// lineStart is whether src[i] is at the start of a line for the purpose of stripping: jinja2 knows it from the last
	// character of the tag before, with the white space that it took.
	lineStart bool
}

func lex(name, source string) ([]token, error) {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	source = strings.TrimSuffix(source, "\n") // keep_trailing_newline is off
	l := &lexer{name: name, src: source, at: pos{1, 1}, lineStart: true}
	for l.i < len(l.src) {
		if err := l.text(); err != nil {
			return nil, err
		}
	}
	l.emit(tokenEOF, l.at, "end of template")
	return l.tokens, nil
}

func (l *lexer) fail(at pos, format string, args ...any) error {
	return located(l.name, at, fmt.Errorf(format, args...))
}

func (l *lexer) emit(kind tokenKind, at pos, text string) {
	l.tokens = append(l.tokens, token{kind: kind, at: at, text: text})
}

// advance moves over n bytes.
func (l *lexer) advance(n int) {
	s := l.src[l.i : l.i+n]
	if k := strings.Count(s, "\n"); k > 0 {
		l.at = pos{l.at.line + int32(k), 1}
		s = s[strings.LastIndexByte(s, '\n')+1:]
	}
	l.at.col += int32(utf8.RuneCountInString(s))
	l.i += n
}

// skipSpace moves over white space.
func (l *lexer) skipSpace() {
	rest := l.src[l.i:]
	l.advance(len(rest) - len(strings.TrimLeftFunc(rest, isSpace)))
}

// text reads text up to the next tag, and that tag.
func (l *lexer) text() error {
	rest := l.src[l.i:]
	n := 0
	for {
		k := strings.IndexByte(rest[n:], '{')
		if k < 0 || n+k+1 >= len(rest) {
			l.emit(tokenText, l.at, rest)
			l.advance(len(rest))
			return nil
		}
		n += k
		if c := rest[n+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		n++
	}
	text, kind := rest[:n], rest[n+1]
	sign := byte(0)
	if n+2 < len(rest) && (rest[n+2] == '-' || rest[n+2] == '+') {
		sign = rest[n+2]
	}
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && kind != '{': // lstrip_blocks
		start := strings.LastIndexByte(text, '\n') + 1
		if (start > 0 || l.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
			text = text[:start]
		}
	}
	if text != "" {
		l.emit(tokenText, l.at, text)
	}
	l.advance(n)
	open := l.at
	l.advance(2)
	if sign != 0 {
		l.advance(1)
	}
	switch kind {
	case '#':
		return l.comment(open)
	case '%':
		if raw, err := l.raw(open); raw || err != nil {
			return err
		}
		l.emit(tokenOpen, open, "{%")
		return l.tag(open, "%}")
	}
	l.emit(tokenOpen, open, "{{")
	return l.tag(open, "}}")
}

// comment moves over a comment, of which the opening is behind.
func (l *lexer) comment(open pos) error {
	n := strings.Index(l.src[l.i:], "#}")
	if n < 0 {
		return l.fail(open, "the comment is not closed")
	}
	minus, plus := n > 0 && l.src[l.i+n-1] == '-', n > 0 && l.src[l.i+n-1] == '+'
	l.advance(n + 2)
	l.close(minus, plus, true)
	return nil
}

// close deals with the white space after a tag. trim says that a newline goes.
func (l *lexer) close(minus, plus, trim bool) {
	switch {
	case minus:
		l.skipSpace()
	case trim && !plus && l.i < len(l.src) && l.src[l.i] == '\n':
		l.advance(1)
	}
	l.lineStart = l.src[l.i-1] == '\n'
}

// raw reads {% raw %} … {% endraw %}, if that is the tag whose opening is behind.
func (l *lexer) raw(open pos) (bool, error) {
	minus, plus, n := l.bareTag(l.src[l.i:], "raw")
	if n == 0 {
		return false, nil
	}
	l.advance(n)
	l.close(minus, plus, true)
	for from := l.i; ; {
		k := strings.Index(l.src[from:], "{%")
		if k < 0 {
			return false, l.fail(open, "the raw block is not closed")
		}
		from += k + 2
		sign := byte(0)
		if from < len(l.src) && (l.src[from] == '-' || l.src[from] == '+') {
			sign = l.src[from]
			from++
		}
		minus, plus, n := l.bareTag(l.src[from:], "endraw")
		if n == 0 {
			continue
		}
		end := from - 2
		if sign != 0 {
			end--
		}
		text := l.src[l.i:end]
		switch {
		case sign == '-':
			text = strings.TrimRightFunc(text, isSpace)
		case sign == 0: // lstrip_blocks
			start := strings.LastIndexByte(text, '\n') + 1
			if (start > 0 || l.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
				text = text[:start]
			}
		}
		if text != "" {
			l.emit(tokenText, l.at, text)
		}
		l.advance(from + n - l.i)
		l.close(minus, plus, true)
		return true, nil
	}
}

// bareTag matches the rest of a block tag that is only a word, and returns the length of it, 0 for no match.
func (l *lexer) bareTag(s, word string) (minus, plus bool, n int) {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(s, isSpace), word)
	if !ok {
		return false, false, 0
	}
	rest = strings.TrimLeftFunc(rest, isSpace)
	if rest == "" {
		return false, false, 0
	}
	minus, plus = rest[0] == '-', rest[0] == '+'
	if minus || plus {
		rest = rest[1:]
	}
	if rest, ok = strings.CutPrefix(rest, "%}"); !ok {
		return false, false, 0
	}
	return minus, plus, len(s) - len(rest)
}

// tag reads the inside of a tag up to its end.
func (l *lexer) tag(open pos, end string) error {
	var brackets []byte
	for {
		l.skipSpace()
		rest := l.src[l.i:]
		if rest == "" {
			return l.fail(open, "the tag is not closed with %s", end)
		}
		if len(brackets) == 0 {
			minus := strings.HasPrefix(rest, "-"+end)
			plus := end == "%}" && strings.HasPrefix(rest, "+"+end)
			if minus || plus || strings.HasPrefix(rest, end) {
				l.emit(tokenClose, l.at, end)
				l.advance(len(end))
				if minus || plus {
					l.advance(1)
				}
				l.close(minus, plus, end == "%}")
				return nil
			}
		}
		at := l.at
		c, _ := utf8.DecodeRuneInString(rest)
		switch {
		case c == '"' || c == '\'':
			if err := l.string(byte(c)); err != nil {
				return err
			}
		case c >= '0' && c <= '9':
			if err := l.number(); err != nil {
				return err
			}
		case c == '_' || unicode.IsLetter(c):
			n := strings.IndexFunc(rest, func(c rune) bool {
				return c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) && !unicode.IsMark(c)
			})
			if n < 0 {
				n = len(rest)
			}
			l.emit(tokenName, at, rest[:n])
			l.advance(n)
		default:
			op := ""
			for _, o := range operators {
				if strings.HasPrefix(rest, o) {
					op = o
					break
				}
			}
			switch op {
			case "":
				return l.fail(at, "unexpected character %q", c)
			case "(", "[", "{":
				brackets = append(brackets, closing[op[0]])
			case ")", "]", "}":
				if len(brackets) == 0 || brackets[len(brackets)-1] != op[0] {
					return l.fail(at, "unexpected %q", op)
				}
				brackets = brackets[:len(brackets)-1]
			}
			l.emit(tokenOp, at, op)
			l.advance(len(op))
		}
	}
}

var closing = map[byte]byte{'(': ')', '[': ']', '{': '}'}

// number reads a number: whole in base 10, 16, 8 or 2, or with a fraction or an exponent, with underscores between digits.
func (l *lexer) number() error {
	rest, at := l.src[l.i:], l.at
	digits := func(i int, set string) int {
		for i < len(rest) && (strings.IndexByte(set, rest[i]) >= 0 || rest[i] == '_' && i+1 < len(rest) && strings.IndexByte(set, rest[i+1]) >= 0) {
			i++
		}
		return i
	}
	const decimal = "0123456789"
	n, base, float := 0, 10, false
	if len(rest) > 2 && rest[0] == '0' {
		for _, b := range []struct {
			letters, digits string
			base            int
		}{{"xX", "0123456789abcdefABCDEF", 16}, {"oO", "01234567", 8}, {"bB", "01", 2}} {
			if strings.IndexByte(b.letters, rest[1]) >= 0 && digits(2, b.digits) > 2 {
				n, base = digits(2, b.digits), b.base
			}
		}
	}
	if n == 0 {
		n = digits(0, decimal)
		afterDot := len(l.tokens) > 0 && l.tokens[len(l.tokens)-1].text == "." // x.0.1 has no fractions
		if !afterDot {
			if n+1 < len(rest) && rest[n] == '.' && digits(n+1, decimal) > n+1 {
				n, float = digits(n+1, decimal), true
			}
			if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
				k := n + 1
				if k < len(rest) && (rest[k] == '+' || rest[k] == '-') {
					k++
				}
				if m := digits(k, decimal); m > k {
					n, float = m, true
				}
			}
		}
	}
	text := strings.ReplaceAll(rest[:n], "_", "")
	var v Value
	if float {
		f, err := strconv.ParseFloat(text, 64)
		if f == 0 && err != nil {
			return l.fail(at, "the number %.40q cannot be read", text)
		}
		v = Float(f)
	} else {
		if base != 10 {
			text = text[2:]
		}
		var ok bool
		if v, ok = parseInt(text, base); !ok {
			return l.fail(at, "the number %.40q cannot be read", text)
		}
	}
	l.tokens = append(l.tokens, token{tokenNumber, at, rest[:n], v})
	l.advance(n)
	return nil
}

// maxDigits is how long a whole number may be: reading and printing one takes time by the square of its length. It is
// Python's bound too.
const maxDigits = 4300

// parseInt reads a whole number with an optional sign.
func parseInt(s string, base int) (Value, bool) {
	if i, err := strconv.ParseInt(s, base, 64); err == nil {
		return Int(i), true
	}
	if len(s) > maxDigits {
		return nil, false
	}
	n, ok := new(big.Int).SetString(s, base)
	if !ok {
		return nil, false
	}
	return Big{n}, true
}

// string reads a string literal.
func (l *lexer) string(quote byte) error {
	rest := l.src[l.i:]
	n := 1
	for n < len(rest) && rest[n] != quote {
		if rest[n] == '\\' {
			n++
		}
		n++
	}
	if n >= len(rest) {
		return l.fail(l.at, "the string is not closed")
	}
	s, err := unescape(rest[1:n])
	if err != nil {
		return l.fail(l.at, "%w", err)
	}
	l.emit(tokenString, l.at, s)
	l.advance(n + 1)
	return nil
}

// escapes are the characters of the escapes with one letter.
var escapes = map[byte]string{
	'n': "\n", 't': "\t", 'r': "\r", '\\': `\`, '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v", '\n': "",
}

// unescape resolves the escapes of a string literal as Python does; an unknown one stays as it is.
func unescape(s string) (string, error) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			i++
			continue
		}
		c := s[i+1]
		i += 2
		if e, ok := escapes[c]; ok {
			b.WriteString(e)
			continue
		}
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		switch {
		case digits > 0:
			if i+digits > len(s) {
				return "", fmt.Errorf(`the escape \%c needs %d digits`, c, digits)
			}
			n, err := strconv.ParseUint(s[i:i+digits], 16, 32)
			if err != nil || n > unicode.MaxRune {
				return "", fmt.Errorf(`the escape \%c%.8s is not a character`, c, s[i:])
			}
			i += digits
			b.WriteRune(rune(n)) // half of a surrogate pair becomes U+FFFD
		case c >= '0' && c <= '7':
			n := 0
			for k := i - 1; k < len(s) && k < i+2 && s[k] >= '0' && s[k] <= '7'; k++ {
				n = n*8 + int(s[k]-'0')
			}
			for k := 0; k < 2 && i < len(s) && s[i] >= '0' && s[i] <= '7'; k++ {
				i++
			}
			b.WriteRune(rune(n))
		case c == 'N':
			return "", fmt.Errorf(`the escape \N is not supported`)
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}
