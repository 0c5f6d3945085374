package state

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
)

// What keeps a snapshot from being read or restored. The errors returned wrap one of these and say more.
var (
	ErrCorrupt     = errors.New("the snapshot is damaged")
	ErrVersion     = errors.New("the snapshot has another version")
	ErrOtherModel  = errors.New("the snapshot belongs to another model")
	ErrOtherFormat = errors.New("the snapshot has another format")
	ErrPosition    = errors.New("the snapshot is for another position")
	ErrOtherTokens = errors.New("the snapshot is of other tokens")
)

// A Page holds the used bytes of all regions of one page. It does not change and is shared by the snapshots of
// a sequence.
type Page struct {
	format int
	rows   int
	data   []byte
}

// Bytes is the size of the page.
func (p *Page) Bytes() int64 { return int64(len(p.data)) }

// A Snapshot is everything a sequence needs to go on after its tokens. It does not change and may be used from
// several goroutines.
type Snapshot struct {
	layout *Layout
	tokens []int32
	pages  []*Page
	slots  []byte
	extra  [][]byte
}

// Layout is what the snapshot was captured or decoded with.
func (s *Snapshot) Layout() *Layout { return s.layout }

// Pos is the number of tokens that the state holds.
func (s *Snapshot) Pos() int { return len(s.tokens) }

// Tokens are the tokens that the state holds. They must not be changed.
func (s *Snapshot) Tokens() []int32 { return s.tokens }

// Pages are the snapshot's pages in order, which other snapshots may share. They must not be changed.
func (s *Snapshot) Pages() []*Page { return s.pages }

// PageFormat is the format of page i as an index into [Config.Pages]. Whoever restores needs pages of these formats.
func (s *Snapshot) PageFormat(i int) int { return s.pages[i].format }

// Extra is the i-th section that the host keeps beside the device's state. It must not be changed.
func (s *Snapshot) Extra(i int) []byte { return s.extra[i] }

// OwnBytes is what the snapshot takes beside its pages.
func (s *Snapshot) OwnBytes() int64 {
	n := int64(len(s.slots)) + 4*int64(len(s.tokens))
	for _, x := range s.extra {
		n += int64(len(x))
	}
	return n
}

// Bytes is what the snapshot takes with all its pages.
func (s *Snapshot) Bytes() int64 {
	n := s.OwnBytes()
	for _, p := range s.pages {
		n += p.Bytes()
	}
	return n
}

// Hash is a digest of everything in the snapshot. Two states with equal hashes go on alike, so a hash before a
// capture and after a restore says whether anything was lost. It reads all bytes with SHA-256 and is meant for
// tests and diagnosis.
func (s *Snapshot) Hash() Digest {
	h := sha256.New()
	var b [8]byte
	number := func(n int) {
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		h.Write(b[:])
	}
	h.Write(s.layout.cfg.Model[:])
	h.Write(s.layout.digest[:])
	number(len(s.tokens))
	for _, t := range s.tokens {
		binary.LittleEndian.PutUint32(b[:], uint32(t))
		h.Write(b[:4])
	}
	for _, p := range s.pages {
		number(p.format)
		h.Write(p.data)
	}
	h.Write(s.slots)
	for _, x := range s.extra {
		number(len(x))
		h.Write(x)
	}
	return Digest(h.Sum(nil))
}

// prefixOf reports whether the snapshot's tokens are the first of tokens.
func (s *Snapshot) prefixOf(tokens []int32) bool {
	return len(s.tokens) <= len(tokens) && slices.Equal(s.tokens, tokens[:len(s.tokens)])
}
