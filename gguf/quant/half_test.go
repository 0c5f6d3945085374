package quant

import (
	"math"
	"math/rand/v2"
	"testing"
)

// halfValue is what a half means, computed in float64 from its fields.
func halfValue(h uint16) float64 {
	sign := 1 - 2*float64(h>>15)
	e, m := int(h>>10&31), float64(h&0x3ff)
	switch {
	case e == 31 && m != 0:
		return math.NaN()
	case e == 31:
		return sign * math.Inf(1)
	case e == 0:
		return math.Copysign(math.Ldexp(m, -24), sign)
	}
	return sign * math.Ldexp(1024+m, e-25)
}

func TestHalfExhaustive(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		got, want := float64(F16ToF32(h)), halfValue(h)
		if math.IsNaN(want) {
			if !math.IsNaN(got) {
				t.Fatalf("%#04x: got %g, want NaN", h, got)
			}
			if back := F32ToF16(F16ToF32(h)); back != h|0x0200 {
				t.Fatalf("NaN %#04x came back as %#04x", h, back)
			}
			continue
		}
		if math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("%#04x: got %g, want %g", h, got, want)
		}
		if back := F32ToF16(float32(got)); back != h {
			t.Fatalf("%#04x came back as %#04x", h, back)
		}
	}
}

// TestHalfRounding takes every pair of neighbouring halves and the floats at
// and beside their midpoint.
func TestHalfRounding(t *testing.T) {
	check := func(x float32, want uint16) {
		t.Helper()
		if got := F32ToF16(x); got != want {
			t.Fatalf("%g: got %#04x, want %#04x", x, got, want)
		}
		if got := F32ToF16(-x); got != want|0x8000 {
			t.Fatalf("%g: got %#04x, want %#04x", -x, got, want|0x8000)
		}
	}
	for h := uint16(0); h < 0x7c00; h++ {
		lo, hi := halfValue(h), halfValue(h+1)
		if h == 0x7bff {
			hi = 65536 // where infinity begins to round from
		}
		mid := float32((lo + hi) / 2) // exact: one bit more than a half
		even := h + h&1
		check(mid, even)
		check(math.Nextafter32(mid, 0), h)
		check(math.Nextafter32(mid, math.MaxFloat32), h+1)
	}
	check(math.MaxFloat32, 0x7c00)
	check(float32(math.Inf(1)), 0x7c00)
	check(math.SmallestNonzeroFloat32, 0)
}

func TestBF16(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := BF16ToF32(h)
		want := h
		if f != f {
			want |= 0x40
		}
		if got := F32ToBF16(f); got != want {
			t.Fatalf("%#04x came back as %#04x", h, got)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100000 {
		b := rng.Uint32()
		if b&0x7f800000 == 0x7f800000 {
			continue
		}
		down, rest := b>>16, b&0xffff
		want := down
		if rest > 0x8000 || rest == 0x8000 && down&1 == 1 {
			want++
		}
		if got := F32ToBF16(math.Float32frombits(b)); got != uint16(want) {
			t.Fatalf("%#08x: got %#04x, want %#04x", b, got, want)
		}
	}
}
