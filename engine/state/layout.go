package state

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// Bounds of what a layout may describe. They keep every sum of sizes far below the limits of an int64.
const (
	maxRegions     = 1 << 14
	maxRegionBytes = 1 << 38
	maxTokens      = 1 << 28
	maxPageTokens  = 1 << 16
	maxName        = 64
)

// A Digest identifies a model or a layout.
type Digest [sha256.Size]byte

// String is the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// DigestOf hashes parts, each with its length, so that moving a byte from one part to the next gives another digest.
func DigestOf(parts ...[]byte) Digest {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	return Digest(h.Sum(nil))
}

// A Region is one piece of a state whose contents are of no concern here, such as one layer's delta matrix, or one
// layer's keys in a page.
type Region struct {
	Name  string // unique in its list, at most 64 bytes
	Bytes int64  // of a whole page, for a region of a page; at most, for an extra
	// Rows says that a page's region consists of one row per token in order, so that the first rows are all there
	// is to a page that is not full. A region without it is always copied whole.
	Rows bool
}

// A PageFormat is what a page consists of. A cache that keeps its recent window in another format than the rest has two.
type PageFormat struct {
	Name    string
	Regions []Region
}

// A Config says what the state of a sequence consists of.
type Config struct {
	// Model is the digest of everything that decides what a state's numbers mean: the identity of the file (its size
	// and enough of its contents to tell two trainings of one shape apart), the tensor table, the metadata,
	// the rotation and whatever else configures the computation.
	Model Digest
	// Format names the cache's settings, such as "q4_0, sink 256, window 1024", in messages and as part of the identity.
	Format     string
	PageTokens int // tokens of a page
	MaxTokens  int // the longest sequence; no part of the identity, so that a longer context can take over a state
	Vocab      int // token ids are 0 to Vocab-1

	Pages []PageFormat // none where no layer attends
	Slots []Region     // the recurrent slots: convolution tails, delta matrices, rows of a fixed size
	Extra []Region     // what the host keeps beside them, of any length up to Bytes: a history of n-grams
}

// A Layout is a checked [Config]. It does not change and may be used from several goroutines.
type Layout struct {
	cfg    Config
	digest Digest
	slots  int64 // bytes of all recurrent slots
}

// NewLayout checks a configuration.
func NewLayout(cfg Config) (*Layout, error) {
	switch {
	case len(cfg.Format) == 0 || len(cfg.Format) > maxName:
		return nil, fmt.Errorf("state: the format's name %q must have 1 to %d bytes", cfg.Format, maxName)
	case cfg.PageTokens < 1 || cfg.PageTokens > maxPageTokens:
		return nil, fmt.Errorf("state: pages of %d tokens; 1 to %d are possible", cfg.PageTokens, maxPageTokens)
	case cfg.MaxTokens < 1 || cfg.MaxTokens > maxTokens:
		return nil, fmt.Errorf("state: sequences of %d tokens; 1 to %d are possible", cfg.MaxTokens, maxTokens)
	case cfg.Vocab < 1:
		return nil, fmt.Errorf("state: a vocabulary of %d tokens", cfg.Vocab)
	case len(cfg.Pages) > 255:
		return nil, fmt.Errorf("state: %d page formats, at most 255 are possible", len(cfg.Pages))
	}
	l := &Layout{}
	var id []byte
	number := func(n int64) { id = binary.LittleEndian.AppendUint64(id, uint64(n)) }
	text := func(s string) { number(int64(len(s))); id = append(id, s...) }
	regions := func(what string, list []Region, rows int) ([]Region, error) {
		if len(list) > maxRegions {
			return nil, fmt.Errorf("state: %s: %d regions, at most %d are possible", what, len(list), maxRegions)
		}
		number(int64(len(list)))
		seen := map[string]bool{}
		for _, r := range list {
			switch {
			case r.Name == "" || len(r.Name) > maxName || seen[r.Name]:
				return nil, fmt.Errorf("state: %s: the name %q must be unique and of 1 to %d bytes", what, r.Name, maxName)
			case r.Bytes < 1 || r.Bytes > maxRegionBytes:
				return nil, fmt.Errorf("state: %s: %s has %d bytes; 1 to %d are possible",
					what, r.Name, r.Bytes, int64(maxRegionBytes))
			case r.Rows && (rows == 0 || r.Bytes%int64(rows) != 0):
				return nil, fmt.Errorf("state: %s: the %d bytes of %s are not rows of %d tokens", what, r.Bytes, r.Name, rows)
			}
			seen[r.Name] = true
			text(r.Name)
			number(r.Bytes)
			if r.Rows {
				number(1)
			} else {
				number(0)
			}
		}
		return append([]Region(nil), list...), nil
	}
	text(cfg.Format)
	number(int64(cfg.PageTokens))
	number(int64(len(cfg.Pages)))
	var err error
	pages := make([]PageFormat, len(cfg.Pages))
	for i, p := range cfg.Pages {
		if len(p.Regions) == 0 {
			return nil, fmt.Errorf("state: page format %q has no regions", p.Name)
		}
		text(p.Name)
		pages[i].Name = p.Name
		if pages[i].Regions, err = regions("page format "+p.Name, p.Regions, cfg.PageTokens); err != nil {
			return nil, err
		}
	}
	cfg.Pages = pages
	if cfg.Slots, err = regions("slots", cfg.Slots, 0); err != nil {
		return nil, err
	}
	if cfg.Extra, err = regions("extra", cfg.Extra, 0); err != nil {
		return nil, err
	}
	if len(cfg.Pages) == 0 && len(cfg.Slots) == 0 {
		return nil, errors.New("state: neither pages nor slots")
	}
	for _, r := range cfg.Slots {
		l.slots += r.Bytes
	}
	l.cfg = cfg
	l.digest = DigestOf([]byte("caldera state layout 1"), id)
	return l, nil
}

// Model is the digest of the model.
func (l *Layout) Model() Digest { return l.cfg.Model }

// Digest identifies everything in the layout but the model and the longest sequence.
func (l *Layout) Digest() Digest { return l.digest }

// MaxTokens is the longest sequence.
func (l *Layout) MaxTokens() int { return l.cfg.MaxTokens }

// PageCount is the number of pages that hold so many tokens.
func (l *Layout) PageCount(tokens int) int {
	if len(l.cfg.Pages) == 0 {
		return 0
	}
	return (tokens + l.cfg.PageTokens - 1) / l.cfg.PageTokens
}

// rows is how many of page i's rows are in use after so many tokens.
func (l *Layout) rows(i, tokens int) int { return min(l.cfg.PageTokens, tokens-i*l.cfg.PageTokens) }

// used is what a region takes of a page with so many rows in use.
func (l *Layout) used(r Region, rows int) int64 {
	if r.Rows {
		return r.Bytes / int64(l.cfg.PageTokens) * int64(rows)
	}
	return r.Bytes
}

// pageBytes is what a page with so many rows in use takes.
func (l *Layout) pageBytes(format, rows int) int64 {
	n := int64(0)
	for _, r := range l.cfg.Pages[format].Regions {
		n += l.used(r, rows)
	}
	return n
}

// checkTokens checks that a state can hold tokens.
func (l *Layout) checkTokens(tokens []int32) error {
	if len(tokens) == 0 {
		return fmt.Errorf("%w: a state before the first token is not kept", ErrPosition)
	}
	if len(tokens) > l.cfg.MaxTokens {
		return fmt.Errorf("%w: %d tokens, and the context has %d", ErrPosition, len(tokens), l.cfg.MaxTokens)
	}
	for i, t := range tokens {
		if t < 0 || int(t) >= l.cfg.Vocab {
			return fmt.Errorf("token %d is %d, outside the vocabulary of %d", i, t, l.cfg.Vocab)
		}
	}
	return nil
}
