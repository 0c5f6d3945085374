package main

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
)

// parseTokens reads token ids separated by commas or white space.
func parseTokens(text string) ([]int32, error) {
	fields := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	ids := make([]int32, 0, len(fields))
	for _, f := range fields {
		id, err := strconv.ParseInt(f, 10, 32)
		if err != nil || id < 0 {
			return nil, usagef("%q is no token id; give numbers separated by commas", f)
		}
		ids = append(ids, int32(id))
	}
	if len(ids) == 0 {
		return nil, usagef("no token ids were given")
	}
	return ids, nil
}

// readTokens reads a file of token ids: little-endian numbers in a .u16 or .i32 file, text in any other. The
// path "-" is stdin, as text.
func (a *app) readTokens(path string) ([]int32, error) {
	if path == "-" {
		b, err := a.readAll("standard input", a.in)
		if err != nil {
			return nil, err
		}
		return parseTokens(string(b))
	}
	b, err := a.readFile(path)
	if err != nil {
		return nil, err
	}
	width := map[string]int{".u16": 2, ".i32": 4}[filepath.Ext(path)]
	if width == 0 {
		return parseTokens(string(b))
	}
	if len(b) == 0 || len(b)%width != 0 {
		return nil, usagef("%s: %d bytes are not a whole number of ids of %d bytes", path, len(b), width)
	}
	ids := make([]int32, len(b)/width)
	for i := range ids {
		if width == 2 {
			ids[i] = int32(binary.LittleEndian.Uint16(b[2*i:]))
		} else {
			ids[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
		}
	}
	return ids, nil
}

// tokensFrom returns the ids of --tokens or --tokens-file, of which exactly one must be given.
func (a *app) tokensFrom(list, file string) ([]int32, error) {
	switch {
	case list != "" && file != "":
		return nil, usagef("--tokens and --tokens-file were both given; use one")
	case list != "":
		return parseTokens(list)
	case file != "":
		return a.readTokens(file)
	}
	return nil, usagef("no tokens: use --tokens 1,2,3 or --tokens-file FILE")
}

// readText reads a file of text, or stdin for "-".
func (a *app) readText(path string) (string, error) {
	if path == "-" {
		b, err := a.readAll("standard input", a.in)
		return string(b), err
	}
	b, err := a.readFile(path)
	return string(b), err
}

// maxInput bounds what is read of a text or a list of tokens, in bytes; a context of 262144 tokens is far less.
const maxInput = 64 << 20

func (a *app) readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, usageError{err}
	}
	defer f.Close()
	return a.readAll(path, f)
}

// readAll reads a stream to its end, but not beyond maxInput and not beyond an interrupt. After an interrupt the
// read that is under way is left behind; the program ends.
func (a *app) readAll(name string, r io.Reader) ([]byte, error) {
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		b, err := io.ReadAll(io.LimitReader(r, maxInput+1))
		done <- result{b, err}
	}()
	select {
	case <-a.ctx.Done():
		return nil, a.ctx.Err()
	case x := <-done:
		if x.err != nil {
			return nil, usageError{x.err}
		}
		if len(x.b) > maxInput {
			return nil, usagef("%s holds more than %d MiB", name, maxInput>>20)
		}
		return x.b, nil
	}
}
