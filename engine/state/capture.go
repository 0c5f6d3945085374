package state

import (
	"fmt"
	"slices"
)

// A Part is a region of a sequence's state and the bytes to copy from or to it, beginning at its start.
type Part struct {
	Page   int // index in the sequence, or -1 for a recurrent slot
	Format int // of the page, an index into [Config.Pages]
	Region int // index into the format's regions, or into [Config.Slots]
	Data   []byte
}

// A Source is a sequence whose state can be read.
type Source interface {
	// PageFormat is the format that page i of the sequence is in now, an index into [Config.Pages].
	PageFormat(i int) int
	// Download fills the Data of all parts. The state must not move between the call and its return.
	Download(parts []Part) error
}

// A Target is a sequence whose state can be written.
type Target interface {
	// Upload writes the Data of all parts.
	Upload(parts []Part) error
}

// Capture takes a snapshot of a sequence that has been fed tokens and nothing else. Extra are the host's
// sections, one per [Config.Extra]; they are copied.
//
// If prev is not nil it must be the last snapshot that was captured from this sequence or restored into it. Its
// full pages whose format is still the same are shared instead of copied. A prev of other tokens is an error,
// since it shows that the caller has mixed sequences up.
func Capture(l *Layout, tokens []int32, src Source, extra [][]byte, prev *Snapshot) (*Snapshot, error) {
	if err := l.checkTokens(tokens); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	if len(extra) != len(l.cfg.Extra) {
		return nil, fmt.Errorf("capture: %d extra sections, the layout has %d", len(extra), len(l.cfg.Extra))
	}
	if prev != nil {
		if err := prev.check(l); err != nil {
			return nil, fmt.Errorf("capture: the snapshot before: %w", err)
		}
		if !prev.prefixOf(tokens) {
			return nil, fmt.Errorf("capture: the snapshot before: %w: its %d are not the first of the sequence's %d",
				ErrOtherTokens, prev.Pos(), len(tokens))
		}
	}
	s := &Snapshot{layout: l, tokens: slices.Clone(tokens), pages: make([]*Page, l.PageCount(len(tokens)))}
	for i, x := range extra {
		if int64(len(x)) > l.cfg.Extra[i].Bytes {
			return nil, fmt.Errorf("capture: %s has %d bytes, the layout allows %d",
				l.cfg.Extra[i].Name, len(x), l.cfg.Extra[i].Bytes)
		}
		s.extra = append(s.extra, slices.Clone(x))
	}
	var parts []Part
	for i := range s.pages {
		format, rows := src.PageFormat(i), l.rows(i, len(tokens))
		if format < 0 || format >= len(l.cfg.Pages) {
			return nil, fmt.Errorf("capture: page %d is in format %d of %d", i, format, len(l.cfg.Pages))
		}
		if prev != nil && i < len(prev.pages) {
			if p := prev.pages[i]; p.rows == l.cfg.PageTokens && p.format == format {
				s.pages[i] = p
				continue
			}
		}
		p := &Page{format: format, rows: rows, data: make([]byte, l.pageBytes(format, rows))}
		s.pages[i] = p
		parts = l.pageParts(parts, i, p)
	}
	s.slots = make([]byte, l.slots)
	parts = l.slotParts(parts, s.slots)
	if err := src.Download(parts); err != nil {
		return nil, fmt.Errorf("capture at %d tokens: %w", len(tokens), err)
	}
	return s, nil
}

// CaptureBytes is what a capture of so many tokens will take that is not shared with the snapshot before, at most.
func (l *Layout) CaptureBytes(tokens int, prev *Snapshot) int64 {
	n := l.slots + 4*int64(tokens)
	for _, r := range l.cfg.Extra {
		n += r.Bytes
	}
	first := 0
	if prev != nil {
		first = min(prev.Pos(), tokens) / l.cfg.PageTokens
	}
	for i := first; i < l.PageCount(tokens); i++ {
		most := int64(0)
		for f := range l.cfg.Pages {
			most = max(most, l.pageBytes(f, l.rows(i, tokens)))
		}
		n += most
	}
	return n
}

// Restore writes a snapshot into a sequence that shall hold exactly tokens and whose pages have the snapshot's
// formats. A snapshot of another layout, position or other tokens is refused before anything is written. After
// any other error the sequence's state is unknown.
func Restore(l *Layout, s *Snapshot, tokens []int32, dst Target) error {
	if err := s.check(l); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if len(tokens) != s.Pos() {
		return fmt.Errorf("restore: %w: it holds %d tokens, %d are asked for", ErrPosition, s.Pos(), len(tokens))
	}
	if s.Pos() > l.cfg.MaxTokens {
		return fmt.Errorf("restore: %w: it holds %d tokens, and the context has %d", ErrPosition, s.Pos(), l.cfg.MaxTokens)
	}
	if !s.prefixOf(tokens) {
		return fmt.Errorf("restore: %w", ErrOtherTokens)
	}
	var parts []Part
	for i, p := range s.pages {
		parts = l.pageParts(parts, i, p)
	}
	if err := dst.Upload(l.slotParts(parts, s.slots)); err != nil {
		return fmt.Errorf("restore at %d tokens: %w", len(tokens), err)
	}
	return nil
}

// check reports why the snapshot does not belong to a layout.
func (s *Snapshot) check(l *Layout) error {
	if s.layout.cfg.Model != l.cfg.Model {
		return ErrOtherModel
	}
	if s.layout.digest != l.digest {
		return fmt.Errorf("%w: it has %s, this is %s", ErrOtherFormat, s.layout.cfg.Format, l.cfg.Format)
	}
	return nil
}

// pageParts appends the parts of a page.
func (l *Layout) pageParts(parts []Part, i int, p *Page) []Part {
	at := int64(0)
	for r, region := range l.cfg.Pages[p.format].Regions {
		n := l.used(region, p.rows)
		parts = append(parts, Part{Page: i, Format: p.format, Region: r, Data: p.data[at : at+n : at+n]})
		at += n
	}
	return parts
}

// slotParts appends the parts of the recurrent slots.
func (l *Layout) slotParts(parts []Part, data []byte) []Part {
	at := int64(0)
	for r, region := range l.cfg.Slots {
		parts = append(parts, Part{Page: -1, Region: r, Data: data[at : at+region.Bytes : at+region.Bytes]})
		at += region.Bytes
	}
	return parts
}
