package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/state"
)

// A snapshot takes the bytes of the state that its tokens have, and the next one those of what has changed since: the
// recurrent slot and the pages that were not full.
func TestSnapshotBytes(t *testing.T) {
	ctx := context.Background()
	for _, r := range []rig{reference(), oneDevice(t)} {
		cfg := small.config(t)
		e := r.open(t, cfg)
		s := session(t, e)
		ids := randomTokens(rand.New(rand.NewPCG(3, 3)), 700, mixVocab)
		m := e.Memory()
		token, slot := m.KV.PageBytes/256, m.State.SlotBytes
		var before *state.Snapshot
		for _, n := range []int{1, 100, 256, 300, 513, 700} {
			if err := s.Prefill(ctx, ids[s.Len():n]); err != nil {
				t.Fatal(err)
			}
			snap, err := s.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			if want := slot + int64(n)*(token+4); snap.Bytes() != want {
				t.Errorf("%s: a snapshot of %d tokens has %d bytes, its state %d", r.name, n, snap.Bytes(), want)
			}
			if before != nil {
				for i := range before.Pos() / 256 {
					if snap.Pages()[i] != before.Pages()[i] {
						t.Errorf("%s: the snapshot of %d tokens has a copy of page %d, which was full at %d", r.name, n, i, before.Pos())
					}
				}
			}
			before = snap
		}
	}
}

// A snapshot is refused by an engine whose state it is not, and the session is empty then.
func TestSnapshotRefused(t *testing.T) {
	ctx := context.Background()
	cfg := small.config(t)
	r := reference()
	e := r.open(t, cfg)
	s := session(t, e)
	if err := s.Prefill(ctx, randomTokens(rand.New(rand.NewPCG(3, 4)), 300, mixVocab)); err != nil {
		t.Fatal(err)
	}
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name   string
		change func(*engine.Config)
		want   error
	}{
		{"another model", func(c *engine.Config) { c.Data = heavy.config(t).Data }, state.ErrOtherModel},
		{"another cache", func(c *engine.Config) { c.KV = "f32" }, state.ErrOtherFormat},
		{"another window", func(c *engine.Config) { c.KV, c.KVWindow = "q8_0", 64 }, state.ErrOtherFormat},
		{"a shorter context", func(c *engine.Config) { c.Context = 200 }, nil},
	} {
		cfg := cfg
		x.change(&cfg)
		other := session(t, r.open(t, cfg))
		if err := other.Prefill(ctx, []int32{1, 2, 3}); err != nil {
			t.Fatal(err)
		}
		err := other.Restore(snap)
		if err == nil || x.want != nil && !errors.Is(err, x.want) || other.Len() != 0 {
			t.Errorf("%s: %v, and the session has %d tokens", x.name, err, other.Len())
		}
		if err := other.Prefill(ctx, []int32{1, 2, 3}); err != nil {
			t.Errorf("%s: feeding it after that: %v", x.name, err)
		}
	}
}

// BenchmarkSnapshot compares taking a snapshot and going on from it with copying as many bytes.
func BenchmarkSnapshot(b *testing.B) {
	ctx := context.Background()
	model := heavy
	model.valHeads, model.stateDim = 32, 128 // 2 MiB of recurrent state, as a layer of a large model has
	for _, r := range []rig{reference(), oneDevice(b)} {
		e := r.open(b, model.config(b))
		s := session(b, e)
		if err := s.Prefill(ctx, randomTokens(rand.New(rand.NewPCG(3, 5)), 1000, mixVocab)); err != nil {
			b.Fatal(err)
		}
		snap, err := s.Snapshot()
		if err != nil {
			b.Fatal(err)
		}
		b.Run(r.name+"/capture", func(b *testing.B) {
			b.SetBytes(snap.Bytes())
			for b.Loop() {
				if _, err := s.Snapshot(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(r.name+"/restore", func(b *testing.B) {
			b.SetBytes(snap.Bytes())
			for b.Loop() {
				if err := s.Restore(snap); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("copy", func(b *testing.B) {
		src := make([]byte, 2<<20)
		b.SetBytes(int64(len(src)))
		for b.Loop() {
			dst := make([]byte, len(src))
			copy(dst, src)
		}
	})
}
