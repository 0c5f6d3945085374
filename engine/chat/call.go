package chat

import (
	"bytes"
	"encoding/json"
	"strings"
)

// blanks is the white space that may stand between the tags of a call.
const blanks = " \t\r\n"

// matching is how text begins.
type matching uint8

const (
	matchNone matching = iota
	matchMore          // it may become the tag
	matchFull
)

// match compares the start of a text with a tag.
func match(text []byte, tag string) matching {
	switch {
	case len(text) >= len(tag) && string(text[:len(tag)]) == tag:
		return matchFull
	case len(text) < len(tag) && tag[:len(text)] == string(text):
		return matchMore
	}
	return matchNone
}

// matchAny compares the start of a text with tags, and returns the one that it is.
func matchAny(text []byte, tags ...string) (string, matching) {
	result := matchNone
	for _, tag := range tags {
		switch match(text, tag) {
		case matchFull:
			return tag, matchFull
		case matchMore:
			result = matchMore
		}
	}
	return "", result
}

// A callScanner reads what follows <tool_call>: the form that Qwen3.5 and Qwen3-Coder are taught,
//
//	<function=NAME>
//	<parameter=KEY>
//	VALUE
//	</parameter>
//	</function>
//	</tool_call>
//
// or that of Qwen3, {"name": NAME, "arguments": {…}}. It goes on where it stopped, so that a long call that comes in small
// pieces is read once. White space between tags may be missing or more.
//
// A value can hold anything. It ends at a </parameter> after which another tag of the call comes, or, because models
// sometimes forget that, at </function> and </tool_call> after each other.
type callScanner struct {
	known func(name string) bool // if set, calls of other tools are no calls

	phase phase
	at    int // everything before is understood
	from  int // where the name, key, value or object that is being read begins
	find  int // in a value: no end of it begins before
	look  int // white space up to here was skipped already

	depth          int // of the braces and brackets of an object
	quoted, escape bool

	// What was read.
	name string
	args []argument
	json string // the arguments, of the form of Qwen3
}

// An argument is one of a call, as the model wrote it.
type argument struct{ key, value string }

type phase uint8

const (
	phaseOpen  phase = iota // before <function= or {
	phaseName               // before the > of <function=NAME>
	phaseBody               // before <parameter= or </function>
	phaseKey                // before the > of <parameter=KEY>
	phaseValue              // before </parameter>
	phaseJSON               // before the last }
	phaseClose              // before </tool_call>
)

type scanResult uint8

const (
	scanMore   scanResult = iota // not decided yet
	scanBad                      // this is no call; the text up to at belongs to that
	scanCall                     // a call is complete, and ends at at
	scanClosed                   // there are no more calls inside of the tag, which ends at at
)

// scanAgain is what the phases return to let the next one have a go.
const scanAgain scanResult = 255

// scan reads on. buf is the text after the tag, with more at its end than the last time.
func (c *callScanner) scan(buf []byte) scanResult {
	phases := [...]func([]byte) scanResult{
		phaseOpen: c.open, phaseName: c.readName, phaseBody: c.body, phaseKey: c.key, phaseValue: c.value, phaseJSON: c.object, phaseClose: c.close,
	}
	for {
		if r := phases[c.phase](buf); r != scanAgain {
			return r
		}
	}
}

// skip returns where the white space that begins at i ends.
func (c *callScanner) skip(buf []byte, i int) int {
	i = max(i, c.look)
	for i < len(buf) && strings.IndexByte(blanks, buf[i]) >= 0 {
		i++
	}
	c.look = i
	return i
}

func (c *callScanner) open(buf []byte) scanResult {
	c.at = c.skip(buf, c.at)
	if c.at < len(buf) && buf[c.at] == '{' {
		c.phase, c.from = phaseJSON, c.at
		return scanAgain
	}
	switch match(buf[c.at:], functionOpen) {
	case matchMore:
		return scanMore
	case matchFull:
		c.at += len(functionOpen)
		c.phase, c.from = phaseName, c.at
		return scanAgain
	}
	return scanBad
}

// word reads up to a >, on one line.
func (c *callScanner) word(buf []byte) (string, scanResult) {
	for ; c.at < len(buf); c.at++ {
		switch b := buf[c.at]; {
		case b == '>' && c.at > c.from:
			c.at++
			return string(buf[c.from : c.at-1]), scanAgain
		case b == '>' || b == '<' || b == '\n' || c.at-c.from > maxName:
			return "", scanBad
		}
	}
	return "", scanMore
}

func (c *callScanner) readName(buf []byte) scanResult {
	name, r := c.word(buf)
	if r != scanAgain {
		return r
	}
	if c.known != nil && !c.known(name) {
		return scanBad
	}
	c.name, c.args, c.phase = name, nil, phaseBody
	return scanAgain
}

func (c *callScanner) body(buf []byte) scanResult {
	c.at = c.skip(buf, c.at)
	tag, m := matchAny(buf[c.at:], paramOpen, functionClose, callClose)
	switch {
	case m == matchMore:
		return scanMore
	case m == matchNone:
		return scanBad
	case tag == paramOpen:
		c.at += len(paramOpen)
		c.phase, c.from = phaseKey, c.at
		return scanAgain
	case tag == functionClose:
		c.at += len(functionClose)
	}
	return scanCall // a missing </function> is forgiven
}

func (c *callScanner) key(buf []byte) scanResult {
	key, r := c.word(buf)
	if r == scanAgain {
		c.args = append(c.args, argument{key: key})
		c.phase, c.from, c.find = phaseValue, c.at, c.at
	}
	return r
}

func (c *callScanner) value(buf []byte) scanResult {
	for {
		i := bytes.Index(buf[c.find:], []byte("</"))
		if i < 0 {
			c.find = max(c.find, len(buf)-1)
			return scanMore
		}
		i += c.find
		c.find = i
		tag, m := matchAny(buf[i:], paramClose, functionClose)
		if m == matchFull {
			// Is it the end? What follows tells.
			follow := []string{paramOpen, functionClose, callClose}
			if tag == functionClose {
				follow = follow[2:]
			}
			next := c.skip(buf, i+len(tag))
			if _, m = matchAny(buf[next:], follow...); m == matchFull {
				c.args[len(c.args)-1].value = string(buf[c.from:i])
				if c.at = i; tag == paramClose {
					c.at = next
				}
				c.look = 0
				c.phase = phaseBody
				return scanAgain
			}
		}
		if m == matchMore {
			return scanMore
		}
		c.find = i + len("</")
	}
}

// object reads a JSON object to its end.
func (c *callScanner) object(buf []byte) scanResult {
	for ; c.at < len(buf); c.at++ {
		switch b := buf[c.at]; {
		case c.escape:
			c.escape = false
		case c.quoted:
			c.escape = b == '\\'
			c.quoted = b != '"'
		case b == '"':
			c.quoted = true
		case b == '{' || b == '[':
			c.depth++
		case b == '}' || b == ']':
			if c.depth--; c.depth == 0 {
				c.at++
				return c.readObject(buf[c.from:c.at])
			}
		}
	}
	return scanMore
}

func (c *callScanner) readObject(data []byte) scanResult {
	var o map[string]json.RawMessage
	if json.Unmarshal(data, &o) != nil || json.Unmarshal(o["name"], &c.name) != nil || c.name == "" {
		return scanBad
	}
	if c.known != nil && !c.known(c.name) {
		return scanBad
	}
	arguments := bytes.TrimSpace(o["arguments"])
	if len(arguments) > 0 && arguments[0] == '"' { // an object inside of a string
		var s string
		if json.Unmarshal(arguments, &s) != nil {
			return scanBad
		}
		arguments = []byte(strings.TrimSpace(s))
	}
	if len(arguments) == 0 || string(arguments) == "null" {
		arguments = []byte("{}")
	}
	var compact bytes.Buffer
	if arguments[0] != '{' || json.Compact(&compact, arguments) != nil {
		return scanBad
	}
	c.json = compact.String()
	return scanCall
}

func (c *callScanner) close(buf []byte) scanResult {
	next := c.skip(buf, c.at)
	switch tag, m := matchAny(buf[next:], callClose, functionOpen); {
	case m == matchMore:
		return scanMore
	case m == matchNone: // the end is forgotten; the white space belongs to what follows
		return scanClosed
	case tag == callClose:
		c.at = next + len(callClose)
		return scanClosed
	}
	c.at = next + len(functionOpen)
	c.phase, c.from = phaseName, c.at
	return scanAgain
}
