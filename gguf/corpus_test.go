package gguf

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// outcome opens a file and says which verdict that amounts to. Every error must
// say something, and name the file.
func outcome(t *testing.T, path string, open, header func() (*File, error)) string {
	t.Helper()
	check := func(err error) {
		if !strings.Contains(err.Error(), filepath.Base(path)) || len(err.Error()) < len(path)+20 {
			t.Errorf("an uninformative error: %v", err)
		}
	}
	f, err := open()
	if err == nil {
		defer f.Close()
		for _, tensor := range f.Tensors() {
			data, err := f.Data(tensor)
			if err != nil || int64(len(data)) != tensor.Size {
				t.Errorf("tensor %q: %d bytes, %v", tensor.Name, len(data), err)
			}
			// Touch them: a bad mapping would fault here.
			if n := len(data); n > 0 {
				_ = data[0] + data[n-1]
			}
		}
	} else {
		check(err)
	}
	h, herr := header()
	if herr != nil {
		if err == nil {
			t.Errorf("OpenHeader fails where Open does not: %v", herr)
		}
		check(herr)
		if errors.Is(err, ErrTruncated) {
			t.Errorf("a header error is taken for missing data: %v", err)
		}
		return "reject"
	}
	defer h.Close()
	if err == nil {
		if m := h.Missing(); m != nil {
			t.Errorf("OpenHeader misses %v, Open does not", m)
		}
		return "accept"
	}
	if !errors.Is(err, ErrTruncated) || len(h.Missing()) == 0 {
		t.Errorf("data is missing, but the errors are %v and %v", err, h.Missing())
	}
	lost := false
	for _, tensor := range h.Tensors() {
		if _, err := h.Data(tensor); err != nil {
			lost = true
			if !errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), tensor.Name) {
				t.Errorf("Data: %v", err)
			}
		}
	}
	if !lost {
		t.Errorf("%v, but every tensor has its data", err)
	}
	return "data-reject"
}

// TestCorpus gives every file of the acceptance corpus its verdict, mapped and
// from memory, at a small cost.
func TestCorpus(t *testing.T) {
	for _, dir := range corpusDirs() {
		index := readIndex(t, dir)
		if len(index) != 85 {
			t.Errorf("%s: %d files, want 85", dir, len(index))
		}
		for name, v := range index {
			t.Run(dir+"/"+name, func(t *testing.T) {
				path := filepath.Join(dir, name+".gguf")
				want := v.Want
				switch {
				case v.WantCaldera == "":
				case strings.HasPrefix(v.WantCaldera, "reject"):
					want = "reject" // of "reject or …", caldera does the first
				default:
					want = v.WantCaldera
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				got := outcome(t, path,
					func() (*File, error) { return Open(path) },
					func() (*File, error) { return OpenHeader(path) })
				runtime.ReadMemStats(&after)
				if got != want {
					t.Errorf("got %s, want %s: %s", got, want, v.Why)
				}
				if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
					t.Errorf("reading it allocated %d bytes", n)
				}
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if got := outcome(t, path,
					func() (*File, error) { return OpenBytes(path, data) },
					func() (*File, error) { return OpenHeaderBytes(path, data) }); got != want {
					t.Errorf("from memory: got %s, want %s", got, want)
				}
			})
		}
	}
}

// TestCorpusErrors holds a few messages to their point.
func TestCorpusErrors(t *testing.T) {
	for name, want := range map[string]string{
		"d_second_short":       "tensor \"",
		"h_bad_magic":          "not a GGUF file",
		"h_ver1":               "version 1",
		"h_ver_be":             "big-endian GGUF (version 3)",
		"h_ntensors_big":       "tensors, the limit is",
		"k_align_2g":           "power of two",
		"k_align_str":          "\"general.alignment\" is string, want uint32",
		"k_arr_len_max":        "18446744073709551615 elements",
		"k_arr_of_arr":         "array of arrays",
		"k_dup_key":            "twice",
		"t_dup_name":           "twice",
		"t_ne_overflow_2":      "overflows",
		"t_nbytes_overflow":    "overflow",
		"t_off_gap":            "want",
		"t_row_not_multiple_k": "Q4_K block",
		"t_type_142":           "PQ2_0",
		"t_type43":             "type id 43",
	} {
		_, err := Open(filepath.Join("testdata/gguf-neg", name+".gguf"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", name, err, want)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "absent.gguf")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("directory: %v", err)
	}
}

// TestTruncation cuts a sound file at every length: never a panic, and never
// more than what is there.
func TestTruncation(t *testing.T) {
	for _, name := range []string{"ok_all_kv_types", "ok_arrays", "ok_two_tensors_full"} {
		data, err := os.ReadFile(filepath.Join("testdata/gguf-neg", name+".gguf"))
		if err != nil {
			t.Fatal(err)
		}
		whole, err := OpenBytes(name, data)
		if err != nil {
			t.Fatal(err)
		}
		end := whole.DataStart(0)
		for _, tensor := range whole.Tensors() {
			end = tensor.Offset + tensor.Size
		}
		for n := range data {
			f, err := OpenBytes(name, data[:n:n])
			if (err == nil) != (int64(n) >= end) {
				t.Errorf("%s cut to %d of %d bytes, data to %d: %v", name, n, len(data), end, err)
			}
			if f != nil {
				f.Close()
			}
		}
	}
}
