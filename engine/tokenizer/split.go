package tokenizer

import "unicode/utf8"

// A splitter cuts text into the pieces inside which merges happen. It is the
// hand-written equivalent of a regular expression tried at each position, the first
// alternative that matches winning:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)
//	[^\r\n\p{L}\p{N}]?W+
//	\p{N}
//	 ?[^\sW\p{N}]+[\r\n]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
//
// where W is [\p{L}\p{M}] for qwen35 and \p{L} for qwen2. Every character is in one
// of the alternatives, so the pieces make up the whole text.
type splitter struct {
	classes *classTable
	word    class // W
	punct   class // [^\sW\p{N}]
}

// newSplitter returns the splitter of qwen35, in which marks belong to words, or of qwen2.
func newSplitter(marks bool) splitter {
	s := splitter{classes: classes(), word: letter, punct: other | mark}
	if marks {
		s.word, s.punct = letter|mark, other
	}
	return s
}

// class returns the class and length of the character at text[i:], 0 and 0 at the end.
func (s *splitter) class(text string, i int) (class, int) {
	if i >= len(text) {
		return 0, 0
	}
	if c := text[i]; c < utf8.RuneSelf {
		return s.classes.ascii[c], 1
	}
	r, n := utf8.DecodeRuneInString(text[i:])
	return s.classes.of(r), n
}

// span returns the end of the run of characters of a set that starts at text[i:].
func (s *splitter) span(text string, i int, set class) int {
	for i < len(text) {
		if c := text[i]; c < utf8.RuneSelf {
			if s.classes.ascii[c]&set == 0 {
				break
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if s.classes.of(r)&set == 0 {
			break
		}
		i += n
	}
	return i
}

// next returns the length of the first piece of a text that is not empty.
func (s *splitter) next(text string) int {
	c, n := s.class(text, 0)
	switch {
	case c&s.word != 0:
		// Where marks belong to words, one that could be the optional character
		// before the word gives the same piece either way.
		return s.span(text, n, s.word)
	case c&number != 0:
		return n
	case text[0] == '\'':
		if n := contraction(text); n > 0 {
			return n
		}
	}
	after, m := s.class(text, n)
	if c != newline && after&s.word != 0 {
		return s.span(text, n+m, s.word)
	}
	if c&s.punct != 0 || text[0] == ' ' && after&s.punct != 0 {
		return s.span(text, s.span(text, n, s.punct), newline)
	}
	return s.spaces(text)
}

// spaces returns the length of the piece of a text that starts with white space
// not taken by any of the first four alternatives.
func (s *splitter) spaces(text string) int {
	lines := 0 // end of the last newline
	last := 0  // start of the last character
	i := 0
	for i < len(text) {
		c, n := s.class(text, i)
		if c&(space|newline) == 0 {
			break
		}
		last = i
		i += n
		if c == newline {
			lines = i
		}
	}
	switch {
	case lines > 0: // \s*[\r\n]+ gives back what follows the last newline
		return lines
	case i == len(text) || last == 0: // \s+(?!\S) at the end, or \s+ of one character
		return i
	default: // \s+(?!\S) leaves the last space to what follows
		return last
	}
}

// contraction returns the length of an English contraction ('s, 't, 're, 've, 'm,
// 'll or 'd in any case) at the start of a text that begins with an apostrophe, 0 for none.
func contraction(text string) int {
	if len(text) < 2 {
		return 0
	}
	switch text[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(text) > 2 && text[2]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if len(text) > 2 && text[2]|0x20 == 'l' {
			return 3
		}
	}
	// Folding case makes the long s, U+017F, an s too.
	if len(text) > 2 && text[1] == 0xc5 && text[2] == 0xbf {
		return 3
	}
	return 0
}
