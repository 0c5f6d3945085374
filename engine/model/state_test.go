package model

import (
	"fmt"
	"math"
	"testing"

	"github.com/calderaml/caldera/shaders"
)

// layerKinds lists which of n layers are delta nets when every fourth attends.
func layerKinds(n int) []bool {
	list := make([]bool, n)
	for i := range list {
		list[i] = i%4 != 3
	}
	return list
}

// The memory that a sequence takes, for the shapes of the released models: the table of model-qwen35.md 12.3.
func TestStateSizes(t *testing.T) {
	for _, c := range []struct {
		name                               string
		layers, kvHeads, keyHeads, valHead int
		s, conv                            float64 // MiB, as the table rounds them
		kv                                 int64   // bytes of a token in F16
	}{
		{"35B-A3B", 40, 2, 16, 32, 60.00, 2.81, 20480},
		{"122B-A10B", 48, 2, 16, 64, 144.00, 5.06, 24576},
		{"397B-A17B", 60, 2, 16, 64, 180.00, 6.33, 30720},
		{"80B-A3B", 48, 2, 16, 32, 72.00, 3.38, 24576},
		{"27B", 64, 4, 16, 48, 144.00, 5.62, 65536},
		{"9B, 4B", 32, 4, 16, 32, 48.00, 2.25, 32768},
		{"2B, 0.8B", 24, 2, 16, 16, 18.00, 1.27, 12288},
	} {
		m := Config{
			Layers: c.layers, Recurrent: layerKinds(c.layers), KVHeads: c.kvHeads, HeadDim: 256,
			KeyHeads: c.keyHeads, ValueHeads: c.valHead, StateDim: 128,
		}
		one := m.NewState(StateShape{Slots: 1, Pages: 1, KV: shaders.KVF16})
		var s, conv, kv int64
		for i, recurrent := range m.Recurrent {
			if recurrent != (one.recurrent[i] != nil) || recurrent != (one.kv[i] == nil) {
				t.Fatalf("%s: layer %d has state of the wrong kind", c.name, i)
			}
			if recurrent {
				s += one.recurrent[i].S.Size
				conv += one.recurrent[i].Tail.Size
			} else {
				if one.kv[i].Hot.K.Len != one.kv[i].Hot.V.Len {
					t.Errorf("%s: keys of %d bytes, values of %d", c.name, one.kv[i].Hot.K.Len, one.kv[i].Hot.V.Len)
				}
				kv += one.kv[i].Hot.K.Len + one.kv[i].Hot.V.Len
			}
		}
		mib := func(n int64) float64 { return float64(n) / (1 << 20) }
		if math.Abs(mib(s)-c.s) > 0.0051 || math.Abs(mib(conv)-c.conv) > 0.0051 {
			t.Errorf("%s: S %.3f MiB and convolution %.3f MiB, want %.2f and %.2f", c.name, mib(s), mib(conv), c.s, c.conv)
		}
		if kv != c.kv*shaders.PageTokens {
			t.Errorf("%s: a page of %d tokens takes %d bytes, want %d for each token", c.name, shaders.PageTokens, kv, c.kv)
		}
		if got := one.Bytes(); got != s+conv+kv {
			t.Errorf("%s: %d bytes, its buffers have %d", c.name, got, s+conv+kv)
		}
		// Slots and pages multiply; float32 pages take twice the memory of halves.
		if got, want := m.NewState(StateShape{Slots: 3, Pages: 5, KV: shaders.KVF32}).Bytes(), 3*(s+conv)+5*2*kv; got != want {
			t.Errorf("%s: three slots and five pages take %d bytes, want %d", c.name, got, want)
		}
		if got := m.NewState(StateShape{Slots: 16, Pages: 4096, KV: shaders.KVF16}).Bytes(); got != 16*(s+conv)+4096*kv {
			t.Errorf("%s: 16 sequences of a million tokens take %d bytes", c.name, got)
		}
	}
}

// Buffers are listed in the order of layers, each once, as state.
func TestStateBuffers(t *testing.T) {
	m := Config{Recurrent: []bool{true, false, false, true}, KVHeads: 1, HeadDim: 2, KeyHeads: 1, ValueHeads: 1, StateDim: 2}
	st := m.NewState(StateShape{Slots: 1, Pages: 1, KV: shaders.KVF32})
	var got []string
	for _, b := range st.Buffers() {
		if b.Kind != shaders.State {
			t.Errorf("%s is a %v buffer", b.Name, b.Kind)
		}
		got = append(got, b.Name)
	}
	want := "[blk.0.state blk.0.conv blk.1.k blk.1.v blk.2.k blk.2.v blk.3.state blk.3.conv]"
	if fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	if st.Slots != 1 || st.Pages != 1 || st.KV != shaders.KVF32 {
		t.Errorf("%+v", *st)
	}
}
