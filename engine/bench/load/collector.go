package load

import (
	"sync"
	"time"
)

// maxFaults is how many faults are kept; all are counted.
const maxFaults = 10

// A collector counts what became of requests. Its methods may be called at the same time.
type collector struct {
	mu    sync.Mutex
	start time.Time
	took  time.Duration // of the run, when it is over
	ended time.Time     // of the last request

	begun, running int
	counts         [outcomes]int
	cuts           [cutPoints]int
	faults         []Fault
	faultKinds     map[string]int

	input, cached, output, longs int
	cutDeltas                    int // of streams that were cut
	counted                      int // requests whose tokens are deltas
	noInput                      int // requests whose prompt's tokens are unknown
	noRetry                      int // refusals without Retry-After
	good                         int
	unsent                       int

	ttft, longTTFT, tpot, itl, itlLong, e2el, lag samples // ms
	goals                                         []Goal
}

func newCollector(goals []Goal) *collector { return &collector{goals: goals, start: time.Now()} }

func (c *collector) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun++
	c.running++
}

// addGap adds the time between two deltas; whileLong is that a long prompt of another request was being read.
func (c *collector) addGap(d time.Duration, whileLong bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.itl.add(ms(d))
	if whileLong {
		c.itlLong.add(ms(d))
	}
}

// end adds a request that has ended.
func (c *collector) end(r result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	c.counts[r.outcome]++
	c.ended = r.ended
	c.lag.add(ms(r.lag))
	switch r.outcome {
	case faulty:
		if c.faultKinds == nil {
			c.faultKinds = map[string]int{}
		}
		c.faultKinds[r.fault.Kind]++
		if len(c.faults) < maxFaults {
			c.faults = append(c.faults, *r.fault)
		}
	case cut:
		c.cuts[r.cut]++
		c.cutDeltas += r.deltas
	case refused:
		if r.retryAfter < 0 {
			c.noRetry++
		}
	}
	if r.ttft > 0 && (r.outcome == completed || r.outcome == cut) {
		if r.long {
			c.longTTFT.add(ms(r.ttft))
		} else {
			c.ttft.add(ms(r.ttft))
		}
	}
	if r.outcome == completed {
		c.complete(r)
	}
}

func (c *collector) complete(r result) {
	c.input += r.input
	c.cached += r.cached
	c.output += r.output
	if r.counted {
		c.counted++
	}
	if r.input == 0 {
		c.noInput++
	}
	if c.meets(r) {
		c.good++
	}
	if r.long {
		c.longs++
		return
	}
	c.e2el.add(ms(r.e2el))
	if r.output > 1 {
		c.tpot.add(ms(r.tpot))
	}
}

// meets reports whether a request met every goal.
func (c *collector) meets(r result) bool {
	for _, g := range c.goals {
		v := map[string]time.Duration{"ttft": r.ttft, "tpot": r.tpot, "e2el": r.e2el}[g.Metric]
		if ms(v) > g.MS {
			return false
		}
	}
	return true
}

// finish ends the run.
func (c *collector) finish(took time.Duration, unsent int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took, c.unsent = took, unsent
}

// last is when the last request ended.
func (c *collector) last() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// progress says how far the run is.
func (c *collector) progress() Progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := Progress{Elapsed: time.Since(c.start), Begun: c.begun, Running: c.running, Completed: c.counts[completed],
		Faults: c.counts[faulty], Output: c.output, Cut: c.counts[cut]}
	p.Other = p.Begun - p.Running - p.Completed - p.Faults - p.Cut
	return p
}

// report puts the results into a report.
func (c *collector) report(rep *Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rep.Duration, rep.Begun = c.took, c.begun
	rep.Completed, rep.Failed = c.counts[completed], c.counts[faulty]+c.counts[local]
	rep.Refused, rep.Expected, rep.Closed = c.counts[refused], c.counts[expected], c.counts[closed]
	rep.Unanswered, rep.Aborted, rep.Local = c.counts[unanswered], c.counts[aborted], c.counts[local]
	rep.Cut, rep.CutSent, rep.CutPrefill, rep.CutStream = c.counts[cut], c.cuts[cutSent], c.cuts[cutPrefill], c.cuts[cutStream]
	rep.Input, rep.Cached, rep.Output, rep.CutDeltas, rep.Long, rep.Good = c.input, c.cached, c.output, c.cutDeltas, c.longs, c.good
	rep.Unsent = c.unsent
	rep.TTFT, rep.LongTTFT, rep.TPOT = c.ttft.summary(), c.longTTFT.summary(), c.tpot.summary()
	rep.ITL, rep.ITLLong, rep.E2EL, rep.Lag = c.itl.summary(), c.itlLong.summary(), c.e2el.summary(), c.lag.summary()
	for kind, n := range c.faultKinds {
		rep.countFault(kind, n)
	}
	rep.Faults = append(rep.Faults, c.faults...)
	if c.counted > 0 {
		rep.note("the server did not count the tokens of %d answers: their deltas were counted", c.counted)
	}
	if c.noInput > 0 {
		rep.note("the server did not count the tokens of %d prompts: they are missing in total_input", c.noInput)
	}
	if c.noRetry > 0 {
		rep.note("%d refusals had no Retry-After", c.noRetry)
	}
	if c.unsent > 0 {
		rep.note("%d requests were due but not sent: as many were running as may (--concurrency)", c.unsent)
	}
	if n := c.counts[local]; n > 0 {
		rep.note("%d requests failed because this machine had no files or ports left", n)
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
