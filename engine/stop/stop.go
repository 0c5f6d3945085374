// Package stop ends texts at stop strings. A text comes in pieces that may be cut anywhere between characters, a
// stop string may begin in one piece and end in another, and no part of it is ever given out.
package stop

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of what a request may ask for.
const (
	MaxStrings = 64
	MaxBytes   = 1024 // of one string
)

// A Matcher looks for stop strings in a text. The string that ends first counts, and of those that end at the same place the
// longest, so that what is found does not depend on how the text is cut.
type Matcher struct {
	stops []string
	held  string // text that may be the beginning of a stop string
	found string
}

// New returns a matcher, which for no strings lets everything pass.
func New(stops []string) (*Matcher, error) {
	if len(stops) > MaxStrings {
		return nil, fmt.Errorf("%d stop strings; there may be %d", len(stops), MaxStrings)
	}
	for i, s := range stops {
		switch {
		case s == "":
			return nil, fmt.Errorf("stop string %d is empty", i)
		case len(s) > MaxBytes:
			return nil, fmt.Errorf("stop string %d has %d bytes; it may have %d", i, len(s), MaxBytes)
		case !utf8.ValidString(s):
			return nil, errors.New("a stop string is not UTF-8")
		}
	}
	return &Matcher{stops: append([]string(nil), stops...)}, nil
}

// Push takes the next piece of the text and returns what can be given out, and whether a stop string has ended the text.
// After that nothing more must be pushed.
func (m *Matcher) Push(piece string) (out string, stopped bool) {
	if len(m.stops) == 0 || piece == "" {
		return piece, false
	}
	text := m.held + piece
	for end := len(m.held) + 1; end <= len(text); end++ {
		if s := m.endsWith(text[:end]); s != "" {
			m.held, m.found = "", s
			return text[:end-len(s)], true
		}
	}
	m.held = text[len(text)-m.open(text):]
	return text[:len(text)-len(m.held)], false
}

// endsWith returns the longest stop string that a text ends with.
func (m *Matcher) endsWith(text string) (longest string) {
	for _, s := range m.stops {
		if len(s) > len(longest) && strings.HasSuffix(text, s) {
			longest = s
		}
	}
	return longest
}

// open is the length of the longest end of a text that a stop string begins with.
func (m *Matcher) open(text string) (longest int) {
	for _, s := range m.stops {
		for n := min(len(s)-1, len(text)); n > longest; n-- {
			if strings.HasSuffix(text, s[:n]) {
				longest = n
			}
		}
	}
	return longest
}

// Flush ends the text and returns what was held back.
func (m *Matcher) Flush() string {
	out := m.held
	m.held = ""
	return out
}

// Found is the stop string that ended the text, empty before.
func (m *Matcher) Found() string { return m.found }
