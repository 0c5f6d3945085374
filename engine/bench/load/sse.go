package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Limits of a stream, in bytes.
const (
	maxLine   = 1 << 20
	maxStream = 256 << 20
)

var (
	errLine   = fmt.Errorf("a line of more than %d bytes", maxLine)
	errStream = fmt.Errorf("a stream of more than %d MiB", maxStream>>20)
)

// A syntaxError is a line that is no line of server-sent events.
type syntaxError struct{ line string }

func (e syntaxError) Error() string { return fmt.Sprintf("the line %q is none of an event", e.line) }

// An eventReader reads server-sent events (HTML living standard, section 9.2) of which only the data matter.
type eventReader struct {
	sc    *bufio.Scanner
	data  []byte
	bytes int64
	alive func() // called for each line, if not nil
}

func newEventReader(r io.Reader, alive func()) *eventReader {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 4096), maxLine)
	return &eventReader{sc: sc, alive: alive}
}

// next returns the data of the next event, which stays valid until the call after. At the end it is io.EOF, and an event
// that no blank line has ended is no event.
func (e *eventReader) next() ([]byte, error) {
	e.data = e.data[:0]
	some := false
	for e.sc.Scan() {
		if e.alive != nil {
			e.alive()
		}
		line := bytes.TrimSuffix(e.sc.Bytes(), []byte("\r"))
		if e.bytes += int64(len(line)); e.bytes > maxStream {
			return nil, errStream
		}
		if len(line) == 0 {
			if some {
				return e.data, nil
			}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "data":
			if some {
				e.data = append(e.data, '\n')
			}
			e.data, some = append(e.data, bytes.TrimPrefix(value, []byte(" "))...), true
			if len(e.data) > maxLine {
				return nil, errLine
			}
		case "", "event", "id", "retry": // a comment, or nothing that matters here
		default:
			return nil, syntaxError{clip(string(line))}
		}
	}
	switch err := e.sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, errLine
	case err != nil:
		return nil, err
	}
	return nil, io.EOF
}
