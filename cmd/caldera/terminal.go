package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// SGR codes of the few colours in use.
const (
	red   = "31"
	green = "32"
	dim   = "2"
)

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// isPiped reports whether a stream has content waiting for a program to read it: a pipe or a file rather than
// a terminal or /dev/null.
func isPiped(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return stream != nil // a test's reader
	}
	info, err := f.Stat()
	return err == nil && (info.Mode().IsRegular() || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0)
}

// wantsColor decides about colour for a stream: the user's word, or else a terminal that is not dumb while
// NO_COLOR is unset or empty.
func wantsColor(mode string, terminal bool) bool {
	switch mode {
	case "always":
		return true
	case "never":
		return false
	}
	return terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// paint colours text.
func (a *app) paint(on bool, code, text string) string {
	if !on {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// printable makes text from a file or a driver safe for a terminal: what does not print is escaped, and so are bytes
// that are no UTF-8: some terminals take them for control characters, and a tabwriter takes one for its own.
func printable(s string) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// textWriter passes a model's text on to a terminal without the control characters with which it could drive it.
type textWriter struct {
	w    io.Writer
	safe bool // strip control characters other than newline and tab
}

func (t textWriter) write(s string) error {
	if t.safe {
		s = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) && r != '\n' && r != '\t' {
				return -1
			}
			return r
		}, s)
	}
	_, err := io.WriteString(t.w, s)
	return err
}

// progressEvery is how often a plain progress line may come when stderr is not a terminal.
const progressEvery = 5 * time.Second

// A progress shows how far a long task is: a line that rewrites itself on a terminal, else a plain line at most
// every five seconds and one at the end. The zero value shows nothing.
type progress struct {
	w        io.Writer
	terminal bool
	width    int
	next     time.Time
	last     string
	shown    bool // a line is on the screen
	fresh    bool // the last line is not
}

// newProgress returns a progress on stderr, silent when the user wants quiet or a program reads the output.
func (a *app) newProgress() *progress {
	p := &progress{}
	if a.cfg.Quiet || a.json {
		return p
	}
	p.w, p.terminal, p.width = a.errw, isTerminal(a.errw), 80
	if f, ok := a.errw.(*os.File); ok && p.terminal {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			p.width = w
		}
	}
	// What is done before this much time has passed needs no progress at all.
	p.next = time.Now().Add(time.Second)
	return p
}

// update shows a line.
func (p *progress) update(format string, args ...any) {
	if p.w == nil {
		return
	}
	p.last = fmt.Sprintf(format, args...)
	now := time.Now()
	if p.fresh = now.Before(p.next); p.fresh {
		return
	}
	p.shown = true
	if p.terminal {
		p.next = now.Add(100 * time.Millisecond)
		fmt.Fprintf(p.w, "\r\x1b[K%.*s", p.width-1, p.last)
		return
	}
	p.next = now.Add(progressEvery)
	fmt.Fprintln(p.w, p.last)
}

// done ends the line, if any was shown.
func (p *progress) done() {
	if p.w == nil || !p.shown {
		return
	}
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	} else if p.fresh {
		fmt.Fprintln(p.w, p.last)
	}
	p.shown, p.fresh = false, false
}
