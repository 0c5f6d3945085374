package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// lines reads what somebody types, with editing and a history on a terminal (golang.org/x/term), or the lines of a stream.
type lines struct {
	a        *app
	ctx      context.Context
	terminal *term.Terminal
	file     *os.File
	scanner  *bufio.Scanner
}

// maxTyped is the longest line of a stream, in bytes.
const maxTyped = 1 << 20

func (a *app) newLines(ctx context.Context) *lines {
	l := &lines{a: a, ctx: ctx}
	if f, ok := a.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) && isTerminal(a.errw) {
		l.file = f
		l.terminal = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{f, a.errw}, "> ")
		return l
	}
	l.scanner = bufio.NewScanner(a.in)
	l.scanner.Buffer(nil, maxTyped)
	return l
}

// read returns what was typed: a line, or several of which all but the last end with a backslash. The error is io.EOF at the
// end.
func (l *lines) read() (string, error) {
	var b strings.Builder
	for {
		line, err := l.line()
		if err != nil {
			return "", err
		}
		part, more := strings.CutSuffix(line, `\`)
		b.WriteString(part)
		if !more {
			return b.String(), nil
		}
		b.WriteByte('\n')
	}
}

func (l *lines) line() (string, error) {
	if l.terminal == nil {
		return l.scan()
	}
	// The terminal's own editing is off only while a line is typed: an interrupt must reach the program while it answers.
	fd := int(l.file.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return "", err
	}
	defer term.Restore(fd, before)
	if w, h, err := term.GetSize(fd); err == nil {
		l.terminal.SetSize(w, h)
	}
	l.terminal.SetBracketedPasteMode(true)
	defer l.terminal.SetBracketedPasteMode(false)
	var pasted []string
	for {
		s, err := l.terminal.ReadLine()
		switch {
		case errors.Is(err, term.ErrPasteIndicator):
			pasted = append(pasted, s)
			continue
		case err != nil:
			return "", err
		}
		return strings.Join(append(pasted, s), "\n"), nil
	}
}

// scan reads a line of a stream, but not beyond the end of the context. A read that is under way then is left behind.
func (l *lines) scan() (string, error) {
	type result struct {
		text string
		err  error
	}
	ch := make(chan result, 1)
	go func() {
		if l.scanner.Scan() {
			ch <- result{l.scanner.Text(), nil}
			return
		}
		err := l.scanner.Err()
		if err == nil {
			err = io.EOF
		}
		ch <- result{"", err}
	}()
	select {
	case r := <-ch:
		return r.text, r.err
	case <-l.ctx.Done():
		return "", l.ctx.Err()
	}
}
