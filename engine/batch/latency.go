package batch

import "math/bits"

const (
	// buckets is how many powers of two of rows are told apart; more rows than 2^(buckets-1) share the last.
	buckets = 24
	// settle is how many measurements a bucket needs before its estimate is trusted.
	settle = 4
	// weight is that of a new measurement in a settled bucket.
	weight = 1.0 / 8
	// stray is the factor from the prediction, up or down, beyond which a measurement counts as an outlier.
	stray = 1.5
	// strays is how many outliers in a row, on the same side, are a change of the device's speed.
	strays = 3
	// spreads is how many mean absolute deviations a prediction leaves as a margin. For normal noise that deviation is
	// 0.8 sigma: 3.5 of them pass the 99th percentile (2.3 sigma) with something left for errors of the estimate.
	spreads = 3.5
	// forget is how many steps a point may bar without having been measured again.
	forget = 256
)

// A point is what is known of steps in one bucket: smoothed rows and seconds.
type point struct {
	rows, secs float64
	n          int // measurements, 0 for an empty bucket; counted up to settle
	barred     int // steps that were kept smaller because of this point since it was measured
}

// latency predicts the duration of a step from its rows. Bucket k holds the steps with 2^(k-1) < rows <= 2^k.
//
// It is made for what measured times are like: noise around a mean, now and then a step that something else has
// delayed, and lasting changes of speed. Each bucket is smoothed exponentially with outliers cut; several in a
// row are believed, and then move every bucket, since what changes a device's speed changes it for all of them. A
// bucket that is too slow for the bound is not measured any more; so that a wrong estimate does not bar it for
// ever, it is forgotten in the end and tried again.
type latency struct {
	at     [buckets]point
	spread float64 // mean absolute deviation, relative to the prediction
	run    int     // outliers in a row, above the prediction if positive, below it if negative
}

// bucketOf is the bucket of a number of rows, at least 1.
func bucketOf(rows int) int { return min(bits.Len(uint(rows-1)), buckets-1) }

// observe takes in that a step of so many rows took so many seconds, both positive.
func (l *latency) observe(rows int, secs float64) {
	p := &l.at[bucketOf(rows)]
	p.barred = 0
	if p.n == 0 {
		*p = point{rows: float64(rows), secs: secs, n: 1}
		if l.spread == 0 {
			l.spread = 0.1
		}
		return
	}
	// What the point leads one to expect: its own time, or that carried to these rows along the slope of the model.
	// Costs may rise in stairs, so anything between the two is as good.
	there, _ := l.predict(float64(rows))
	here, _ := l.predict(p.rows)
	want := p.secs * there / here
	low, high := min(want, p.secs), max(want, p.secs)

	if p.n < settle {
		// A first step may be slow for reasons of its own (a shader compiled, pages touched), but none is too fast.
		p.n++
		switch {
		case secs < low:
			p.rows, p.secs = float64(rows), secs
		case secs < high*stray:
			p.move(float64(rows), secs, 1/float64(p.n))
		}
		return
	}

	switch {
	case secs > high*stray:
		l.run = max(l.run, 0) + 1
	case secs < low/stray:
		l.run = min(l.run, 0) - 1
	default:
		l.run = 0
	}
	if l.run >= strays || l.run <= -strays {
		for i := range l.at {
			l.at[i].secs *= secs / want
		}
		p.rows, p.secs = float64(rows), secs
		l.run = 0
		return
	}
	p.move(float64(rows), min(max(secs, low/stray), high*stray), weight)
	ratio := min(max(secs/want, 1/stray), stray)
	l.spread += (max(ratio-1, 1-ratio) - l.spread) / 32
}

// move takes a measurement in with a weight.
func (p *point) move(rows, secs, w float64) {
	p.rows += w * (rows - p.rows)
	p.secs += w * (secs - p.secs)
}

// predict returns the expected seconds of a step, never less for more rows: straight lines through the points, from
// nothing at no rows, and in proportion beyond the last. It reports false when nothing was measured.
func (l *latency) predict(rows float64) (float64, bool) {
	var x, t float64
	for i := range l.at {
		p := &l.at[i]
		if p.n == 0 {
			continue
		}
		next := max(p.secs, t)
		if rows <= p.rows {
			return t + (next-t)*(rows-x)/(p.rows-x), true
		}
		x, t = p.rows, next
	}
	if x == 0 {
		return 0, false
	}
	return t * rows / x, true
}

// limit returns the most rows from lo to hi, lo < hi, whose step is expected to stay within bound seconds with the
// margin for noise, or lo when not even that does or nothing is known. It goes at most to double the rows measured,
// or to a trickle more than lo.
func (l *latency) limit(bound float64, lo, hi int) int {
	bound /= 1 + spreads*l.spread
	var x, t, reach float64
	var bar *point // the first point beyond the bound
	for i := range l.at {
		p := &l.at[i]
		if p.n == 0 {
			continue
		}
		next := max(p.secs, t)
		if bar == nil && next > bound {
			reach, bar = x+(p.rows-x)*(bound-t)/(next-t), p
		}
		x, t = p.rows, next
	}
	if x == 0 {
		return lo
	}
	if bar == nil {
		reach = x * bound / t
	}
	most := min(hi, max(int(2*x), lo+trickle))
	if reach >= float64(most) {
		return most
	}
	n := max(int(reach+1e-9), lo)
	// A point that is wrong keeps steps too small for it to be measured again, so it is forgotten in the end.
	if bar != nil {
		if bar.barred++; bar.barred >= forget {
			*bar = point{}
		}
	}
	// Plans are made for powers of two; a few rows beyond one are not worth the next larger plan.
	if p := 1 << bits.Len(uint(n)) >> 1; n-p <= (n-lo)/8 {
		n = p
	}
	return n
}
