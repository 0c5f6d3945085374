package vk

import "fmt"

// Queries is a set of timestamps that commands write (Command.Stamped).
type Queries struct {
	d      *Device
	handle handle
	n      int
	pairs  []uint64 // ticks and availability, as the driver writes them
}

// NewQueries makes n timestamps. The error wraps ErrUnsupported when the device
// has none.
func (d *Device) NewQueries(n int) (*Queries, error) {
	if err := d.usable("vkCreateQueryPool"); err != nil {
		return nil, err
	}
	if n <= 0 {
		return nil, invalid("%d timestamps", n)
	}
	if !d.profile.Timestamps {
		return nil, unsupported("timestamps")
	}
	q := &Queries{d: d, n: n, pairs: make([]uint64, 2*n)}
	if err := d.do("vkCreateQueryPool", fmt.Sprintf("%d timestamps", n), func() (r Result) {
		q.handle, r = d.raw.createQueries(n)
		return r
	}); err != nil {
		return nil, err
	}
	d.own(q)
	return q, nil
}

// Len returns the number of timestamps.
func (q *Queries) Len() int { return q.n }

// Read fills ns with the first len(ns) timestamps, in nanoseconds after the
// first one that was written, or -1 for one that was not. It does not wait: call
// it when the work is done. Times before the first one count as 0.
func (q *Queries) Read(ns []int64) error {
	if err := q.d.usable("vkGetQueryPoolResults"); err != nil {
		return err
	}
	if q.handle == 0 {
		return ErrClosed
	}
	if len(ns) > q.n {
		return invalid("%d of %d timestamps", len(ns), q.n)
	}
	if len(ns) == 0 {
		return nil
	}
	pairs := q.pairs[:2*len(ns)]
	r := q.d.call("vkGetQueryPoolResults", func() Result { return q.d.raw.readQueries(q.handle, len(ns), pairs) })
	if r != Success && r != NotReady {
		return &Error{"vkGetQueryPoolResults", r, ""}
	}
	ticksToNanoseconds(ns, pairs, q.d.info.Limits.TimestampBits, q.d.info.Limits.TimestampPeriod)
	return nil
}

// ticksToNanoseconds converts pairs of ticks and availability. Ticks have bits
// valid bits and may wrap around between two of them.
func ticksToNanoseconds(ns []int64, pairs []uint64, bits int, period float64) {
	mask := ^uint64(0)
	if bits < 64 {
		mask = 1<<bits - 1
	}
	base, found := uint64(0), false
	for i := range ns {
		if pairs[2*i+1] == 0 {
			ns[i] = -1
			continue
		}
		if !found {
			base, found = pairs[2*i], true
		}
		diff := (pairs[2*i] - base) & mask
		if diff > mask/2 {
			diff = 0 // earlier than the first
		}
		if period == 1 {
			ns[i] = int64(diff)
		} else {
			ns[i] = int64(float64(diff) * period)
		}
	}
}

// Free frees the timestamps. No submitted work may still write them. It may be
// called twice, and on nil.
func (q *Queries) Free() {
	if q != nil && q.d.disown(q) {
		q.release()
	}
}

func (q *Queries) release() {
	q.d.raw.destroyQueries(q.handle)
	q.handle = 0
}
