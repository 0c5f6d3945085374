package prefix

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/state"
)

// warnings collects what a cache warns of.
type warnings []string

func (w *warnings) add(err error) { *w = append(*w, err.Error()) }

func (w *warnings) take(t *testing.T, want ...string) {
	t.Helper()
	if len(*w) != len(want) {
		t.Errorf("warnings %q, want %q", *w, want)
	}
	for i := range min(len(*w), len(want)) {
		if !strings.Contains((*w)[i], want[i]) {
			t.Errorf("warning %q, want %q", (*w)[i], want[i])
		}
	}
	*w = nil
}

// Everything survives a restart, in the order of its last use.
func TestRestart(t *testing.T) {
	l := toyLayout(t, nil)
	cfg := Config{RAM: 1 << 20, Dir: filepath.Join(t.TempDir(), "a", "b"), Disk: 1 << 20, Layout: l}
	c := newCache(t, cfg)
	for i := range 5 {
		insert(t, c, upTo(100*i, 80), 80)
	}
	if n := folderBytes(t, cfg.Dir); n != 0 {
		t.Errorf("%d bytes were written before there was a need", n)
	}
	c.Flush()
	c.Flush()
	verify(t, c)
	if s := c.Stats(); s.OnDisk != 5 || s.Demoted != 5 || s.InMemory != 5 {
		t.Errorf("%+v", s)
	}
	for i, name := range folder(t, cfg.Dir) { // times may be equal where clocks are coarse
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(filepath.Join(cfg.Dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	c = newCache(t, cfg)
	m := c.Lookup(upTo(200, 90))
	if m.Pos != 80 || !m.FromDisk || m.Snapshot.Hash() != snapshot(t, l, upTo(200, 80), nil).Hash() {
		t.Errorf("after a restart: %s", m)
	}
	m.Release()
	if m = c.Lookup(upTo(200, 90)); m.FromDisk || m.Pos != 80 {
		t.Errorf("the second time: %s", m)
	}
	m.Release()
	verify(t, c)
	// A smaller budget deletes the oldest, and not what was used since.
	names := folder(t, cfg.Dir)
	cfg.Disk = 3 * folderBytes(t, cfg.Dir) / 5
	c = newCache(t, cfg)
	verify(t, c)
	used := fileName(l, upTo(200, 80))
	names = slices.DeleteFunc(names, func(n string) bool { return n == used })
	want := append(names[len(names)-2:], used)
	slices.Sort(want)
	if got := folder(t, cfg.Dir); !slices.Equal(got, want) {
		t.Errorf("%q are left, want %q", got, want)
	}
	c.Clear()
	if got := folder(t, cfg.Dir); len(got) != 0 {
		t.Errorf("%q are left after Clear", got)
	}
	verify(t, c)
}

// Files of another model or format explain a miss, count, and are the first to go.
func TestOtherFiles(t *testing.T) {
	dir := t.TempDir()
	for from, change := range map[int]func(*state.Config){
		300: func(c *state.Config) { c.Format = "q4_0" },
		600: func(c *state.Config) { c.Model[0]++ },
	} {
		other := newCache(t, Config{Dir: dir, Disk: 1 << 20, Layout: toyLayout(t, change)})
		insert(t, other, upTo(0, 80), 80)
		insert(t, other, upTo(from, 80), 80)
	}
	size := folderBytes(t, dir)
	c := newCache(t, Config{RAM: 1 << 20, Dir: dir, Disk: size})
	verify(t, c)
	if s := c.Stats(); s.Entries != 0 || s.DiskBytes != size {
		t.Errorf("%+v", s)
	}
	for from, want := range map[int]Reason{300: OtherFormat, 600: OtherModel} {
		if m := c.Lookup(upTo(from, 90)); m.Reason != want || m.Pos != 0 || m.Shared != 80 {
			t.Errorf("%s, want %v", m, want)
		}
	}
	insert(t, c, upTo(0, 80), 80)
	c.Flush()
	verify(t, c)
	if s := c.Stats(); s.OnDisk != 1 {
		t.Errorf("%+v", s)
	}
	if n := len(folder(t, dir)); n != 4 {
		t.Errorf("%d files, want 4", n)
	}
}

// What lies in the folder at the start: damaged files go, foreign ones stay.
func TestScan(t *testing.T) {
	l := toyLayout(t, nil)
	dir := t.TempDir()
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	encoded := func(tokens []int32) (string, []byte) {
		var b bytes.Buffer
		if err := snapshot(t, l, tokens, nil).Encode(&b); err != nil {
			t.Fatal(err)
		}
		return fileName(l, tokens), b.Bytes()
	}
	hexes := strings.Repeat("0", hexName)
	good, data := encoded(upTo(0, 20))
	write(good, data)
	half, data := encoded(upTo(1, 20))
	write(half, data[:len(data)/2])
	empty, _ := encoded(upTo(2, 20))
	write(empty, nil)
	header, data := encoded(upTo(3, 20))
	data[20] ^= 1
	write(header, data)
	moved, _ := encoded(upTo(4, 20))
	_, data = encoded(upTo(5, 20))
	write(moved, data)
	late, data := encoded(upTo(6, 20))
	data[len(data)-100] ^= 1
	write(late, data)
	newer, data := encoded(upTo(7, 20))
	data[8] = 2
	write(newer, data)
	write(hexes+".0123456789abcdef.tmp", []byte("left over"))
	keep := []string{"README", hexes + ".snap.bak", hexes[1:] + ".snap", strings.Repeat("G", hexName) + ".snap",
		hexes + ".tmp", "x.0123456789abcdef.tmp"}
	for _, name := range keep {
		write(name, []byte("mine"))
	}
	link := strings.Repeat("a", hexName) + snapSuffix
	keep = append(keep, link)
	if err := os.Symlink(filepath.Join(dir, good), filepath.Join(dir, link)); err != nil {
		t.Skip(err)
	}
	folderName := strings.Repeat("b", hexName) + snapSuffix
	keep = append(keep, folderName)
	if err := os.Mkdir(filepath.Join(dir, folderName), 0o700); err != nil {
		t.Fatal(err)
	}
	var w warnings
	c := newCache(t, Config{RAM: 1 << 20, Dir: dir, Disk: 1 << 20, Layout: l, Warn: w.add})
	verify(t, c)
	want := append(slices.Clone(keep), good, late, newer)
	slices.Sort(want)
	if got := folder(t, dir); !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
	if len(w) != 5 || !strings.Contains(w[0], fmt.Sprintf("%d files that are not", len(keep))) {
		t.Errorf("warnings %q", w)
	}
	w = nil
	if s := c.Stats(); s.OnDisk != 2 {
		t.Errorf("%+v", s)
	}
	// The damage behind the header shows when the file is read.
	if m := c.Lookup(upTo(6, 30)); m.Pos != 0 || m.Reason != Unreadable {
		t.Error(m)
	}
	w.take(t, "is deleted: the snapshot is damaged")
	if slices.Contains(folder(t, dir), late) {
		t.Error("a damaged file is still there")
	}
	// What vanishes is a miss.
	if err := os.Remove(filepath.Join(dir, good)); err != nil {
		t.Fatal(err)
	}
	if m := c.Lookup(upTo(0, 30)); m.Pos != 0 || m.Reason != Evicted {
		t.Error(m)
	}
	w.take(t)
}

// A folder that cannot be made leaves a cache in memory.
func TestNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var w warnings
	c := newCache(t, Config{RAM: 1 << 20, Dir: filepath.Join(file, "x"), Disk: 1 << 20, Warn: w.add})
	w.take(t, "works without files")
	insert(t, c, upTo(0, 20), 20)
	c.Flush()
	if m := c.Lookup(upTo(0, 21)); m.Pos != 20 {
		t.Error(m)
	}
	w.take(t)
}

// Two caches in one folder, as two processes have it: neither serves anything wrong or touches what the other writes.
func TestTwoProcesses(t *testing.T) {
	l := toyLayout(t, nil)
	dir := t.TempDir()
	cfg := Config{RAM: 20000, Dir: dir, Disk: 60000, Layout: l}
	a, b := newCache(t, cfg), newCache(t, cfg)
	done := make(chan bool)
	for g, c := range []*Cache{a, b} {
		go func() {
			defer func() { done <- true }()
			r := rand.New(rand.NewPCG(uint64(g), 9))
			for range 150 {
				tokens := upTo(10*r.IntN(40), 1+r.IntN(30))
				if r.IntN(2) == 0 {
					if err := c.Insert(tokens, snapshot(t, l, tokens, nil)); err != nil && !errors.Is(err, ErrNoRoom) {
						t.Error(err)
					}
					continue
				}
				m := c.Lookup(tokens)
				if m.Pos > 0 && m.Snapshot.Hash() != snapshot(t, l, tokens[:m.Pos], nil).Hash() {
					t.Error("a wrong snapshot")
				}
				m.Release()
			}
		}()
	}
	<-done
	<-done
	if n := folderBytes(t, dir); n > 2*cfg.Disk {
		t.Errorf("%d bytes", n)
	}
	// A temporary file that is being written survives another's start; afterwards it does not.
	temp := strings.Repeat("0", hexName) + ".0123456789abcdef.tmp"
	f, err := osFS{}.Create(filepath.Join(dir, temp))
	if err != nil {
		t.Fatal(err)
	}
	newCache(t, cfg)
	if !slices.Contains(folder(t, dir), temp) {
		t.Error("a file that is being written was deleted")
	}
	f.Close()
	newCache(t, cfg)
	if slices.Contains(folder(t, dir), temp) {
		t.Error("a file that nobody writes was kept")
	}
}

const killDir = "CALDERA_TEST_PREFIX_DIR"

// TestKillChild is the process that TestKill ends.
func TestKillChild(t *testing.T) {
	dir := os.Getenv(killDir)
	if dir == "" {
		t.Skip("run by TestKill")
	}
	l := toyLayout(t, nil)
	c := newCache(t, Config{RAM: 300000, Dir: dir, Disk: 2 << 20, Layout: l})
	fmt.Println("writing")
	for i := 0; ; i++ {
		insert(t, c, upTo(i, 500), 200+i%300)
	}
}

// A process that is killed at any moment leaves whole files and temporary ones that the next start removes.
func TestKill(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	l := toyLayout(t, nil)
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 3))
	temps, written := 0, 0
	for round := range rounds {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKillChild$")
		cmd.Env = append(os.Environ(), killDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 7)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(r.IntN(60000)) * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		for _, name := range folder(t, dir) {
			if isTemp(name) {
				temps++
			}
		}
		// A warning of a damaged file fails the test.
		c := newCache(t, Config{RAM: 1 << 24, Dir: dir, Disk: 2 << 20, Layout: l})
		verify(t, c)
		for _, name := range folder(t, dir) {
			if !isSnap(name) {
				t.Errorf("round %d: %s is left", round, name)
			}
		}
		var all [][]int32
		for e := range c.entries {
			all = append(all, append(e.node.path(), 0))
		}
		for _, tokens := range all {
			m := c.Lookup(tokens)
			if m.Pos != len(tokens)-1 || m.Snapshot.Hash() != snapshot(t, l, tokens[:m.Pos], nil).Hash() {
				t.Fatalf("round %d: %s", round, m)
			}
			m.Release()
		}
		written += len(all)
	}
	t.Logf("%d temporary files in %d rounds, %d snapshots read", temps, rounds, written)
	if written == 0 {
		t.Error("nothing was written")
	}
}

// A file of any content in the folder costs no more memory than its size.
func FuzzScan(f *testing.F) {
	l := toyLayout(f, nil)
	for _, n := range []int{1, 8, 20} {
		var b bytes.Buffer
		if err := snapshot(f, l, upTo(0, n), nil).Encode(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
		f.Add(b.Bytes()[:b.Len()/2])
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		name := fileName(l, upTo(0, 20))
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		m := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(m)
		before := m[0].Value.Uint64()
		c, err := New(Config{Layout: l, RAM: 1 << 20, Dir: dir, Disk: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		got := c.Lookup(upTo(0, 30))
		metrics.Read(m)
		if n := m[0].Value.Uint64() - before; n > uint64(16*len(data)+1<<20) {
			t.Errorf("%d bytes allocated for a file of %d", n, len(data))
		}
		if got.Pos > 0 && got.Snapshot.Pos() != 20 {
			t.Error(got)
		}
		if _, err := os.Stat(path); err == nil && len(data) < 100 {
			t.Error("a file without a header was kept")
		}
		os.Remove(path)
	})
}
