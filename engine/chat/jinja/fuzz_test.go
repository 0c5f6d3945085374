package jinja

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/calderaml/caldera/internal/oracle"
)

// FuzzTemplate compiles and renders any text with small limits. It ends in output or an error with a place, and the output is
// within its limit, valid, and marked in turns.
func FuzzTemplate(f *testing.F) {
	data, err := os.ReadFile("testdata/python.json")
	if err != nil {
		f.Fatal(err)
	}
	file, err := DecodeJSON(string(data))
	if err != nil {
		f.Fatal(err)
	}
	variables := vars(field[*Map](f, file, "vars"))
	for _, c := range field[*List](f, file, "cases").All() {
		f.Add(field[Text](f, c, "t").s)
	}
	for _, name := range oracleTemplates {
		if data, err := os.ReadFile(filepath.Join(oracle.Dir(), "chat", "templates", name+".jinja")); err == nil {
			f.Add(string(data))
		}
	}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Compile("fuzz", source, WithClock(testClock))
		var out []Stretch
		limits := Limits{Steps: 20_000, Output: 1 << 16, Memory: 1 << 20}
		if err == nil {
			out, err = tmpl.Render(t.Context(), variables, limits)
		}
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Line < 1 || e.Col < 1 || out != nil {
				t.Fatalf("%v: no place, or output beside the error", err)
			}
			return
		}
		n := 0
		for i, s := range out {
			n += len(s.Text)
			if s.Text == "" || !utf8.ValidString(s.Text) || i > 0 && s.Trusted == out[i-1].Trusted {
				t.Fatalf("stretch %d of %+v", i, out)
			}
		}
		if n > limits.Output {
			t.Fatalf("%d bytes of output", n)
		}
	})
}
