package ladder

import (
	"fmt"
	"math"
)

// A Source is where a reading is from.
type Source int

// Sources.
const (
	Device Source = iota // what the device says the process may use of it
	Own                  // the limit that the engine was given
	Host                 // the memory of the machine
)

// String names the source as it stands in a sentence.
func (s Source) String() string {
	switch s {
	case Device:
		return "the device budget"
	case Own:
		return "the memory limit"
	case Host:
		return "the host's memory"
	}
	return fmt.Sprintf("memory source %d", int(s))
}

// A Reading is what a source says, in bytes. What it does not say is negative. It is known if Limit is positive and
// Used or Available is not negative; others are ignored.
type Reading struct {
	Source    Source
	Used      int64 // by whomever the limit is for
	Limit     int64 // bound of Used
	Available int64 // what can still be had; can be less than Limit - Used, where others use the memory too
}

// Headroom returns the bytes left: the least of Available and Limit - Used, of those that are known. It is never
// negative. It reports false for a reading that is not known.
func (r Reading) Headroom() (int64, bool) {
	if r.Limit <= 0 || r.Used < 0 && r.Available < 0 {
		return 0, false
	}
	left := int64(math.MaxInt64)
	if r.Used >= 0 {
		left = r.Limit - r.Used
	}
	if r.Available >= 0 {
		left = min(left, r.Available)
	}
	return max(left, 0), true
}

// String says what is left, as in "92 MiB of the device budget left (of 2.00 GiB)".
func (r Reading) String() string {
	left, ok := r.Headroom()
	if !ok {
		return r.Source.String() + " is not known"
	}
	return fmt.Sprintf("%s of %s left (of %s)", size(left), r.Source, size(r.Limit))
}

// Pressure is the readings of one moment, in any order.
type Pressure []Reading

// Tightest returns the reading with the least headroom in terms of its low mark. It reports false when none is
// known. The first of equals counts.
func (p Pressure) Tightest(m Marks) (Reading, bool) {
	var tightest Reading
	least := math.Inf(1)
	for _, r := range p {
		if left, ok := r.Headroom(); ok {
			if ratio := float64(left) / float64(m.Low(r.Limit)); ratio < least {
				tightest, least = r, ratio
			}
		}
	}
	return tightest, !math.IsInf(least, 1)
}

// Marks say when headroom is low. Zero fields stand for the defaults.
type Marks struct {
	Fraction float64 // of a limit, that is low; default 0.05
	Most     int64   // headroom that is never low, in bytes, whatever the limit; default 256 MiB
	// Step is the bytes that may be allocated between two observations (a page for each sequence, say). Less than
	// that is low in any case, but never more than a quarter of a limit. The default is 0.
	Step     int64
	Critical float64 // critical mark in terms of the low mark; default 0.25
	High     float64 // high mark, likewise; default 2.5
}

// withDefaults fills in what is zero.
func (m Marks) withDefaults() Marks {
	if m.Fraction == 0 {
		m.Fraction = 0.05
	}
	if m.Most == 0 {
		m.Most = 256 << 20
	}
	if m.Critical == 0 {
		m.Critical = 0.25
	}
	if m.High == 0 {
		m.High = 2.5
	}
	return m
}

// check reports a field that makes no sense.
func (m Marks) check() error {
	m = m.withDefaults()
	switch {
	case !(m.Fraction > 0 && m.Fraction <= 0.25):
		return fmt.Errorf("low-water fraction %g; it is above 0 and at most 0.25", m.Fraction)
	case m.Most < 0:
		return fmt.Errorf("most low-water bytes %d; they are positive", m.Most)
	case m.Step < 0:
		return fmt.Errorf("step of %d bytes; it is not negative", m.Step)
	case !(m.Critical > 0 && m.Critical < 1):
		return fmt.Errorf("critical mark at %g of the low one; it is above 0 and below 1", m.Critical)
	case !(m.High > 1 && m.High < 4):
		return fmt.Errorf("high mark at %g of the low one; it is above 1 and below 4", m.High)
	}
	return nil
}

// Low returns the low mark of a limit: headroom below it is low. A plan that leaves at least this much of a limit
// free does not start under pressure.
func (m Marks) Low(limit int64) int64 {
	m = m.withDefaults()
	low := min(int64(m.Fraction*float64(limit)), m.Most)
	return max(min(max(low, m.Step), limit/4), 1)
}

// critical returns the mark below which headroom is critical.
func (m Marks) critical(limit int64) int64 {
	return int64(m.withDefaults().Critical * float64(m.Low(limit)))
}

// high returns the mark above which there is room again.
func (m Marks) high(limit int64) int64 { return int64(m.withDefaults().High * float64(m.Low(limit))) }

// size renders bytes for people, with as many digits as they look at.
func size(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	switch {
	case unit == "GiB" || unit == "TiB":
		return fmt.Sprintf("%.2f %s", v, unit)
	case unit == "B" || v >= 10:
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
