package model

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/internal/oracle"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// A file may come from anyone. What is held here: binding it never panics and costs memory by the file's
// size alone; what is accepted makes a sound graph, and if the file is complete a step of it runs.

// bindHostile opens a file and binds it, and follows up on what is accepted.
func bindHostile(t *testing.T, data []byte, open func(string, []byte) (*gguf.File, error)) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := open("fuzz", data)
	if err != nil {
		return
	}
	defer f.Close()
	m, err := New(f)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20+64*uint64(len(data)) {
		t.Fatalf("binding a file of %d bytes allocated %d", len(data), n)
	}
	if err != nil {
		if len(err.Error()) < 10 || m != nil {
			t.Fatalf("%v, model %v", err, m)
		}
		return
	}
	if m.Layers < 1 || m.Layers > maxLayers || m.Layers != len(m.layers) || m.Layers != len(m.Recurrent) || m.Vocab < 1 {
		t.Fatalf("accepted: %+v", m.Config)
	}
	st := m.NewState(StateShape{Slots: 1, Pages: 1, KV: shaders.KVF32})
	g, out := m.Graph(shaders.StepShape{Rows: 2, Seqs: 1, Outs: 2, Pages: 1}, st, GraphOptions{Logits: true})
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	if len(f.Missing()) > 0 {
		return
	}
	// A device may refuse what the file asks for; the twins take it.
	p := &shaders.Profile{Subgroup: 4, MaxBinding: 128 << 20, MaxGroups: [3]uint32{65535, 65535, 65535}}
	for _, n := range g.Nodes {
		n.Op.Lower(p)
	}
	size := int64(0)
	for _, b := range g.Buffers() {
		size += b.Size
	}
	if size > 8<<20 || g.Cost().Flops > 1<<26 {
		return
	}
	mem, err := weights.Map(m.Weights)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := scheduler.NewReference(g, mem)
	if err != nil {
		t.Fatal(err)
	}
	run := shaders.Run{Tokens: []int32{0, int32(m.Vocab - 1)}, Pages: []int32{0}, Fresh: true, Outs: []int{0, 1}}
	if _, err := ref.Run([]shaders.Run{run}, NewRope(m.Rope)); err != nil {
		t.Fatal(err)
	}
	ref.Read(out.Logits.View, make([]byte, out.Logits.Len))
}

// headOf is the beginning of a model file: its header, and the bytes of its smallest tensors. A reader of
// headers takes it, and what [New] looks at is there.
func headOf(d *draft) []byte {
	c := d.clone()
	slices.SortStableFunc(c.tensors, func(a, b *tensor) int { return len(a.data) - len(b.data) })
	f := c.open()
	return c.bytes()[:f.DataStart(0)+4096]
}

// tiny is a whole model of two layers in about ten kilobytes, its keys and tensors in the oracle files'
// order.
func tiny(t testing.TB, file string) *draft {
	d := load(t, file)
	d.set("block_count", uint32(2))
	d.set("full_attention_interval", uint32(2))
	d.set("embedding_length", uint32(32))
	d.set("attention.head_count", uint32(2))
	d.set("attention.key_length", uint32(32))
	d.set("attention.value_length", uint32(32))
	d.set("rope.dimension_count", uint32(8))
	d.set("ssm.state_size", uint32(32))
	d.set("ssm.group_count", uint32(1))
	d.set("ssm.time_step_rank", uint32(2))
	d.set("ssm.inner_size", uint32(64))
	if d.arch == "qwen35" {
		d.set("feed_forward_length", uint32(32))
	} else {
		d.set("expert_count", uint32(4))
	}
	first, last := "blk.0.", fmt.Sprintf("blk.%d.", len(d.blocks("attn_norm.weight"))-1)
	old := d.clone()
	d.tensors = nil
	for _, x := range old.tensors {
		name, kind := x.name, x.name
		if rest, ok := strings.CutPrefix(name, first); ok {
			kind = rest
		} else if rest, ok := strings.CutPrefix(name, last); ok {
			name, kind = "blk.1."+rest, rest
		} else if strings.HasPrefix(name, "blk.") {
			continue
		}
		dims, ok := map[string][]uint64{
			"token_embd.weight": {32, 8}, "output.weight": {32, 8}, "output_norm.weight": {32},
			"attn_norm.weight": {32}, "post_attention_norm.weight": {32},
			"attn_qkv.weight": {32, 128}, "attn_gate.weight": {32, 64}, "ssm_in.weight": {32, 192}, "ssm_conv1d.weight": {4, 128},
			"ssm_dt.bias": {2}, "ssm_a": {2}, "ssm_beta.weight": {32, 2}, "ssm_alpha.weight": {32, 2}, "ssm_ba.weight": {32, 4},
			"ssm_norm.weight": {32}, "ssm_out.weight": {64, 32},
			"attn_q.weight": {32, 128}, "attn_k.weight": {32, 32}, "attn_v.weight": {32, 32}, "attn_output.weight": {64, 32},
			"attn_q_norm.weight": {32}, "attn_k_norm.weight": {32},
			"ffn_gate_inp.weight": {32, 4}, "ffn_gate_exps.weight": {32, 32, 4}, "ffn_up_exps.weight": {32, 32, 4}, "ffn_down_exps.weight": {32, 32, 4},
			"ffn_gate_inp_shexp.weight": {32}, "ffn_gate_shexp.weight": {32, 32}, "ffn_up_shexp.weight": {32, 32}, "ffn_down_shexp.weight": {32, 32},
			"ffn_gate.weight": {32, 32}, "ffn_up.weight": {32, 32}, "ffn_down.weight": {32, 32},
		}[kind]
		if !ok {
			t.Fatalf("no small shape for tensor %s", x.name)
		}
		typ := quant.F32
		if len(dims) > 1 && dims[0]%32 == 0 && dims[1] > 8 {
			typ = quant.Q4_0
		}
		n := 1
		for _, e := range dims {
			n *= int(e)
		}
		f := old.floats(x.name)
		for len(f) < n {
			f = append(f, f...)
		}
		d.add(name, typ, nil, dims...)
		d.encode(name, typ, f[:n])
	}
	return d
}

// FuzzConfig binds any bytes as a whole file and as a header. The inputs are large for fuzzing: with the
// default -fuzzminimizetime it would do little else than make them smaller.
func FuzzConfig(f *testing.F) {
	for _, name := range append(slices.Clone(files), "qwen3next-q8_0-ssm_in") {
		f.Add(headOf(load(f, name)))
		f.Add(tiny(f, name).bytes())
	}
	neg, _ := filepath.Glob(filepath.Join(oracle.Root(), "gguf", "testdata", "gguf-neg", "*.gguf"))
	if len(neg) == 0 {
		f.Fatal("no damaged files in gguf/testdata/gguf-neg")
	}
	for _, path := range neg {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	models, _ := filepath.Glob(filepath.Join(oracle.Dir(), "*", "model.gguf"))
	for _, path := range models {
		m, err := gguf.OpenHeader(path)
		if err != nil {
			f.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:min(m.DataStart(0)+4096, int64(len(data)))])
		m.Close()
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		bindHostile(t, data, gguf.OpenBytes)
		bindHostile(t, data, gguf.OpenHeaderBytes)
	})
}

// fuzzNumbers are sizes at which something changes.
var fuzzNumbers = []uint64{
	0, 1, 2, 3, 4, 5, 6, 8, 16, 24, 31, 32, 33, 48, 64, 96, 128, 255, 256, 257, 512, 513, 1024, 4096, 4097, 16384, 65535, 65536,
	1 << 20, 1 << 24, 1<<24 + 1, 1 << 27, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<63 - 1, 1 << 63, 1<<64 - 1,
}

// fuzzKeys are keys that a sound file need not have.
var fuzzKeys = []string{
	"nextn_predict_layers", "attention.recurrent_layers", "attention.scale", "expert_weights_scale", "ssm.v_head_reordered",
	"rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "feed_forward_length", "expert_count",
}

// fuzzTensors are tensors of layouts that the file at hand does not have.
var fuzzTensors = []string{
	"ssm_in.weight", "ssm_ba.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_dt", "ffn_gate_up_exps.weight",
	"attn_q.weight", "attn_qkv.weight", "attn_gate.weight", "ssm_a", "attn_norm.weight", "attn_norm.scale", "nextn.eh_proj.weight",
}

// edit changes the draft as a script says, four bytes a change: what, where, and two arguments. Changes that
// make no file are passed over.
func (d *draft) edit(script []byte) {
	for ; len(script) >= 4; script = script[4:] {
		where, a, b := int(script[1]), int(script[2]), int(script[3])
		n := fuzzNumbers[a%len(fuzzNumbers)]
		keys := append(slices.Clone(d.keys), fuzzKeys...)
		key := d.key(keys[where%len(keys)])
		if len(d.tensors) == 0 || len(d.keys) == 0 {
			return
		}
		x := d.tensors[where%len(d.tensors)]
		y := *x
		switch script[0] % 8 {
		case 0: // a number
			d.set(key, []any{
				uint32(n), int32(n), n, int64(n), uint8(n), float32(n), float64(n) / 1000, -float32(n), n%2 == 0, fmt.Sprint(n),
			}[b%10])
		case 1: // a list
			count := b % 9
			switch list := slices.Repeat([]uint64{0, n}, 5)[:count]; {
			case a%3 == 0:
				bools := make([]bool, count)
				for i := range bools {
					bools[i] = a>>i&1 != 0
				}
				d.set(key, bools)
			default:
				d.set(key, list)
			}
		case 2:
			if _, ok := d.values[key]; ok {
				d.unset(key)
			}
		case 3: // a dimension
			y.dims = slices.Clone(x.dims)
			if i := b % 4; i < len(y.dims) {
				y.dims[i] = n
			} else {
				y.dims = append(y.dims, n)
			}
		case 4:
			y.typ = quant.Types()[a%len(quant.Types())]
		case 5:
			d.tensors = slices.Delete(slices.Clone(d.tensors), where%len(d.tensors), where%len(d.tensors)+1)
			continue
		case 6: // a name
			y.name = fmt.Sprintf("blk.%d.%s", b%3, fuzzTensors[a%len(fuzzTensors)])
		case 7: // a text
			d.set(key, []string{"yarn", "none", "linear", "qwen35", "qwen35moe", "qwen3next", "model", "adapter", ""}[a%9])
		}
		if len(y.dims) > gguf.MaxDims || (y.name != x.name && d.has(y.name)) {
			continue
		}
		size, room := uint64(1), 1.0
		for _, e := range y.dims {
			room *= float64(max(e, 1)) // what is empty must still be countable for the writer
		}
		if room > 1<<60 {
			continue
		}
		for _, e := range y.dims {
			if size *= min(e, 1<<20); size > 1<<20 {
				break
			}
		}
		row, err := y.typ.RowBytes(max(y.dims[0], 1))
		if size > 1<<20 || err != nil || row > 1<<20 {
			continue
		}
		bytes := row
		for _, e := range y.dims[1:] {
			bytes *= e
		}
		if y.dims[0] == 0 {
			bytes = 0
		}
		if bytes > 1<<20 {
			continue
		}
		for uint64(len(y.data)) < bytes {
			y.data = append(slices.Clone(y.data), make([]byte, bytes-uint64(len(y.data)))...)
		}
		y.data = y.data[:bytes]
		*x = y
	}
}

// FuzzEdits binds and runs small sound files with changes in their tables: most of what it makes is a file
// that a reader accepts, unlike most of what FuzzConfig makes.
func FuzzEdits(f *testing.F) {
	var drafts []*draft
	for _, name := range append(slices.Clone(files), "qwen3next-q8_0-ssm_in") {
		drafts = append(drafts, tiny(f, name))
	}
	for i := range drafts {
		f.Add(uint8(i), []byte{})
		for op := range byte(8) {
			script := binary.LittleEndian.AppendUint32(nil, uint32(op)|7<<8|12<<16)
			f.Add(uint8(i), append(script, op, 3, 2, 1, op, 30, 9, 0))
		}
	}
	f.Fuzz(func(t *testing.T, file uint8, script []byte) {
		if len(script) > 64 {
			return
		}
		d := drafts[int(file)%len(drafts)].clone()
		d.t = t
		d.edit(script)
		bindHostile(t, d.bytes(), gguf.OpenBytes)
	})
}

// The small models that fuzzing begins with are sound: their steps run, and their numbers are finite.
func TestTiny(t *testing.T) {
	for _, name := range append(slices.Clone(files), "qwen3next-q8_0-ssm_in") {
		d := tiny(t, name)
		m := d.model()
		if n := len(d.bytes()); n > 48<<10 || len(m.Unused) > 0 || len(m.Warnings) > 0 {
			t.Errorf("%s: %d bytes, unused %q, warnings %q", name, n, m.Unused, m.Warnings)
		}
		got := logits(t, m, []int32{1, 7, 3}, 3, nil)
		if x := distance(got, got); x != 0 {
			t.Errorf("%s: logits %v", name, got)
		}
		if _, err := New(mustOpenHeader(t, headOf(load(t, name)))); err != nil {
			t.Errorf("%s by its header: %v", name, err)
		}
	}
}

func mustOpenHeader(t *testing.T, data []byte) *gguf.File {
	f, err := gguf.OpenHeaderBytes("head", data)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
