package ladder

import (
	"math"
	"testing"
)

func TestHeadroom(t *testing.T) {
	tests := []struct {
		r    Reading
		want int64 // -1 unknown
		says string
	}{
		{Reading{Device, 100 * mib, 256 * mib, -1}, 156 * mib, "156 MiB of the device budget left (of 256 MiB)"},
		{Reading{Own, 100 * mib, 256 * mib, 200 * mib}, 156 * mib, "156 MiB of the memory limit left (of 256 MiB)"},
		{Reading{Host, 100 * mib, 16 * gib, 9 * mib}, 9 * mib, "9.0 MiB of the host's memory left (of 16.00 GiB)"},
		{Reading{Host, -1, 16 * gib, 3 * gib}, 3 * gib, "3.00 GiB of the host's memory left (of 16.00 GiB)"},
		{Reading{Own, 300 * mib, 256 * mib, -1}, 0, "0 B of the memory limit left (of 256 MiB)"},
		{Reading{Own, 0, 1, 0}, 0, "0 B of the memory limit left (of 1 B)"},
		{Reading{Device, 1023, 1 << 41, 2047}, 2047, "2.0 KiB of the device budget left (of 2.00 TiB)"},
		{Reading{}, -1, "the device budget is not known"},
		{Reading{Host, -1, gib, -1}, -1, "the host's memory is not known"},
		{Reading{Host, 5, -1, 5}, -1, "the host's memory is not known"},
	}
	for _, test := range tests {
		left, ok := test.r.Headroom()
		if ok != (test.want >= 0) || ok && left != test.want {
			t.Errorf("%+v: %d %v, want %d", test.r, left, ok, test.want)
		}
		if got := test.r.String(); got != test.says {
			t.Errorf("%q, want %q", got, test.says)
		}
	}
}

func TestTightest(t *testing.T) {
	dev := Reading{Device, -1, 80 * gib, 201 * mib} // 0.785 of its low mark
	own := Reading{Own, 246 * mib, 256 * mib, -1}   // 10 of 12.8 MiB: 0.781
	host := Reading{Host, -1, 16 * gib, 3 * gib}
	for _, test := range []struct {
		p    Pressure
		want Source
	}{
		{Pressure{host, own, dev}, Own},
		{Pressure{host, dev}, Device},
		{Pressure{{Host, -1, gib, mib}, {Own, -1, gib, mib}}, Host}, // the first of equals
		{Pressure{{Own, 245 * mib, 256 * mib, -1}, dev, host}, Device},
		{Pressure{{}, host, {Device, -1, -1, -1}}, Host},
	} {
		if r, ok := test.p.Tightest(Marks{}); !ok || r.Source != test.want {
			t.Errorf("%+v: %+v, want %v", test.p, r, test.want)
		}
	}
	if _, ok := (Pressure{{}, {Device, -1, -1, -1}}).Tightest(Marks{}); ok {
		t.Error("tightest of nothing known")
	}
}

func TestMarks(t *testing.T) {
	for _, test := range []struct {
		m                   Marks
		limit               int64
		critical, low, high int64
	}{
		{Marks{}, 256 * mib, 3355443, 13421772, 33554430},
		{Marks{}, 2 * gib, 26843545, 107374182, 268435455},
		{Marks{}, 80 * gib, 64 * mib, 256 * mib, 640 * mib},
		{Marks{}, math.MaxInt64, 64 * mib, 256 * mib, 640 * mib},
		{Marks{}, 1, 0, 1, 2},
		{Marks{Step: 40 * mib}, 256 * mib, 10 * mib, 40 * mib, 100 * mib},
		{Marks{Step: 400 * mib}, 256 * mib, 16 * mib, 64 * mib, 160 * mib},
		{Marks{Fraction: 0.1, Most: gib, Critical: 0.5, High: 2}, 100 * gib, gib / 2, gib, 2 * gib},
	} {
		got := [3]int64{test.m.critical(test.limit), test.m.Low(test.limit), test.m.high(test.limit)}
		if want := [3]int64{test.critical, test.low, test.high}; got != want {
			t.Errorf("%+v of %d: %d, want %d", test.m, test.limit, got, want)
		}
	}
}
