package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"testing"
)

// A toy is a sequence whose state is a function of its tokens: one row per token in each of two page regions,
// a region without rows, and two recurrent slots. Downloads are counted.
type toy struct {
	l       *Layout
	tokens  []int32
	formats []int
	pages   [][][]byte // [page][region]
	slots   [][]byte
	moved   int64 // bytes downloaded
	fail    error
}

const toyPage = 8

func toyConfig() Config {
	return Config{
		Model: DigestOf([]byte("toy")), Format: "hot and cold", PageTokens: toyPage, MaxTokens: 1000, Vocab: 100,
		Pages: []PageFormat{
			{"hot", []Region{{"k", 16 * toyPage, true}, {"v", 24 * toyPage, true}}},
			{"cold", []Region{{"k", 4 * toyPage, true}, {"v", 40, false}}},
		},
		Slots: []Region{{"conv", 24, false}, {"delta", 256, false}},
		Extra: []Region{{"ngram", 64, false}},
	}
}

func toyLayout(t testing.TB, change func(*Config)) *Layout {
	t.Helper()
	cfg := toyConfig()
	if change != nil {
		change(&cfg)
	}
	l, err := NewLayout(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newToy(l *Layout) *toy {
	s := &toy{l: l}
	for _, r := range l.cfg.Slots {
		s.slots = append(s.slots, make([]byte, r.Bytes))
	}
	return s
}

// page appends a page of a format, filled with what an earlier sequence left there.
func (s *toy) page(format int) {
	var p [][]byte
	for _, r := range s.l.cfg.Pages[format].Regions {
		p = append(p, bytes.Repeat([]byte{byte(rand.Int())}, int(r.Bytes)))
	}
	s.pages, s.formats = append(s.pages, p), append(s.formats, format)
}

// feed appends tokens: each changes the slots and adds rows that depend on them.
func (s *toy) feed(tokens ...int32) {
	for _, t := range tokens {
		if len(s.tokens)%s.l.cfg.PageTokens == 0 {
			s.page(0)
		}
		for i, slot := range s.slots {
			for j := range slot {
				slot[j] = slot[j]*31 + byte(t) + byte(i+j)
			}
		}
		row := len(s.tokens) % s.l.cfg.PageTokens
		for _, b := range s.pages[len(s.pages)-1] {
			n := len(b) / s.l.cfg.PageTokens
			for j := range n {
				b[row*n+j] = s.slots[1][j] ^ byte(t)
			}
		}
		s.tokens = append(s.tokens, t)
	}
}

// cool re-encodes a full page in the cold format.
func (s *toy) cool(i int) {
	h := fnv.New64a()
	h.Write(s.pages[i][0])
	h.Write(s.pages[i][1])
	var p [][]byte
	for _, r := range s.l.cfg.Pages[1].Regions {
		p = append(p, bytes.Repeat(h.Sum(nil), int(r.Bytes)/8))
	}
	s.pages[i], s.formats[i] = p, 1
}

func (s *toy) PageFormat(i int) int { return s.formats[i] }

func (s *toy) at(p Part) []byte {
	if p.Page < 0 {
		return s.slots[p.Region]
	}
	if s.formats[p.Page] != p.Format {
		panic("format")
	}
	return s.pages[p.Page][p.Region]
}

func (s *toy) Download(parts []Part) error {
	for _, p := range parts {
		s.moved += int64(copy(p.Data, s.at(p)))
	}
	return s.fail
}

func (s *toy) Upload(parts []Part) error {
	for _, p := range parts {
		copy(s.at(p), p.Data)
	}
	return s.fail
}

// extra is the toy's history of tokens.
func (s *toy) extra() [][]byte {
	var b []byte
	for _, t := range s.tokens[max(0, len(s.tokens)-5):] {
		b = append(b, byte(t))
	}
	return [][]byte{b}
}

func (s *toy) capture(t testing.TB, prev *Snapshot) *Snapshot {
	t.Helper()
	snap, err := Capture(s.l, s.tokens, s, s.extra(), prev)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// restored is a new sequence restored from a snapshot.
func restored(t testing.TB, l *Layout, snap *Snapshot) *toy {
	t.Helper()
	s := newToy(l)
	for i := range snap.Pages() {
		s.page(snap.PageFormat(i))
	}
	if err := Restore(l, snap, snap.Tokens(), s); err != nil {
		t.Fatal(err)
	}
	s.tokens = append(s.tokens, snap.Tokens()...)
	return s
}

func randomTokens(r *rand.Rand, n int) []int32 {
	ts := make([]int32, n)
	for i := range ts {
		ts[i] = int32(r.IntN(100))
	}
	return ts
}

// Whatever is done to a snapshot in between, a sequence that goes on from it ends in the state of one that never
// stopped.
func TestRestoreGoesOn(t *testing.T) {
	l := toyLayout(t, nil)
	r := rand.New(rand.NewPCG(1, 2))
	for n := 1; n < 60; n++ {
		a := newToy(l)
		a.feed(randomTokens(r, n)...)
		for i := 0; i < n/toyPage-1; i++ {
			a.cool(i)
		}
		snap := a.capture(t, nil)
		if snap.Pos() != n || snap.Bytes() != a.moved+4*int64(n)+int64(len(snap.Extra(0))) {
			t.Fatalf("%d tokens: position %d, %d bytes of which %d moved", n, snap.Pos(), snap.Bytes(), a.moved)
		}
		if most := l.CaptureBytes(n, nil); snap.Bytes() > most {
			t.Fatalf("%d tokens: %d bytes, planned were %d", n, snap.Bytes(), most)
		}
		var buf bytes.Buffer
		if err := snap.Encode(&buf); err != nil {
			t.Fatal(err)
		}
		if int64(buf.Len()) != snap.EncodedBytes() {
			t.Fatalf("%d bytes encoded, announced were %d", buf.Len(), snap.EncodedBytes())
		}
		back, err := Decode(&buf, snap.EncodedBytes(), l)
		if err != nil {
			t.Fatal(err)
		}
		b := restored(t, l, back)
		if !bytes.Equal(back.Extra(0), a.extra()[0]) {
			t.Fatalf("extra section %v, want %v", back.Extra(0), a.extra()[0])
		}
		more := randomTokens(r, 20)
		for _, s := range []*toy{a, b} {
			if got := s.capture(t, nil).Hash(); got != snap.Hash() {
				t.Fatalf("%d tokens: hash %.8s, want %.8s", n, got, snap.Hash())
			}
			s.feed(more...)
		}
		if a.capture(t, snap).Hash() != b.capture(t, back).Hash() {
			t.Fatalf("%d tokens: the restored sequence went another way", n)
		}
	}
}

// A capture after another copies the pages since then and the slots, and shares the rest.
func TestCaptureShares(t *testing.T) {
	l := toyLayout(t, nil)
	s := newToy(l)
	r := rand.New(rand.NewPCG(3, 4))
	s.feed(randomTokens(r, 4*toyPage+3)...)
	first := s.capture(t, nil)
	hash := first.Hash()
	s.feed(randomTokens(r, 2*toyPage)...)
	s.cool(1)
	s.moved = 0
	planned := l.CaptureBytes(len(s.tokens), first)
	second := s.capture(t, first)
	for i, p := range second.Pages() {
		if shared := i < 4 && first.Pages()[i] == p; shared != (i < 4 && i != 1) {
			t.Errorf("page %d: shared %t", i, shared)
		}
	}
	want := l.slots + l.pageBytes(1, 8) + 2*l.pageBytes(0, 8) + l.pageBytes(0, 3)
	if s.moved != want {
		t.Errorf("%d bytes were copied, want %d", s.moved, want)
	}
	if n := s.moved - l.pageBytes(1, 8) + second.OwnBytes() - l.slots; n > planned {
		t.Errorf("%d new bytes, planned were %d", n, planned)
	}
	if second.Hash() != s.capture(t, nil).Hash() {
		t.Error("a capture that shares differs from one that copies")
	}
	if first.Hash() != hash {
		t.Error("going on changed a snapshot")
	}
}

func TestCaptureRefuses(t *testing.T) {
	l := toyLayout(t, nil)
	s := newToy(l)
	s.feed(1, 2, 3)
	snap := s.capture(t, nil)
	other := newToy(l)
	other.feed(1, 2, 4, 5)
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		tokens []int32
		extra  [][]byte
		prev   *Snapshot
		fail   error
		format int
		want   error
	}{
		"no tokens":         {extra: [][]byte{nil}, want: ErrPosition},
		"too many":          {tokens: make([]int32, 1001), extra: [][]byte{nil}, want: ErrPosition},
		"another sequence":  {tokens: []int32{1, 2, 4, 5}, extra: [][]byte{nil}, prev: snap, want: ErrOtherTokens},
		"earlier":           {tokens: []int32{1, 2}, extra: [][]byte{nil}, prev: snap, want: ErrOtherTokens},
		"device":            {tokens: []int32{1, 2, 4}, extra: [][]byte{nil}, fail: boom, want: boom},
		"vocabulary":        {tokens: []int32{100}, extra: [][]byte{nil}},
		"no extra":          {tokens: []int32{1}},
		"extra too long":    {tokens: []int32{1}, extra: [][]byte{make([]byte, 65)}},
		"impossible format": {tokens: []int32{1}, extra: [][]byte{nil}, format: 2},
	} {
		other.fail, other.formats[0] = c.fail, c.format
		_, err := Capture(l, c.tokens, other, c.extra, c.prev)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	l := toyLayout(t, nil)
	s := newToy(l)
	s.feed(1, 2, 3)
	snap := s.capture(t, nil)
	for name, c := range map[string]struct {
		change func(*Config)
		tokens []int32
		want   error
	}{
		"model":        {func(c *Config) { c.Model[3]++ }, []int32{1, 2, 3}, ErrOtherModel},
		"format":       {func(c *Config) { c.Format = "hot" }, []int32{1, 2, 3}, ErrOtherFormat},
		"page size":    {func(c *Config) { c.PageTokens = 4 }, []int32{1, 2, 3}, ErrOtherFormat},
		"region":       {func(c *Config) { c.Slots[0].Bytes++ }, []int32{1, 2, 3}, ErrOtherFormat},
		"regions move": {func(c *Config) { c.Pages[0], c.Pages[1] = c.Pages[1], c.Pages[0] }, []int32{1, 2, 3}, ErrOtherFormat},
		"earlier":      {nil, []int32{1, 2}, ErrPosition},
		"later":        {nil, []int32{1, 2, 3, 4}, ErrPosition},
		"tokens":       {nil, []int32{1, 2, 4}, ErrOtherTokens},
		"context":      {func(c *Config) { c.MaxTokens = 2 }, []int32{1, 2, 3}, ErrPosition},
	} {
		to := toyLayout(t, c.change)
		untouched := newToy(to)
		untouched.page(0)
		untouched.fail = errors.New("uploaded")
		if err := Restore(to, snap, c.tokens, untouched); !errors.Is(err, c.want) || errors.Is(err, untouched.fail) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	longer := toyLayout(t, func(c *Config) { c.MaxTokens = 5000 })
	if got := restored(t, longer, snap); got.capture(t, nil).Hash() != snap.Hash() {
		t.Error("a longer context changes a snapshot")
	}
	broken := newToy(l)
	broken.page(0)
	broken.fail = errors.New("device lost")
	if err := Restore(l, snap, []int32{1, 2, 3}, broken); !errors.Is(err, broken.fail) {
		t.Errorf("an upload that fails: %v", err)
	}
}

func TestLayoutRefuses(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"format":       func(c *Config) { c.Format = "" },
		"long format":  func(c *Config) { c.Format = strings.Repeat("x", 65) },
		"page":         func(c *Config) { c.PageTokens = 0 },
		"context":      func(c *Config) { c.MaxTokens = 0 },
		"vocabulary":   func(c *Config) { c.Vocab = 0 },
		"region name":  func(c *Config) { c.Slots[1].Name = "conv" },
		"region bytes": func(c *Config) { c.Slots[1].Bytes = 1 << 60 },
		"empty region": func(c *Config) { c.Slots[1].Bytes = 0 },
		"rows":         func(c *Config) { c.Pages[0].Regions[0].Bytes++ },
		"slot rows":    func(c *Config) { c.Slots[0].Rows = true },
		"empty page":   func(c *Config) { c.Pages[1].Regions = nil },
		"nothing":      func(c *Config) { c.Pages, c.Slots = nil, nil },
		"many formats": func(c *Config) { c.Pages = make([]PageFormat, 256) },
		"many regions": func(c *Config) { c.Slots = make([]Region, maxRegions+1) },
	} {
		cfg := toyConfig()
		change(&cfg)
		if _, err := NewLayout(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := NewLayout(toyConfig()); err != nil {
		t.Error(err)
	}
}

// Recurrent layers alone, or attention alone, are layouts too.
func TestLayoutOneKind(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"slots": func(c *Config) { c.Pages = nil },
		"pages": func(c *Config) { c.Slots = nil },
	} {
		l := toyLayout(t, change)
		full := newToy(toyLayout(t, nil))
		full.feed(randomTokens(rand.New(rand.NewPCG(5, 6)), 21)...)
		snap, err := Capture(l, full.tokens, full, full.extra(), nil)
		if err != nil {
			t.Fatal(name, err)
		}
		var buf bytes.Buffer
		if err := snap.Encode(&buf); err != nil {
			t.Fatal(name, err)
		}
		back, err := Decode(&buf, int64(buf.Len()), l)
		if err != nil || back.Hash() != snap.Hash() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// States that differ in nothing but a page's format, or in where an extra section ends, have different hashes.
func TestHashTellsApart(t *testing.T) {
	l := toyLayout(t, func(c *Config) {
		c.Pages[1].Regions = c.Pages[0].Regions
		c.Extra = append(c.Extra, Region{"more", 64, false})
	})
	seen := map[Digest]int{}
	for i, c := range []struct {
		format int
		extra  [][]byte
	}{{0, [][]byte{{1}, {2, 3}}}, {1, [][]byte{{1}, {2, 3}}}, {0, [][]byte{{1, 2}, {3}}}, {0, [][]byte{{1}, {2, 4}}}} {
		src := &formatted{constant(1), c.format}
		snap, err := Capture(l, []int32{5}, src, c.extra, nil)
		if err != nil {
			t.Fatal(err)
		}
		if j, ok := seen[snap.Hash()]; ok {
			t.Errorf("states %d and %d have one hash", j, i)
		}
		seen[snap.Hash()] = i
	}
}

// A formatted sequence has all pages in one format.
type formatted struct {
	constant
	format int
}

func (f *formatted) PageFormat(int) int { return f.format }

func TestDigestOf(t *testing.T) {
	a, b := DigestOf([]byte("ab"), []byte("c")), DigestOf([]byte("a"), []byte("bc"))
	if a == b || a != DigestOf([]byte("ab"), []byte("c")) {
		t.Error("digests do not keep parts apart")
	}
	if binary.LittleEndian.Uint64(a[:]) == 0 || len(a.String()) != 64 {
		t.Error(a)
	}
}
