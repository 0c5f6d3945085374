package prefix

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// A faulty file system fails one call, or all from one on, or reads slowly.
type faulty struct {
	osFS
	left  atomic.Int64
	all   bool
	calls atomic.Int64
}

var errFault = errors.New("injected fault")

func (f *faulty) call() error {
	f.calls.Add(1)
	n := f.left.Add(-1)
	if n == 0 || n < 0 && f.all {
		return errFault
	}
	return nil
}

type faultyFile struct {
	File
	fs *faulty
}

func (f *faulty) MkdirAll(dir string) error { return errors.Join(f.call(), f.osFS.MkdirAll(dir)) }

func (f *faulty) List(dir string) ([]fs.FileInfo, error) {
	if err := f.call(); err != nil {
		return nil, err
	}
	return f.osFS.List(dir)
}

func (f *faulty) Open(name string) (File, error) {
	if err := f.call(); err != nil {
		return nil, err
	}
	file, err := f.osFS.Open(name)
	return &faultyFile{file, f}, err
}

func (f *faulty) Create(name string) (File, error) {
	if err := f.call(); err != nil {
		return nil, err
	}
	file, err := f.osFS.Create(name)
	return &faultyFile{file, f}, err
}

func (f *faulty) Rename(from, to string) error {
	if err := f.call(); err != nil {
		return err
	}
	return f.osFS.Rename(from, to)
}

func (f *faulty) Remove(name string) error {
	if err := f.call(); err != nil {
		return err
	}
	return f.osFS.Remove(name)
}

func (f *faulty) SyncDir(dir string) error { return errors.Join(f.osFS.SyncDir(dir), f.call()) }

func (f *faulty) Touch(name string) error { return errors.Join(f.call(), f.osFS.Touch(name)) }

func (f *faultyFile) Read(b []byte) (int, error) {
	if err := f.fs.call(); err != nil {
		return 0, err
	}
	return f.File.Read(b)
}

// Write writes half before it fails.
func (f *faultyFile) Write(b []byte) (int, error) {
	if err := f.fs.call(); err != nil {
		n, _ := f.File.Write(b[:len(b)/2])
		return n, err
	}
	return f.File.Write(b)
}

func (f *faultyFile) Sync() error { return errors.Join(f.fs.call(), f.File.Sync()) }

func (f *faultyFile) Close() error { return errors.Join(f.File.Close(), f.fs.call()) }

// Whichever call fails, and whether the next ones do: nothing but reuse is lost, and a start afterwards finds whole
// files.
func TestFaults(t *testing.T) {
	l := toyLayout(t, nil)
	size := snapshot(t, l, upTo(0, 40), nil).Bytes()
	run := func(f *faulty, dir string, warn func(error)) *Cache {
		c := newCache(t, Config{RAM: 2*size + 4000, Dir: dir, Disk: 4*size + 4000, Layout: l, FS: f, Warn: warn})
		for i := range 6 {
			if err := c.Insert(upTo(100*i, 40), snapshot(t, l, upTo(100*i, 40), nil)); err != nil {
				t.Fatal(err)
			}
			for j := range i {
				m := c.Lookup(upTo(100*j, 50))
				if m.Pos > 0 && m.Snapshot.Hash() != snapshot(t, l, upTo(100*j, m.Pos), nil).Hash() {
					t.Fatal("a wrong snapshot")
				}
				m.Release()
			}
		}
		c.Flush()
		return c
	}
	clean := &faulty{}
	run(clean, t.TempDir(), nil)
	calls := clean.calls.Load()
	if calls < 100 {
		t.Fatalf("only %d calls", calls)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for n := int64(1); n <= calls; n += 1 + r.Int64N(16) {
		for _, all := range []bool{false, true} {
			f := &faulty{all: all}
			f.left.Store(n)
			dir := t.TempDir()
			var w warnings
			c := run(f, dir, w.add)
			if all && len(w) == 0 && n < calls-2 {
				t.Errorf("all calls from %d on failed without a warning", n)
			}
			for _, text := range w {
				if !strings.Contains(text, errFault.Error()) {
					t.Errorf("call %d: warning %q", n, text)
				}
			}
			if !all && slices.ContainsFunc(folder(t, dir), isTemp) {
				t.Errorf("call %d: a temporary file was left", n)
			}
			if s := c.Stats(); s.RAMBytes > c.cfg.RAM || s.Pinned != 0 {
				t.Errorf("call %d: %+v", n, s)
			}
			// The next start finds nothing damaged, and keeps to the budget.
			c = newCache(t, Config{RAM: 1 << 20, Dir: dir, Disk: 4*size + 4000, Layout: l})
			verify(t, c)
			for _, name := range folder(t, dir) {
				if !isSnap(name) {
					t.Errorf("call %d: %s is left", n, name)
				}
			}
			for i := range 6 {
				c.Lookup(upTo(100*i, 50)).Release() // warns of damage
			}
		}
	}
}

// A hooked file system calls back before it does something.
type hooked struct {
	osFS
	hook func(what, name string)
}

type hookedFile struct {
	File
	h    *hooked
	name string
}

func (h *hooked) Open(name string) (File, error) {
	h.hook("open", name)
	return h.osFS.Open(name)
}

func (h *hooked) Create(name string) (File, error) {
	h.hook("create", name)
	f, err := h.osFS.Create(name)
	return &hookedFile{f, h, name}, err
}

func (h *hooked) Rename(from, to string) error {
	h.hook("rename", from)
	return h.osFS.Rename(from, to)
}

func (h *hooked) SyncDir(dir string) error {
	h.hook("syncdir", dir)
	return h.osFS.SyncDir(dir)
}

func (f *hookedFile) Sync() error {
	f.h.hook("sync", f.name)
	return f.File.Sync()
}

func (f *hookedFile) Close() error {
	f.h.hook("close", f.name)
	return f.File.Close()
}

// The order of calls is what makes a file whole or absent after a crash.
func TestWriteOrder(t *testing.T) {
	var calls []string
	dir := t.TempDir()
	h := &hooked{hook: func(what, name string) {
		if what != "syncdir" && !isTemp(filepath.Base(name)) || what == "syncdir" && name != dir {
			t.Errorf("%s %s", what, name)
		}
		calls = append(calls, what)
	}}
	c := newCache(t, Config{RAM: 1 << 20, Dir: dir, Disk: 1 << 20, FS: h})
	insert(t, c, upTo(0, 20), 20)
	c.Flush()
	if want := []string{"create", "sync", "close", "rename", "syncdir"}; !slices.Equal(calls, want) {
		t.Errorf("%q, want %q", calls, want)
	}
}

// A file that is about to be read is not deleted to make room.
func TestReadingIsPinned(t *testing.T) {
	l := toyLayout(t, nil)
	size := snapshot(t, l, upTo(0, 40), nil).EncodedBytes()
	opening, goOn := make(chan bool), make(chan bool)
	h := &hooked{hook: func(what, name string) {
		if what == "open" {
			opening <- true
			<-goOn
		}
	}}
	c := newCache(t, Config{Dir: t.TempDir(), Disk: 2 * size, FS: h})
	insert(t, c, upTo(0, 40), 40)
	insert(t, c, upTo(100, 40), 40)
	got := make(chan *Match)
	go func() { got <- c.Lookup(upTo(0, 50)) }()
	<-opening
	insert(t, c, upTo(200, 40), 40)
	goOn <- true
	if m := <-got; m.Pos != 40 {
		t.Error(m)
	}
	verify(t, c)
	if m := c.Lookup(upTo(100, 50)); m.Reason != Evicted {
		t.Error(m)
	}
}

// What is worth less does not displace what is worth more.
func TestDiskKeepsTheBest(t *testing.T) {
	l := toyLayout(t, nil)
	size := snapshot(t, l, upTo(0, 40), nil).EncodedBytes()
	cfg := Config{RAM: 1 << 20, Dir: t.TempDir(), Disk: 2 * size, Layout: l}
	c := newCache(t, cfg)
	for i := range 4 {
		insert(t, c, upTo(100*i, 40), 40)
	}
	for _, i := range []int{1, 3} {
		c.Lookup(upTo(100*i, 50)).Release()
	}
	c.Flush()
	verify(t, c)
	if s := c.Stats(); s.Demoted != 2 {
		t.Errorf("%d files were written, 2 fit", s.Demoted)
	}
	c = newCache(t, cfg)
	for i := range 4 {
		m := c.Lookup(upTo(100*i, 50))
		if (m.Pos > 0) != (i%2 == 1) {
			t.Errorf("%d: %s", i, m)
		}
		m.Release()
	}
}

// A disk that is full is tried ever less often, and again when it may have room.
func TestFullDisk(t *testing.T) {
	l := toyLayout(t, nil)
	f := &faulty{}
	var w warnings
	c := newCache(t, Config{RAM: 60000, Dir: t.TempDir(), Disk: 1 << 20, Layout: l, FS: f, Warn: w.add})
	f.all = true
	f.left.Store(1)
	for i := range 300 {
		insert(t, c, upTo(i, 10), 10)
	}
	if len(w) < 4 || len(w) > 12 {
		t.Errorf("%d warnings for 290 writes that cannot be", len(w))
	}
	w = nil
	f.all = false
	for i := range 2 * maxSkip {
		insert(t, c, upTo(300+i, 10), 10)
	}
	if s := c.Stats(); s.OnDisk < maxSkip/2 || len(w) != 0 {
		t.Errorf("%d on disk; %q", s.OnDisk, w)
	}
}
