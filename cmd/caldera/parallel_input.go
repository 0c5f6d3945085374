package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"time"
)

// maxLine is the most bytes of a line of requests.
const maxLine = 16 << 20

// An inputLine is a line that is not blank, or what is wrong with it.
type inputLine struct {
	number int // from 1
	data   []byte
	err    error
}

// readLines sends the lines of a file until it ends or ctx does. It returns what went wrong with reading. No more than
// two lines are in memory beside those that the receiver has.
func readLines(ctx context.Context, r io.Reader, out chan<- inputLine) error {
	br := bufio.NewReaderSize(r, 1<<16)
	for n := 1; ; n++ {
		data, err := readLine(br)
		switch {
		case errors.Is(err, errLongLine):
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case n == 1:
			data = bytes.TrimPrefix(data, []byte("\ufeff"))
		}
		data = bytes.TrimSpace(data)
		if err == nil && len(data) == 0 {
			continue
		}
		select {
		case out <- inputLine{n, data, err}:
		case <-ctx.Done():
			return nil
		}
	}
}

// errLongLine reports a line that was skipped.
var errLongLine = fmt.Errorf("it has more than %d MiB", maxLine>>20)

// readLine reads a line. At the end it returns io.EOF, and errLongLine after a line that is too long.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if long = long || len(line)+len(part) > maxLine; long {
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case long:
			return nil, errLongLine
		case err != nil && len(line) == 0:
			return nil, io.EOF
		}
		return line, nil
	}
}

// gaps counts durations in classes that are at most a sixteenth wide. It may be used by several goroutines.
type gaps struct {
	mu     sync.Mutex
	counts [64 * 16]uint64
	total  uint64
}

// add counts a duration.
func (g *gaps) add(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts[gapClass(d)]++
	g.total++
}

// gapClass is the class of a duration: its power of two and four more bits.
func gapClass(d time.Duration) int {
	v := uint64(max(d, 16))
	e := bits.Len64(v) - 5
	return 16*e + int(v>>e) - 16
}

// quantile is a duration that a share q of all do not exceed, to a sixteenth.
func (g *gaps) quantile(q float64) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	sum, want := uint64(0), q*float64(g.total)
	for i, n := range g.counts {
		if sum += n; n > 0 && float64(sum) >= want {
			return time.Duration(uint64(i%16+17)<<(i/16)) - 1 // the largest of the class
		}
	}
	return 0
}
