package chat

import (
	"bytes"
	"crypto/rand"
	"strings"
	"unicode/utf8"
)

// An EventKind says what an event is.
type EventKind uint8

const (
	EventReasoning     EventKind = iota // Text goes on the reasoning
	EventContent                        // Text goes on the content
	EventCallStart                      // a call begins: Index, ID and Name
	EventCallArguments                  // Text goes on the JSON of the arguments of call Index
	EventCallEnd                        // call Index is complete
)

// An Event is a part of an answer.
type Event struct {
	Kind     EventKind
	Text     string
	Index    int // of a call, from 0
	ID, Name string
}

// ParserOptions say how to read an answer. The zero value is for a request without tools and a prompt without thinking.
type ParserOptions struct {
	// Tools are those of the request. Without any, no calls are looked for.
	Tools []Tool
	// NoCalls leaves calls in the content even so (tool_choice none).
	NoCalls bool
	// Think is where the answer starts, see [Prompt].
	Think Think
	// KeepTags leaves reasoning in the content as the model wrote it (reasoning_format none).
	KeepTags bool
	// NoCallInThink takes a call that a model writes without ending its reasoning first as reasoning.
	NoCallInThink bool
	// NewID makes the id of a call; nil is "call_" and 24 random letters and digits.
	NewID func() string
}

// Tags of a model's answer, besides those of thinking.
const (
	callOpen      = "<tool_call>"
	callClose     = "</tool_call>"
	functionOpen  = "<function="
	functionClose = "</function>"
	paramOpen     = "<parameter="
	paramClose    = "</parameter>"
)

// maxCall is how long a call may be, in bytes. A longer one is content.
const maxCall = 8 << 20

// A state is what the text that comes next belongs to.
type state uint8

const (
	stateStart state = iota // the answer may begin with <think>
	stateReasoning
	stateContent
	stateCall
)

// A Parser takes the text of an answer apart as it comes. Cuts may be anywhere, also inside of characters and tags: all
// events together say the same for every way to cut a text, and none holds half a character. Text is held back only while it may be
// the start of a tag, the newlines at an end, or a call, which is given whole once it is complete.
//
// Rules (specification, 4): reasoning lasts to the first </think>. Calls are looked for in the content, and in reasoning if they
// are complete and call a tool that there is; the reasoning then goes on after the call. What looks like a call but is none
// stays text. Newlines around reasoning and around content are dropped.
type Parser struct {
	o         ParserOptions
	state     state
	after     state  // of a call: the state that it stands in
	partial   []byte // the start of a character, at most 3 bytes
	buf       []byte // text that is not decided yet
	opener    string // of a call: the tag that is text again if this is no call
	call      callScanner
	limit     int // maxCall, less in tests
	channels  [2]channel
	calls     int
	thought   bool
	dropped   string
	events    []Event
	schemas   map[string]*schema
	callsWork bool
}

// A channel is the reasoning or the content.
type channel struct {
	started  bool
	newlines int // held back, because they may be at the end
}

// NewParser returns a parser at the start of an answer.
func NewParser(o ParserOptions) *Parser {
	p := &Parser{o: o, limit: maxCall, callsWork: len(o.Tools) > 0 && !o.NoCalls}
	if p.o.NewID == nil {
		p.o.NewID = newID
	}
	switch {
	case o.KeepTags || o.Think == ThinkClosed:
		p.state = stateContent
	case o.Think == ThinkOpen:
		p.state, p.thought = stateReasoning, true
	}
	p.schemas = make(map[string]*schema, len(o.Tools))
	for _, t := range o.Tools {
		p.schemas[t.Name] = &schema{root: t.Parameters}
	}
	return p
}

// newID returns a random id.
func newID() string {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	id := []byte("call_")
	var random [32]byte
	for len(id) < len("call_")+24 {
		rand.Read(random[:]) // never fails
		for _, b := range random {
			if int(b) < 256/len(letters)*len(letters) && len(id) < len("call_")+24 {
				id = append(id, letters[int(b)%len(letters)])
			}
		}
	}
	return string(id)
}

// Write takes the next text of the answer and returns what follows from it.
func (p *Parser) Write(text string) []Event {
	p.events = nil
	p.decode(text)
	p.advance()
	return p.events
}

// Reasoning reports whether the text that comes next is reasoning, as far as known.
func (p *Parser) Reasoning() bool {
	return p.state == stateReasoning || p.state == stateCall && p.after == stateReasoning
}

// Finish ends the answer. truncated says that it was cut off by a limit and not ended by the model: an unfinished call is then
// dropped rather than shown as text, unless the answer would be empty without.
func (p *Parser) Finish(truncated bool) []Event {
	p.events = nil
	if len(p.partial) > 0 {
		p.partial = nil
		p.buf = utf8.AppendRune(p.buf, utf8.RuneError)
	}
	p.advance()
	rest := string(p.buf)
	p.buf = nil
	switch p.state {
	case stateStart, stateContent:
		p.text(EventContent, rest)
	case stateReasoning:
		p.text(EventReasoning, rest)
	case stateCall:
		switch {
		case p.opener == "" && strings.HasPrefix(callClose, strings.TrimLeft(rest, blanks)):
			// Only the end of the tag is missing.
		case p.after == stateReasoning:
			p.text(EventReasoning, p.opener+rest)
		case truncated && (p.calls > 0 || p.channels[EventContent].started):
			p.dropped = p.opener + rest
		default:
			p.text(EventContent, p.opener+rest)
		}
	}
	p.state = stateContent
	return p.events
}

// Thought reports whether there was reasoning, even if it is empty.
func (p *Parser) Thought() bool { return p.thought }

// Unfinished returns the text of a call that Finish dropped.
func (p *Parser) Unfinished() string { return p.dropped }

// decode appends text as valid UTF-8 and keeps the start of a character at its end back. As in the tokenizer's decoder, a
// sequence that breaks off is one U+FFFD.
func (p *Parser) decode(text string) {
	if len(p.partial) == 0 && utf8.ValidString(text) {
		p.buf = append(p.buf, text...)
		return
	}
	s := append(p.partial, text...)
	for len(s) > 0 {
		c, n := utf8.DecodeRune(s)
		if c == utf8.RuneError && n == 1 {
			if !utf8.FullRune(s) {
				break
			}
			for n < len(s) && !utf8.FullRune(s[:n+1]) {
				n++
			}
		}
		p.buf = utf8.AppendRune(p.buf, c)
		s = s[n:]
	}
	p.partial = append([]byte(nil), s...)
}

// advance reads as much of the buffer as can be decided.
func (p *Parser) advance() {
	for more := true; more; {
		switch p.state {
		case stateStart:
			more = p.start()
		case stateReasoning:
			more = p.reasoning()
		case stateContent:
			more = p.content()
		case stateCall:
			more = p.inCall()
		}
	}
	if len(p.buf) == 0 {
		p.buf = nil // the array may be long
	}
}

// take removes the first n bytes of the buffer.
func (p *Parser) take(n int) string {
	s := string(p.buf[:n])
	p.buf = p.buf[n:]
	return s
}

// text gives text to the reasoning or the content.
func (p *Parser) text(kind EventKind, s string) {
	c := &p.channels[kind]
	if !c.started {
		if s = strings.TrimLeft(s, "\n"); s == "" {
			return
		}
		c.started = true
	}
	body := strings.TrimRight(s, "\n")
	if body == "" {
		c.newlines += len(s)
		return
	}
	newlines := strings.Repeat("\n", c.newlines)
	c.newlines = len(s) - len(body)
	if n := len(p.events); n > 0 && p.events[n-1].Kind == kind {
		p.events[n-1].Text += newlines + body
		return
	}
	p.events = append(p.events, Event{Kind: kind, Text: newlines + body})
}

// maxBlanks is how much white space <think> may come after.
const maxBlanks = 256

// start looks whether the answer begins with <think>.
func (p *Parser) start() bool {
	rest := bytes.TrimLeft(p.buf, blanks)
	m := match(rest, thinkOpen)
	if len(p.buf)-len(rest) > maxBlanks {
		m = matchNone
	}
	switch m {
	case matchMore:
		return false
	case matchFull:
		p.buf = rest[len(thinkOpen):]
		p.state, p.thought = stateReasoning, true
	default:
		p.state = stateContent
	}
	return true
}

// untilTag gives the text before the first of the tags and returns that tag, which it takes, or nothing when there is none.
// What may be the start of a tag stays in the buffer.
func (p *Parser) untilTag(kind EventKind, tags ...string) string {
	for from := 0; ; {
		i := bytes.IndexByte(p.buf[from:], '<')
		if i < 0 {
			p.text(kind, p.take(len(p.buf)))
			return ""
		}
		from += i
		for _, tag := range tags {
			switch match(p.buf[from:], tag) {
			case matchMore:
				p.text(kind, p.take(from))
				return ""
			case matchFull:
				p.text(kind, p.take(from))
				p.take(len(tag))
				return tag
			}
		}
		from++
	}
}

func (p *Parser) reasoning() bool {
	tags := []string{thinkClose, callOpen}
	if !p.callsWork || p.o.NoCallInThink {
		tags = tags[:1]
	}
	switch p.untilTag(EventReasoning, tags...) {
	case thinkClose:
		p.state = stateContent
	case callOpen:
		p.openCall(stateReasoning)
	default:
		return false
	}
	return true
}

func (p *Parser) content() bool {
	if !p.callsWork {
		p.text(EventContent, p.take(len(p.buf)))
		return false
	}
	if p.untilTag(EventContent, callOpen) == "" {
		return false
	}
	p.openCall(stateContent)
	return true
}

func (p *Parser) openCall(after state) {
	p.state, p.after, p.opener = stateCall, after, callOpen
	p.call = callScanner{}
	if after == stateReasoning { // a model that thinks about calls writes examples of them
		p.call.known = func(name string) bool { return p.schemas[name] != nil }
	}
}

// inCall reads a call.
func (p *Parser) inCall() bool {
	result := p.call.scan(p.buf)
	if result == scanMore && len(p.buf) > p.limit {
		p.call.at, result = len(p.buf), scanBad
	}
	switch result {
	case scanMore:
		return false
	case scanCall:
		p.give()
		p.take(p.call.at)
		p.opener = ""
		p.call = callScanner{phase: phaseClose, known: p.call.known}
	case scanClosed:
		p.take(p.call.at)
		p.state = p.after
	case scanBad:
		p.state = p.after
		kind := EventContent
		if p.after == stateReasoning {
			kind = EventReasoning
		}
		p.text(kind, p.opener+p.take(p.call.at))
	}
	return true
}

// give gives the call that was read.
func (p *Parser) give() {
	c := &p.call
	arguments := c.json
	if arguments == "" {
		arguments = p.schemas[c.name].object(c.args)
	}
	p.events = append(p.events,
		Event{Kind: EventCallStart, Index: p.calls, ID: p.o.NewID(), Name: c.name},
		Event{Kind: EventCallArguments, Index: p.calls, Text: arguments},
		Event{Kind: EventCallEnd, Index: p.calls})
	p.calls++
}

// A Call is a complete tool call of an answer.
type Call struct {
	ID, Name  string
	Arguments string // a JSON object, its keys in the order that the model wrote them
}

// An Answer is all that the events of an answer say.
type Answer struct {
	Reasoning *string // nil if the model did not think
	Content   *string // nil if there is none
	Calls     []Call
}

// Add adds events.
func (a *Answer) Add(events []Event) {
	for _, e := range events {
		switch e.Kind {
		case EventReasoning:
			a.Reasoning = appended(a.Reasoning, e.Text)
		case EventContent:
			a.Content = appended(a.Content, e.Text)
		case EventCallStart:
			a.Calls = append(a.Calls, Call{ID: e.ID, Name: e.Name})
		case EventCallArguments:
			a.Calls[e.Index].Arguments += e.Text
		}
	}
}

func appended(to *string, s string) *string {
	if to != nil {
		s = *to + s
	}
	return &s
}

// ParseAnswer reads a whole answer. truncated is as for [Parser.Finish].
func ParseAnswer(text string, o ParserOptions, truncated bool) Answer {
	p := NewParser(o)
	var a Answer
	a.Add(p.Write(text))
	a.Add(p.Finish(truncated))
	if p.thought && a.Reasoning == nil {
		a.Reasoning = new(string)
	}
	return a
}
