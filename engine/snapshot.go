package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"weak"

	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/state"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// Of each tensor so many pieces of so many bytes, spread evenly, go into the identity of a model.
const (
	identityPieces = 64
	identityBytes  = 1024
)

// identity is the digest of everything that decides what the numbers in a state mean and how they come out: metadata
// and tensor table, samples of every tensor, the time of the file, which tells what the samples do not, and what
// computes, as another device rounds otherwise, and a tuned one too, and products of whole numbers.
func (e *Engine) identity() (state.Digest, error) {
	var parts [][]byte
	for _, t := range e.file.Tensors() {
		data, err := e.file.Data(t)
		if err != nil {
			return state.Digest{}, err
		}
		parts = append(parts, fmt.Appendf(nil, "%s %d %v", t.Name, t.Type, t.Dims))
		for i := range identityPieces {
			at := len(data) / identityPieces * i
			parts = append(parts, data[at:min(len(data), at+identityBytes)])
		}
	}
	for i, name := range e.file.Parts() {
		if info, err := os.Stat(name); err == nil && e.cfg.Data == nil {
			parts = append(parts, fmt.Appendf(nil, "%d", info.ModTime().UnixNano()))
		}
		header := e.file.Pages(i)
		if header == nil {
			header = e.cfg.Data
		}
		parts = append(parts, header[:e.file.DataStart(i)])
	}
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(e.file.Size()))
	parts = append(parts, size[:], []byte(e.cfg.Backend), []byte(e.cfg.Profile), []byte(e.Activations()))
	// On which device a layer is makes no more difference than which devices there are: what was taken on one split goes on in another.
	var devices [][]byte
	for i, d := range e.where.Dies {
		id := append(deviceIdentity(d), e.tested[i].Without...)
		if !slices.ContainsFunc(devices, func(x []byte) bool { return bytes.Equal(x, id) }) {
			devices = append(devices, id)
		}
	}
	slices.SortFunc(devices, bytes.Compare)
	parts = append(parts, devices...)
	return state.DigestOf(parts...), e.file.Intact()
}

// deviceIdentity is what of a device decides how numbers come out.
func deviceIdentity(d *scheduler.Die) (id []byte) {
	if s := d.Kernels.Matrices; s != (shaders.MatrixShape{}) {
		id = fmt.Appendf(id, "matrices of %v\n", s)
	}
	i := d.Device.Info()
	id = fmt.Appendf(id, "%s %s %s %d\n", i.Name, i.DriverName, i.DriverInfo, i.DriverVersion)
	for _, u := range slices.SortedFunc(maps.Keys(d.Kernels.Tuned), compareUses) {
		w := d.Kernels.Tuned[u] // what it takes at once changes no bit
		id = fmt.Appendf(id, "%s by %s of %d\n", u, w.Scheme, w.Group)
	}
	return id
}

// stateFormat names how the cache of a configuration is stored.
func (e *Engine) stateFormat() string {
	if e.state.ColdPages == 0 {
		return e.state.KV.String()
	}
	p := e.pool.Policy()
	return fmt.Sprintf("%s, sink %d, window %d in %s", e.state.ColdKV, p.Sink, p.Window, e.state.KV)
}

// newLayout describes the engine's state to package state.
func (e *Engine) newLayout() (*state.Layout, error) {
	id, err := e.identity()
	if err != nil {
		return nil, err
	}
	cfg := state.Config{
		Model: id, Format: e.stateFormat(), PageTokens: shaders.PageTokens, MaxTokens: e.cfg.Context, Vocab: e.model.Vocab,
		Slots: regions(e.state.SlotViews(0), false),
	}
	formats := []struct {
		page int32
		f    shaders.KVFormat
	}{{0, e.state.KV}, {kv.Cold, e.state.ColdKV}}
	if e.state.ColdPages == 0 {
		formats = formats[:1]
	}
	for _, x := range formats {
		// Rows of quantised pages are not apart from each other in memory; such pages are always full.
		if r := regions(e.state.PageViews(x.page), !x.f.Cold()); len(r) > 0 {
			cfg.Pages = append(cfg.Pages, state.PageFormat{Name: x.f.String(), Regions: r})
		}
	}
	return state.NewLayout(cfg)
}

func regions(views []shaders.View, rows bool) []state.Region {
	var rs []state.Region
	for _, v := range views {
		rs = append(rs, state.Region{Name: v.Buf.Name, Bytes: v.Len, Rows: rows})
	}
	return rs
}

// A stateCopier moves a sequence's state between the device and the host. It is a state.Source and a state.Target.
type stateCopier struct {
	e   *Engine
	seq *sequence
}

func (c stateCopier) PageFormat(i int) int {
	if c.seq.seat.Pages()[i] < 0 {
		return 1
	}
	return 0
}

func (c stateCopier) Download(parts []state.Part) error {
	return c.each(parts, func(v shaders.View, data []byte) error {
		if c.e.die == nil {
			copy(data, c.e.memory.Bytes(v))
			return nil
		}
		return c.e.dieOf(v.Buf).Download(v, data)
	})
}

func (c stateCopier) Upload(parts []state.Part) error {
	return c.each(parts, func(v shaders.View, data []byte) error {
		if c.e.die == nil {
			copy(c.e.memory.Bytes(v), data)
			return nil
		}
		return c.e.dieOf(v.Buf).Upload(v, data)
	})
}

// each calls f with the place of each part on the device.
func (c stateCopier) each(parts []state.Part, f func(v shaders.View, data []byte) error) error {
	page, views := -2, []shaders.View(nil)
	for _, p := range parts {
		if p.Page != page {
			if page = p.Page; page < 0 {
				views = c.e.state.SlotViews(c.seq.seat.Slot())
			} else {
				if c.PageFormat(page) != p.Format {
					return fmt.Errorf("page %d is in format %d, the sequence has it in %d", page, p.Format, c.PageFormat(page))
				}
				views = c.e.state.PageViews(c.seq.seat.Pages()[page])
			}
		}
		v := views[p.Region]
		if err := f(v.Slice(0, int64(len(p.Data))), p.Data); err != nil {
			return fmt.Errorf("%s: %w", v.Buf.Name, err)
		}
	}
	return nil
}

// capture takes a snapshot of a sequence. e.mu is held, and no step is in flight.
func (e *Engine) capture(seq *sequence) (*state.Snapshot, error) {
	if seq.closed {
		return nil, errClosedSession
	}
	if seq.failed != nil {
		return nil, seq.failed
	}
	snap, err := state.Capture(e.layout, seq.tokens, stateCopier{e, seq}, nil, seq.last.Value())
	if err == nil {
		seq.last = weak.Make(snap)
	}
	return snap, err
}

// put makes a sequence hold a snapshot. If it fails, the sequence is empty. e.mu is held.
func (e *Engine) put(seq *sequence, snap *state.Snapshot) (err error) {
	if seq.closed {
		return errClosedSession
	}
	if snap == nil || snap.Layout() == nil {
		return errors.New("there is no snapshot to restore")
	}
	seq.reset()
	defer func() {
		if err != nil {
			seq.reset()
		}
	}()
	if err := seq.seat.Hold(snap.Pos()); err != nil {
		return err
	}
	if err := state.Restore(e.layout, snap, snap.Tokens(), stateCopier{e, seq}); err != nil {
		return err
	}
	seq.tokens = append(seq.tokens, snap.Tokens()...)
	seq.last = weak.Make(snap)
	return nil
}

// Snapshot takes a snapshot of the session's state, from which a session of the same model, device and formats can go
// on; see package state. Snapshots of a session share the pages that they have in common.
func (s *Session) Snapshot() (*state.Snapshot, error) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	if err := s.e.needLayout(); err != nil {
		return nil, err
	}
	return s.e.capture(s.seq)
}

// Restore makes the session hold exactly the tokens of a snapshot. A snapshot of another model, format or context is
// refused and the session is empty then.
func (s *Session) Restore(snap *state.Snapshot) error {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	if err := s.e.needLayout(); err != nil {
		return err
	}
	return s.e.put(s.seq, snap)
}

// Layout describes the engine's state, for decoding snapshots that were encoded.
func (e *Engine) Layout() (*state.Layout, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.needLayout()
	return e.layout, err
}

// needLayout makes the layout, which takes reading a little of every tensor, on first use.
func (e *Engine) needLayout() (err error) {
	if e.plans == nil {
		return ErrClosed
	}
	if e.layout == nil {
		e.layout, err = e.newLayout()
	}
	return err
}

// Fork returns a session with the state of this one.
func (s *Session) Fork() (*Session, error) {
	snap, err := s.Snapshot()
	if err != nil {
		return nil, err
	}
	t, err := s.e.NewSession()
	if err != nil {
		return nil, err
	}
	if err := t.Restore(snap); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}
