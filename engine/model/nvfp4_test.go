package model

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
)

// nvfp4 turns every matrix whose rows are whole blocks into random NVFP4 blocks with a factor, and returns the
// model that has the same values in F32. Experts have factors of their own if each is set, else one for all.
func nvfp4(d *draft, each bool) (packed, plain *draft) {
	packed, plain = d.clone(), d.clone()
	r := rand.New(rand.NewPCG(4, 0))
	for _, x := range slices.Clone(d.tensors) {
		router := strings.Contains(x.name, "ffn_gate_inp.")
		if len(x.dims) < 2 || x.dims[0]%64 != 0 || router || strings.Contains(x.name, "conv1d") {
			continue
		}
		n := uint64(1)
		for _, e := range x.dims {
			n *= e
		}
		size, err := quant.NVFP4.RowBytes(n)
		if err != nil {
			d.t.Fatal(err)
		}
		p, f := packed.tensor(x.name), plain.tensor(x.name)
		p.typ, p.data = quant.NVFP4, make([]byte, size)
		for i := range p.data {
			p.data[i] = byte(r.Uint32())
			if i%36 < 4 {
				p.data[i] = byte(0x30 + r.UintN(16)) // 0.5 to 2
			}
		}
		experts := uint64(1)
		if len(x.dims) > 2 && each {
			experts = x.dims[2]
		}
		factors := make([]float32, experts)
		var data []byte
		for i := range factors {
			factors[i] = 0.02 * (1 + r.Float32())
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(factors[i]))
		}
		base := strings.TrimSuffix(x.name, ".weight")
		packed.add(base+".scale", quant.F32, data, experts)
		packed.add(base+".input_scale", quant.F32, data, experts)
		v := packed.floats(x.name)
		for i := range v {
			v[i] *= factors[uint64(i)/(n/experts)]
		}
		f.typ = quant.F32
		plain.encode(x.name, quant.F32, v)
	}
	return packed, plain
}

// A file of NVFP4 blocks with their factors computes what the product of both does, in every layout.
func TestNVFP4(t *testing.T) {
	for _, c := range []struct {
		name, file string
		each       bool
		edit       func(*draft)
	}{
		{"a factor each", "qwen35moe-f32", true, nil},
		{"a factor for all experts", "qwen35moe-f32", false, nil},
		{"gate and up fused", "qwen35moe-f32", false, fuseExperts},
		{"dense", "qwen35-f32", true, nil},
		{"fused beta and alpha", "qwen3next-f32", true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := load(t, c.file)
			if c.edit != nil {
				c.edit(d)
			}
			packed, plain := nvfp4(d, c.each)
			m := packed.model()
			for _, name := range m.Unused {
				if strings.Contains(name, "scale") {
					t.Errorf("%s is not used", name)
				}
			}
			got, want := packed.logits(), plain.logits()
			scale := 0.0
			for i := range want {
				scale = max(scale, math.Abs(float64(want[i])))
			}
			for i := range want {
				if diff := math.Abs(float64(got[i]) - float64(want[i])); !(diff <= 2e-5*scale) {
					t.Fatalf("logit %d is %g, want %g", i, got[i], want[i])
				}
			}
		})
	}
}

// A factor that is no number, or of another count, is refused; a missing one is 1.
func TestNVFP4Factors(t *testing.T) {
	packed, _ := nvfp4(load(t, "qwen35moe-f32"), true)
	name := "blk.0.ffn_gate_exps.scale" // the down projection's rows are not whole blocks here
	all := packed.tensor(name).data

	d := packed.clone()
	d.tensor(name).data, d.tensor(name).dims = all[:8], []uint64{2}
	if _, err := New(d.open()); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("two factors for all experts: %v", err)
	}
	d = packed.clone()
	bad := slices.Clone(all)
	binary.LittleEndian.PutUint32(bad[4:], math.Float32bits(float32(math.Inf(1))))
	d.tensor(name).data = bad
	m := d.model()
	var err error
	for _, it := range m.Weights {
		if _, e := it.Bytes(); e != nil {
			err = e
		}
	}
	if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "factor 1") {
		t.Errorf("an infinite factor: %v", err)
	}
	d, one := packed.clone(), packed.clone()
	d.remove(name)
	ones := make([]byte, len(all))
	for i := 0; i < len(ones); i += 4 {
		binary.LittleEndian.PutUint32(ones[i:], math.Float32bits(1))
	}
	one.tensor(name).data = ones
	if !slices.Equal(d.logits(), one.logits()) {
		t.Error("a missing factor is not 1")
	}
}
