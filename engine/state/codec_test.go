package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"runtime/metrics"
	"testing"
	"testing/iotest"
)

// encoded is a toy's snapshot after n tokens and its bytes.
func encoded(t testing.TB, l *Layout, n int) (*Snapshot, []byte) {
	t.Helper()
	s := newToy(l)
	s.feed(randomTokens(rand.New(rand.NewPCG(7, uint64(n))), n)...)
	if n > toyPage {
		s.cool(0)
	}
	snap := s.capture(t, nil)
	var buf bytes.Buffer
	if err := snap.Encode(&buf); err != nil {
		t.Fatal(err)
	}
	return snap, buf.Bytes()
}

func decode(b []byte, l *Layout) (*Snapshot, error) {
	return Decode(bytes.NewReader(b), int64(len(b)), l)
}

// reseal repairs the checksums of the header and the end, so that a change between them is all that is wrong.
func reseal(b []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	le := binary.LittleEndian
	if len(b) < headerBytes {
		return b
	}
	le.PutUint32(b[160:], crc32.Checksum(b[:160], table))
	total := crc32.Checksum(b[160:164], table)
	for at := headerBytes; at+frameBytes <= len(b); {
		f := [frameBytes]byte(b[at:])
		n := le.Uint64(f[16:])
		if n > uint64(len(b)-at-frameBytes) {
			break
		}
		data := b[at+frameBytes : at+frameBytes+int(n)]
		if string(f[:4]) == kindEnd && n == endBytes {
			le.PutUint32(data, total)
		}
		le.PutUint32(b[at+12:], frameSum(&f, data))
		total = crc32.Update(total, table, b[at+12:at+16])
		at += frameBytes + int(n)
	}
	return b
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	m := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(m)
	before := m[0].Value.Uint64()
	f()
	metrics.Read(m)
	return m[0].Value.Uint64() - before
}

// The encoding is a promise to files on disk: a change of these numbers needs a new version.
func TestEncodingIsStable(t *testing.T) {
	_, b := encoded(t, toyLayout(t, nil), 19)
	if got := crc32.ChecksumIEEE(b); got != goldenSum || len(b) != goldenLen {
		t.Errorf("%d bytes with sum %#x, want %d with %#x", len(b), got, goldenLen, goldenSum)
	}
}

func TestDecodeSlowReader(t *testing.T) {
	l := toyLayout(t, nil)
	snap, b := encoded(t, l, 19)
	back, err := Decode(iotest.OneByteReader(bytes.NewReader(b)), int64(len(b)), l)
	if err != nil || back.Hash() != snap.Hash() {
		t.Error(err)
	}
	boom := errors.New("boom")
	for n := range len(b) {
		r := io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(boom))
		if _, err := Decode(r, int64(len(b)), l); !errors.Is(err, boom) || errors.Is(err, ErrCorrupt) {
			t.Fatalf("a reader that fails after %d bytes: %v", n, err)
		}
	}
}

func TestReadPrefix(t *testing.T) {
	l := toyLayout(t, nil)
	snap, b := encoded(t, l, 19)
	// Only the header and the tokens are touched.
	r := io.MultiReader(bytes.NewReader(b[:headerBytes+frameBytes+4*19]), iotest.ErrReader(errors.New("read on")))
	h, tokens, err := ReadPrefix(r, int64(len(b)), l)
	if err != nil || h.Pos != 19 || h.Size != int64(len(b)) || h.Format != "hot and cold" || h.Model != l.Model() ||
		h.Layout != l.Digest() || !snap.prefixOf(tokens) {
		t.Errorf("%+v %v %v", h, tokens, err)
	}
	for want, change := range map[error]func(*Config){
		ErrOtherModel:  func(c *Config) { c.Model[31] ^= 1 },
		ErrOtherFormat: func(c *Config) { c.Pages[1].Regions[1].Bytes++ },
	} {
		h, tokens, err := ReadPrefix(bytes.NewReader(b), int64(len(b)), toyLayout(t, change))
		if !errors.Is(err, want) || h.Pos != 19 || !snap.prefixOf(tokens) {
			t.Errorf("want %v: %+v %v %v", want, h, tokens, err)
		}
	}
	short := toyLayout(t, func(c *Config) { c.MaxTokens = 18 })
	if _, tokens, err := ReadPrefix(bytes.NewReader(b), int64(len(b)), short); !errors.Is(err, ErrPosition) || tokens != nil {
		t.Errorf("a shorter context: %v", err)
	}
}

func TestDecodeTruncated(t *testing.T) {
	l := toyLayout(t, nil)
	_, b := encoded(t, l, 19)
	for n := range len(b) {
		if _, err := decode(b[:n], l); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
		// The size is as announced and the bytes end early.
		if _, err := Decode(bytes.NewReader(b[:n]), int64(len(b)), l); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	if _, err := decode(append(bytes.Clone(b), 0), l); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a byte too many: %v", err)
	}
}

// No bit can flip without being noticed.
func TestDecodeFlipped(t *testing.T) {
	l := toyLayout(t, nil)
	_, b := encoded(t, l, 19)
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			_, err := decode(b, l)
			if want := ErrCorrupt; i >= 8 && i < 16 {
				want = ErrVersion
				if !errors.Is(err, want) {
					t.Fatalf("bit %d of byte %d: %v", bit, i, err)
				}
			} else if !errors.Is(err, want) {
				t.Fatalf("bit %d of byte %d: %v", bit, i, err)
			}
			b[i] ^= 1 << bit
		}
	}
}

// Files that are whole in themselves and wrong: all checksums are right.
func TestDecodeRefuses(t *testing.T) {
	l := toyLayout(t, nil)
	le := binary.LittleEndian
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		layout func(*Config)
		want   error
	}{
		"nothing":        {func(b []byte) []byte { return nil }, nil, ErrCorrupt},
		"text":           {func(b []byte) []byte { return bytes.Repeat([]byte("text"), 100) }, nil, ErrCorrupt},
		"version":        {func(b []byte) []byte { b[8] = 2; return b }, nil, ErrVersion},
		"model":          {func(b []byte) []byte { b[16]++; return b }, nil, ErrOtherModel},
		"layout":         {func(b []byte) []byte { b[48]++; return b }, nil, ErrOtherFormat},
		"other model":    {nil, func(c *Config) { c.Model[0]++ }, ErrOtherModel},
		"other format":   {nil, func(c *Config) { c.Format = "f32" }, ErrOtherFormat},
		"short context":  {nil, func(c *Config) { c.MaxTokens = 18 }, ErrPosition},
		"size":           {func(b []byte) []byte { b[144]++; return b }, nil, ErrCorrupt},
		"tail":           {func(b []byte) []byte { b[144]++; return append(b, 0) }, nil, ErrCorrupt},
		"position 0":     {func(b []byte) []byte { le.PutUint64(b[152:], 0); return b }, nil, ErrCorrupt},
		"position 2^63":  {func(b []byte) []byte { le.PutUint64(b[152:], 1<<63); return b }, nil, ErrCorrupt},
		"position less":  {func(b []byte) []byte { b[152]--; return b }, nil, ErrCorrupt},
		"token":          {func(b []byte) []byte { b[headerBytes+frameBytes] = 100; return b }, nil, ErrCorrupt},
		"page format":    {func(b []byte) []byte { b[headerBytes+frameBytes+4*19+8] = 2; return b }, nil, ErrCorrupt},
		"page index":     {func(b []byte) []byte { b[headerBytes+frameBytes+4*19+4] = 1; return b }, nil, ErrCorrupt},
		"format name":    {func(b []byte) []byte { b[80] = 'H'; return b }, nil, ErrCorrupt},
		"tokens' format": {func(b []byte) []byte { b[headerBytes+8] = 1; return b }, nil, ErrCorrupt},
		"kind":           {func(b []byte) []byte { b[headerBytes+frameBytes+4*19] = 'p'; return b }, nil, ErrCorrupt},
		"section length": {func(b []byte) []byte { le.PutUint64(b[headerBytes+16:], 1<<62); return b }, nil, ErrCorrupt},
	} {
		_, b := encoded(t, l, 19)
		if c.change != nil {
			b = reseal(c.change(b))
		}
		if _, err := decode(b, toyLayout(t, c.layout)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// Whole files whose sections have other sizes than their digest promises.
func TestDecodeForged(t *testing.T) {
	l := toyLayout(t, nil)
	for name, change := range map[string]func(*Config){
		"longer slots":  func(c *Config) { c.Slots[0].Bytes++ },
		"shorter slots": func(c *Config) { c.Slots[0].Bytes-- },
		"more pages":    func(c *Config) { c.PageTokens = 4 },
		"fewer pages":   func(c *Config) { c.PageTokens = 16; c.Pages = c.Pages[:1]; c.Pages[0].Regions[0].Bytes *= 2 },
		"longer pages":  func(c *Config) { c.Pages[0].Regions[0].Bytes += toyPage },
		"more extras":   func(c *Config) { c.Extra = append(c.Extra, Region{"more", 5, false}) },
		"fewer extras":  func(c *Config) { c.Extra = nil },
	} {
		forged := toyLayout(t, change)
		forged.digest = l.digest
		src := constant(3)
		extra := [][]byte{{1}, {2}}[:len(forged.cfg.Extra)]
		snap, err := Capture(forged, randomTokens(rand.New(rand.NewPCG(1, 1)), 19), src, extra, nil)
		if err != nil {
			t.Fatal(err)
		}
		var buf bytes.Buffer
		if err := snap.Encode(&buf); err != nil {
			t.Fatal(err)
		}
		if _, err := decode(buf.Bytes(), l); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	long := toyLayout(t, func(c *Config) { c.Extra[0].Bytes = 100 })
	long.digest = l.digest
	snap, err := Capture(long, []int32{1}, constant(1), [][]byte{make([]byte, 65)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := snap.Encode(&buf); err != nil {
		t.Fatal(err)
	}
	if _, err := decode(buf.Bytes(), l); !errors.Is(err, ErrCorrupt) {
		t.Errorf("an extra section of 65 bytes where 64 are allowed: %v", err)
	}
}

// Sections of two states of one size are right by themselves and do not belong together.
func TestDecodeMixed(t *testing.T) {
	l := toyLayout(t, nil)
	var files [2][]byte
	for i := range files {
		snap, err := Capture(l, []int32{1, 2, 3}, constant(i), [][]byte{nil}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var buf bytes.Buffer
		if err := snap.Encode(&buf); err != nil {
			t.Fatal(err)
		}
		files[i] = buf.Bytes()
	}
	n := len(files[0]) - 3*frameBytes - endBytes - int(l.slots)
	if _, err := decode(append(bytes.Clone(files[0][:n]), files[1][n:]...), l); !errors.Is(err, ErrCorrupt) {
		t.Errorf("pages of one state with the slots of another: %v", err)
	}
}

// A length that the layout allows and the file does not have allocates nothing.
func TestDecodeAllocates(t *testing.T) {
	l := toyLayout(t, func(c *Config) { c.Extra[0].Bytes = 1 << 37 })
	_, b := encoded(t, l, 19)
	at := len(b) - frameBytes - endBytes - 5 - frameBytes
	if string(b[at:at+4]) != kindExtra {
		t.Fatalf("%q", b[at:at+4])
	}
	binary.LittleEndian.PutUint64(b[at+16:], 1<<36)
	n := allocated(func() {
		if _, err := decode(b, l); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a section of 64 GiB: %v", err)
		}
	})
	if n > 1<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

type failingWriter struct{ left int }

var errFull = errors.New("no space left")

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestEncodeFails(t *testing.T) {
	snap, b := encoded(t, toyLayout(t, nil), 19)
	for n := range b {
		if err := snap.Encode(&failingWriter{n}); !errors.Is(err, errFull) {
			t.Fatalf("room for %d of %d bytes: %v", n, len(b), err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	l := toyLayout(f, nil)
	for _, n := range []int{1, 8, 19} {
		_, b := encoded(f, l, n)
		f.Add(b, false)
		f.Add(b[:len(b)-9], true)
	}
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		if repair {
			b = reseal(bytes.Clone(b)) // so that mutations get behind the checksums
		}
		var s *Snapshot
		var err error
		if n := allocated(func() { s, err = decode(b, l) }); n > uint64(16*len(b)+1<<20) {
			t.Fatalf("%d bytes allocated for %d", n, len(b))
		}
		if err != nil {
			known := false
			for _, want := range []error{ErrCorrupt, ErrVersion, ErrOtherModel, ErrOtherFormat, ErrPosition} {
				known = known || errors.Is(err, want)
			}
			if !known {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		var buf bytes.Buffer
		if err := s.Encode(&buf); err != nil || !bytes.Equal(buf.Bytes(), b) {
			t.Fatalf("what was read is not written alike: %v", err)
		}
	})
}

// big is a snapshot of 64 MiB: 128 pages and slots of 8 MiB.
func big(b *testing.B) (*Layout, *Snapshot) {
	l, err := NewLayout(Config{
		Format: "f16", PageTokens: 256, MaxTokens: 1 << 18, Vocab: 1 << 18,
		Pages: []PageFormat{{"f16", []Region{{"k", 224 << 10, true}, {"v", 224 << 10, true}}}},
		Slots: []Region{{"delta", 8 << 20, false}},
	})
	if err != nil {
		b.Fatal(err)
	}
	s, err := Capture(l, make([]int32, 128*256), constant(0), nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	return l, s
}

// constant is a sequence whose state is the same byte everywhere.
type constant byte

func (constant) PageFormat(int) int { return 0 }

func (c constant) Download(parts []Part) error {
	for _, p := range parts {
		for i := range p.Data {
			p.Data[i] = byte(c)
		}
	}
	return nil
}

func BenchmarkEncode(b *testing.B) {
	_, s := big(b)
	b.SetBytes(s.Bytes())
	for b.Loop() {
		if err := s.Encode(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	l, s := big(b)
	var buf bytes.Buffer
	if err := s.Encode(&buf); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(s.Bytes())
	for b.Loop() {
		if _, err := decode(buf.Bytes(), l); err != nil {
			b.Fatal(err)
		}
	}
}

// What a toy's snapshot of 19 tokens encodes to.
const (
	goldenLen = 1209
	goldenSum = 0x3b529d72
)
