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
		b, err := io.ReadAll(a.in)
		if err != nil {
			return nil, err
		}
		return parseTokens(string(b))
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, usageError{err}
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
		b, err := io.ReadAll(a.in)
		return string(b), err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", usageError{err}
	}
	return string(b), nil
}
