package engine

import (
	"fmt"

	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/state"
	"github.com/calderaml/caldera/shaders"
)

// recode makes a snapshot of one layout into one of another that differs in the formats of its pages alone. Pages
// that are cold by the new policy are encoded as the device would, from what there is of them.
func recode(snap *state.Snapshot, from, to pageFormats, policy kv.Policy) (*state.Snapshot, error) {
	r := &recoder{
		from: from, to: to, policy: policy, cold: policy.ColdAfter(snap.Pos()), snap: snap, parts: map[[2]int][]byte{},
	}
	if err := state.Restore(from.layout, snap, snap.Tokens(), r); err != nil {
		return nil, err
	}
	return state.Capture(to.layout, snap.Tokens(), r, nil, nil)
}

// pageFormats are a layout and what its page formats are.
type pageFormats struct {
	layout    *state.Layout
	hot, cold shaders.KVFormat
	width     int // elements of a token's keys in a layer
}

func (f pageFormats) of(i int) shaders.KVFormat {
	if i == 0 {
		return f.hot
	}
	return f.cold
}

// A recoder takes a snapshot in and gives its parts out again in other formats.
type recoder struct {
	from, to pageFormats
	policy   kv.Policy
	cold     int
	snap     *state.Snapshot
	parts    map[[2]int][]byte // by page, -1 for slots, and region
}

func (r *recoder) Upload(parts []state.Part) error {
	for _, p := range parts {
		r.parts[[2]int{p.Page, p.Region}] = p.Data
	}
	return nil
}

func (r *recoder) PageFormat(i int) int {
	if r.policy.IsCold(i, r.cold) {
		return 1
	}
	return 0
}

func (r *recoder) Download(parts []state.Part) error {
	for _, p := range parts {
		src := r.parts[[2]int{p.Page, p.Region}]
		if p.Page < 0 {
			copy(p.Data, src)
			continue
		}
		from, to := r.from.of(r.snap.PageFormat(p.Page)), r.to.of(p.Format)
		if from == to {
			copy(p.Data, src)
			continue
		}
		// A page that is not full holds its first rows.
		in, out := shaders.AlignedBytes(from.PageBytes(r.from.width)), shaders.AlignedBytes(to.PageBytes(r.to.width))
		copy(in, src)
		if err := shaders.RecodePage(out, to, in, from, r.to.width); err != nil {
			return fmt.Errorf("page %d: %w", p.Page, err)
		}
		copy(p.Data, out)
	}
	return nil
}
