package gguf

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Lengths of strings that are overwritten in a mapped file after they were checked are an error, not a panic.
func TestStringsOfAChangingFile(t *testing.T) {
	var w Writer
	for key, v := range map[string]any{"general.architecture": "qwen35", "a.list": []string{"one", "two", "three"}} {
		if err := w.Set(key, v); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := w.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if s, err := f.Strings("a.list"); err != nil || len(s) != 3 {
		t.Fatalf("%q, %v", s, err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for _, word := range []string{"one", "two", "qwen35"} {
		at := bytes.Index(data, []byte(word))
		for _, length := range [][]byte{bytes.Repeat([]byte{0x41}, 8), bytes.Repeat([]byte{0xff}, 8)} {
			if _, err := out.WriteAt(length, int64(at-8)); err != nil {
				t.Fatal(err)
			}
			if word == "qwen35" {
				if s, err := f.String("general.architecture"); !errors.Is(err, ErrChanged) {
					t.Errorf("%s: %q, %v", word, s, err)
				}
				continue
			}
			if s, err := f.Strings("a.list"); !errors.Is(err, ErrChanged) {
				t.Errorf("%s: %q, %v", word, s, err)
			}
			v, _ := f.Value("a.list")
			n := 0
			for range v.Elements() {
				n++
			}
			if n >= 3 {
				t.Errorf("%s: %d elements of a list that is cut", word, n)
			}
			_ = v.String()
		}
		if _, err := out.WriteAt(data[at-8:at], int64(at-8)); err != nil {
			t.Fatal(err)
		}
	}
}
