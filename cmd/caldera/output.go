package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/calderaml/caldera/engine"
)

// printJSON prints a value as the one JSON document of a command.
func (a *app) printJSON(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := a.out.Write(escapeJSON(b.Bytes()))
	return err
}

// escapeJSON writes characters that a terminal would obey, or that make text look like other text, as escapes. Outside of
// strings JSON has none.
func escapeJSON(data []byte) []byte {
	strange := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if bytes.IndexFunc(data, strange) < 0 {
		return data
	}
	out := make([]byte, 0, len(data)+64)
	for _, r := range string(data) {
		switch {
		case !strange(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			a, b := utf16.EncodeRune(r)
			out = fmt.Appendf(out, "\\u%04x\\u%04x", a, b)
		default:
			out = fmt.Appendf(out, "\\u%04x", r)
		}
	}
	return out
}

// writeFile writes a file so that its name never stands for half of it: into a temporary neighbour that takes
// the name at the end. The path "-" is stdout, and what is no regular file (a pipe, a device) is written as it is.
func (a *app) writeFile(path string, write func(w io.Writer) error) (err error) {
	if path == "-" {
		return buffered(a.out, write)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		if err := buffered(f, write); err != nil {
			f.Close()
			return err
		}
		return f.Close()
	}
	temp := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.part", filepath.Base(path), os.Getpid()))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(temp)
		}
	}()
	if err := buffered(f, write); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

func buffered(w io.Writer, write func(w io.Writer) error) error {
	b := bufio.NewWriterSize(w, 1<<20)
	if err := write(b); err != nil {
		return err
	}
	return b.Flush()
}

// writeFloats writes float32 values, little-endian.
func writeFloats(w io.Writer, row []float32) error {
	var chunk [4096]byte
	for len(row) > 0 {
		n := min(len(row), len(chunk)/4)
		for i, v := range row[:n] {
			binary.LittleEndian.PutUint32(chunk[4*i:], math.Float32bits(v))
		}
		if _, err := w.Write(chunk[:4*n]); err != nil {
			return err
		}
		row = row[n:]
	}
	return nil
}

// size renders a number of bytes for people.
func size(n int64) string { return engine.FormatBytes(n) }

// count renders a large number for people.
func count(n uint64) string {
	v := float64(n)
	for _, u := range []string{"", " K", " M", " B", " T"} {
		if v < 1000 || u == " T" {
			return strings.TrimSuffix(fmt.Sprintf("%.2f", v), ".00") + u
		}
		v /= 1000
	}
	return ""
}
