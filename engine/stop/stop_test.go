package stop

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/calderaml/caldera/internal/oracle"
)

// run pushes pieces and returns the text and the stop string that ended it.
func run(t testing.TB, stops, pieces []string) (string, string) {
	m, err := New(stops)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, p := range pieces {
		out, stopped := m.Push(p)
		b.WriteString(out)
		if stopped {
			return b.String(), m.Found()
		}
	}
	b.WriteString(m.Flush())
	return b.String(), m.Found()
}

func TestMatcher(t *testing.T) {
	for _, c := range []struct {
		stops, pieces []string
		text, found   string
	}{
		{nil, []string{"a", "b"}, "ab", ""},
		{[]string{"STOP"}, []string{"one ST", "OP two"}, "one ", "STOP"},
		{[]string{"STOP"}, []string{"one ST", "AR"}, "one STAR", ""},
		{[]string{"STOP"}, []string{"SSTOP"}, "S", "STOP"},
		{[]string{"aab"}, []string{"a", "a", "a", "b"}, "a", "aab"},
		{[]string{"ab", "abc"}, []string{"xx ab", "c yy"}, "xx ", "ab"},
		// The one that ends first, however the text is cut, and the longest that ends there.
		{[]string{"abcd", "bc"}, []string{"abcd"}, "a", "bc"},
		{[]string{"abcd", "bc"}, []string{"a", "b", "c", "d"}, "a", "bc"},
		{[]string{"c", "bc", "abc"}, []string{"xab", "c"}, "x", "abc"},
		{[]string{"é!"}, []string{"caf", "é", "! x"}, "caf", "é!"},
		{[]string{"\n\n"}, []string{"a\n", "b\n"}, "a\nb\n", ""},
		{[]string{strings.Repeat("x", MaxBytes)}, []string{"xxx"}, "xxx", ""},
	} {
		if text, found := run(t, c.stops, c.pieces); text != c.text || found != c.found {
			t.Errorf("%q in %q: %q ended by %q, want %q by %q", c.stops, c.pieces, text, found, c.text, c.found)
		}
	}
	for _, stops := range [][]string{{""}, {"a", ""}, {"\xff"}, {strings.Repeat("x", MaxBytes+1)}, slices.Repeat([]string{"a"}, MaxStrings+1)} {
		if _, err := New(stops); err == nil {
			t.Errorf("%d strings, the first %.8q, were taken", len(stops), stops[0])
		}
	}
}

// C20: stop strings over the borders of tokens.
func TestCaseC20(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(oracle.Root(), "testdata", "cases", "c20_stops.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, line := range bytes.Split(bytes.TrimSpace(b), []byte("\n")) {
		var c struct {
			Pieces []string `json:"forced_pieces"`
			Stop   []string `json:"stop"`
			Want   string   `json:"want"`
			Finish string   `json:"finish"`
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		text, found := run(t, c.Stop, c.Pieces)
		if _, answer, ok := strings.Cut(text, "</think>"); ok {
			text = answer // what a case wants is the answer alone
		}
		if text != c.Want || (found != "") != (c.Finish == "stop") {
			t.Errorf("%q in %q: %q ended by %q, want %q, %s", c.Stop, c.Pieces, text, found, c.Want, c.Finish)
		}
		n++
	}
	if n == 0 {
		t.Error("there is no case")
	}
}

// However a text is cut it ends at the same place, and what was given out is never taken back.
func TestCuts(t *testing.T) {
	r := rand.New(rand.NewPCG(20, 20))
	word := func(most int) string {
		var b strings.Builder
		for range 1 + r.IntN(most) {
			b.WriteRune([]rune("abé")[r.IntN(3)])
		}
		return b.String()
	}
	stopped := 0
	for range 20000 {
		var stops []string
		for range 1 + r.IntN(3) {
			stops = append(stops, word(4))
		}
		text := word(14)
		var pieces []string
		for rest := []rune(text); len(rest) > 0; {
			n := r.IntN(len(rest) + 1)
			pieces, rest = append(pieces, string(rest[:n])), rest[n:]
		}
		// The first end, and the longest there.
		want, by := text, ""
		for end := range len(text) + 1 {
			for _, s := range stops {
				if strings.HasSuffix(text[:end], s) && len(s) > len(by) {
					want, by = text[:end-len(s)], s
				}
			}
			if by != "" {
				break
			}
		}
		got, found := run(t, stops, pieces)
		if got != want || found != by || !utf8.ValidString(got) {
			t.Fatalf("%q in %q: %q ended by %q, want %q by %q", stops, pieces, got, found, want, by)
		}
		if by != "" {
			stopped++
		}
	}
	if stopped < 2000 || stopped > 19500 {
		t.Errorf("%d of 20000 texts were ended", stopped)
	}
}
