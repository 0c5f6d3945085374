package mapping

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// pageSize is what these tests cut files by.
var pageSize = os.Getpagesize()

// write makes a file of n bytes whose page i holds the byte i+1 and returns its path. Its time of modification
// lies in the past, so that a change right away is seen by it.
func write(t testing.TB, n int) string {
	t.Helper()
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i/pageSize + 1)
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, past, past); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t testing.TB, path string) *Mapping {
	t.Helper()
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// sum reads every byte.
func sum(b []byte) (n int) {
	for _, x := range b {
		n += int(x)
	}
	return n
}

func TestOpen(t *testing.T) {
	for _, n := range []int{0, 1, pageSize - 1, pageSize, pageSize + 1, 5*pageSize + 7} {
		path := write(t, n)
		m := open(t, path)
		want, _ := os.ReadFile(path)
		if !bytes.Equal(m.Bytes(), want) {
			t.Errorf("%d bytes: they differ", n)
		}
		pages := m.Pages()
		if len(pages)%pageSize != 0 || len(pages) < n || len(pages) >= n+pageSize || !bytes.Equal(pages[:n], want) || sum(pages[n:]) != 0 {
			t.Errorf("%d bytes: %d bytes of pages", n, len(pages))
		}
		if err := m.Check(); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		for range 2 {
			if err := m.Close(); err != nil {
				t.Errorf("%d bytes: close: %v", n, err)
			}
		}
		if m.Bytes() != nil || m.Pages() != nil || m.Check() != nil {
			t.Errorf("%d bytes: something is left after closing", n)
		}
	}
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// A file that is truncated, or one whose lost pages were read, or that was written to, is an error that names it
// and stays one.
func TestChanged(t *testing.T) {
	if !mapped {
		t.Skip("files are not mapped here")
	}
	const pages = 8
	for _, c := range []struct {
		name   string
		change func(path string) error
		want   string
		lost   bool // some pages can no longer be read
	}{
		{"truncated to nothing", func(p string) error { return os.Truncate(p, 0) }, fmt.Sprintf("truncated from %d to 0 bytes", pages*pageSize), true},
		{"truncated", func(p string) error { return os.Truncate(p, int64(3*pageSize)) }, "truncated from", true},
		{"truncated inside a page", func(p string) error { return os.Truncate(p, int64(3*pageSize+1)) }, "truncated from", true},
		{"grown", func(p string) error { return os.Truncate(p, int64(9*pageSize)) }, "grew from", false},
		{"overwritten in place", func(p string) error {
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte("changed"), int64(2*pageSize))
			return err
		}, "written to at", false},
		{"written anew with the same size", func(p string) error {
			return os.WriteFile(p, bytes.Repeat([]byte{9}, pages*pageSize), 0o600)
		}, "written to at", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := write(t, pages*pageSize)
			m := open(t, path)
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			before := sum(m.Bytes())
			if err := c.change(path); err != nil {
				t.Fatal(err)
			}
			if watching {
				// On several threads at once, in the order of the file and against it.
				var wg sync.WaitGroup
				for i := range 4 {
					wg.Go(func() {
						for j := range pages {
							if i%2 == 0 {
								j = pages - 1 - j
							}
							sum(m.Bytes()[j*pageSize : (j+1)*pageSize])
						}
					})
				}
				wg.Wait()
				if c.lost && sum(m.Bytes()) >= before {
					t.Error("lost pages are not zeros")
				}
				if got := m.guard.damaged(); got != c.lost {
					t.Errorf("damaged: %v", got)
				}
			}
			err := m.Check()
			if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			// Whatever becomes of the file: what was mapped is not what it was.
			if err := os.Truncate(path, int64(pages*pageSize)); err != nil {
				t.Fatal(err)
			}
			past := m.time
			if err := os.Chtimes(path, past, past); err != nil {
				t.Fatal(err)
			}
			if again := m.Check(); again == nil || err == nil || again.Error() != err.Error() {
				t.Errorf("later: %v", again)
			}
			// The same address range serves the next mapping, unharmed.
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			n := open(t, write(t, pages*pageSize))
			if sum(n.Bytes()) != before || n.Check() != nil {
				t.Errorf("the next mapping: sum %d, want %d, %v", sum(n.Bytes()), before, n.Check())
			}
		})
	}
}

// Lost pages that came back before anybody looked at the file's size are found by the mark alone.
func TestDamageIsKept(t *testing.T) {
	if !watching {
		t.Skip("nothing watches the mappings here")
	}
	path := write(t, 4*pageSize)
	m := open(t, path)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if sum(m.Bytes()) != 0 {
		t.Fatal("lost pages are not zeros")
	}
	if err := os.Truncate(path, m.size); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, m.time, m.time); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), "could not be read") {
		t.Errorf("error %v", err)
	}
}

// A file that was removed or replaced under its name keeps its bytes.
func TestReplaced(t *testing.T) {
	path := write(t, 4*pageSize)
	m := open(t, path)
	want := sum(m.Bytes())
	other := write(t, 2*pageSize)
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if got := sum(m.Bytes()); got != want || m.Check() != nil {
		t.Errorf("renamed over: sum %d, want %d, %v", got, want, m.Check())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := sum(m.Bytes()); got != want || m.Check() != nil {
		t.Errorf("removed: sum %d, want %d, %v", got, want, m.Check())
	}
}

// Damage to one mapping is no other's, and ranges that are given back are used again.
func TestManyMappings(t *testing.T) {
	if !watching {
		t.Skip("nothing watches the mappings here")
	}
	path := write(t, 2*pageSize)
	bad := open(t, write(t, 2*pageSize))
	for range 3 {
		var all []*Mapping
		for range 300 {
			all = append(all, open(t, path))
		}
		if err := os.Truncate(bad.name, 0); err != nil {
			t.Fatal(err)
		}
		sum(bad.Bytes())
		for _, m := range all {
			if sum(m.Bytes()) != 3*pageSize || m.Check() != nil {
				t.Fatalf("another mapping suffered: %v", m.Check())
			}
			m.Close()
		}
		if bad.Check() == nil {
			t.Fatal("the damage was not seen")
		}
	}
}

func TestPopulate(t *testing.T) {
	m := open(t, write(t, 8*pageSize))
	ctx, cancel := context.WithCancel(context.Background())
	if n := Populate(ctx, m.Bytes()[pageSize+1:2*pageSize+1]); n != 0 && n != int64(2*pageSize) {
		t.Errorf("%d bytes of two pages", n)
	}
	WillNeed(m.Bytes())
	cancel()
	if n := Populate(ctx, m.Bytes()); n != 0 {
		t.Errorf("%d bytes after the end", n)
	}
	if n := Populate(context.Background(), nil); n != 0 {
		t.Errorf("%d bytes of nothing", n)
	}
	// Lost pages are no signal and no hang.
	if err := os.Truncate(m.name, 0); err != nil {
		t.Fatal(err)
	}
	if n := Populate(context.Background(), m.Bytes()); n != 0 && watching {
		t.Errorf("%d bytes of a file without any", n)
	}
}

// Forgotten pages are read again when they are needed.
func TestForget(t *testing.T) {
	m := open(t, write(t, 8*pageSize+100))
	want := sum(m.Bytes())
	for _, r := range [][2]int{{0, 0}, {0, len(m.Bytes())}, {1, 3 * pageSize}, {pageSize + 5, 2*pageSize + 4}, {10, 20}, {pageSize, 2 * pageSize}} {
		Forget(m.Bytes()[r[0]:r[1]])
		if got := sum(m.Bytes()); got != want || m.Check() != nil {
			t.Errorf("%v: sum %d, want %d, %v", r, got, want, m.Check())
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	m := open(b, write(b, 4*pageSize))
	for b.Loop() {
		if err := m.Check(); err != nil {
			b.Fatal(err)
		}
	}
}
