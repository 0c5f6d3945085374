package shaders

import (
	"strings"
	"testing"
)

func TestKVFormat(t *testing.T) {
	for _, c := range []struct {
		f    KVFormat
		name string
		page int64 // bytes of 256 tokens of 512 elements
		cold bool
	}{
		{KVF32, "f32", 524288, false},
		{KVF16, "f16", 262144, false},
		{KVQ8_0, "q8_0", 139264, true}, // 34 bytes for 32
		{KVQ4_0, "q4_0", 73728, true},  // 18 bytes for 32
	} {
		if c.f.String() != c.name || c.f.Cold() != c.cold || c.f.PageBytes(512) != c.page {
			t.Errorf("%v, cold %t, a page of %d bytes; want %+v", c.f, c.f.Cold(), c.f.PageBytes(512), c)
		}
		if f, err := ParseKVFormat(c.name); err != nil || f != c.f {
			t.Errorf("%s: %v, %v", c.name, f, err)
		}
		if err := c.f.CheckWidth(48); (err != nil) != c.cold {
			t.Errorf("%s with 48 elements: %v", c.name, err)
		}
		if err := c.f.CheckWidth(96); err != nil {
			t.Errorf("%s with 96 elements: %v", c.name, err)
		}
	}
	for _, name := range []string{"", "F16", "q5_0", "q8"} {
		if _, err := ParseKVFormat(name); err == nil || !strings.Contains(err.Error(), "q4_0") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if got := KVFormat(9).String(); got != "KVFormat(9)" {
		t.Errorf("unknown format is %s", got)
	}
}

// The twin refuses what no plan does: a page table that names a cold page where there is no cold pool, or to
// write to.
func TestColdPageTwins(t *testing.T) {
	shape := StepShape{Rows: 1, Seqs: 1, Pages: 2, Cold: true}
	step := shape.NewBuffer()
	mem := HostMemory{}
	run := Run{Pos: 256, Tokens: []int32{1}, Pages: []int32{0 | PageCold, 0}}
	if err := shape.Write(U32(mem, step.View()), []Run{run}, nil); err != nil {
		t.Fatal(err)
	}
	pool := func() View { return (&Buffer{Name: "pool", Kind: State, Size: KVF32.PageBytes(2)}).View() }
	y, carry := NewAttentionOut("y", 1, 1, 2)
	a := &Attention{Step: step.View(), Q: NewMat("q", Scratch, 1, 2), P: NewMat("p", Scratch, 1, 8), Hot: KVPool{K: pool(), V: pool()},
		Y: y, Carry: carry, Rows: 1, Heads: 1, KVHeads: 1, Dim: 2, Scale: 1, MaxTokens: 512}
	if err := a.Twin(mem); err == nil || !strings.Contains(err.Error(), "sequence 0, position 0") {
		t.Errorf("attention: %v", err)
	}
	w := U32(mem, step.View())
	w[w[stepPage]+1] |= 1 << 31
	norm := NewMat("norm", Scratch, 1, 2).View
	o := &QKRope{Step: step.View(), P: a.P, QNorm: norm, KNorm: norm, Q: a.Q, KV: a.Hot, Rows: 1, Heads: 1, KVHeads: 1, Dim: 2}
	if err := o.Twin(mem); err == nil || !strings.Contains(err.Error(), "cold") {
		t.Errorf("qk_rope: %v", err)
	}
}
