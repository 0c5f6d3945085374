package batch

import (
	"cmp"
	"slices"
	"time"
)

// Defaults of a [Former]'s fields that are zero.
const (
	DefaultMaxRows  = 512
	DefaultMaxSeqs  = 16
	DefaultMinChunk = 16
)

const (
	// trickle is the rows of prompt that a step takes when they are owed, whatever the bound on its duration.
	trickle = 8
	// credit is the rows that prompts are owed for a step beside decoding.
	credit = 2
)

// A Job is a live sequence as far as forming steps goes. One that is neither decoding nor has prompt left has no
// work.
type Job struct {
	ID       int  // the caller's, unique among the jobs
	Prompt   int  // tokens of the prompt still to be fed; not looked at when decoding
	Decoding bool // it has one token to feed
	Cut      int  // most tokens that its run in the next step may have (a border of pages, a snapshot), at least 1
}

// rows is the most rows the job can take in a step.
func (j *Job) rows() int {
	if j.Decoding {
		return 1
	}
	return max(min(j.Prompt, max(j.Cut, 1)), 0)
}

// A Part is a run of the next step: the next Tokens tokens of the sequence with an ID.
type Part struct {
	ID, Tokens int
}

// A Former forms steps. Its fields may be changed between calls. The zero value works; it has the defaults and no
// bound on latency. A Former is used by one goroutine. The same calls give the same steps.
type Former struct {
	MaxRows  int // most rows of a step; 0 is DefaultMaxRows
	MaxSeqs  int // most sequences of a step; 0 is DefaultMaxSeqs
	MinChunk int // rows below which a run of prompt is not divided; 0 is DefaultMinChunk
	// MaxLatency bounds the duration of a step that feeds prompts while a sequence is decoding; 0 is no bound. See
	// the package's documentation for what it cannot promise.
	MaxLatency time.Duration

	stamp int64 // services counted so far
	fed   int64 // stamp of the last service of any prompt
	owed  int   // rows owed to prompts
	turn  bool  // whose turn it is when there are rows for one run of prompt only
	model latency

	seqs, before []seq // parallel to the jobs of this call and of the one before
	decoding     []int // indices of jobs
	prompts      []int
	grants       []int // rows by job
	parts        []Part
}

// A seq is what is remembered of a sequence from step to step.
type seq struct {
	id   int
	last int64 // stamp of its last service; to come, or to be without work, counts as one
}

// Next returns the runs of the next step: the decoding sequences in the order of jobs, then prompts in that order.
// It is empty if no job has work. The slice is valid until the next call.
//
// Every decoding sequence is in the step if they are fewer than MaxSeqs and MaxRows, or as many and no prompt waits.
// If not, none of n waits more than ceil((n+1)/max) steps from one service to the next, max being the lesser of the
// two. Rows are left over only for want of work, of sequences, or because of MaxLatency.
func (f *Former) Next(jobs []Job) []Part {
	maxRows := positive(f.MaxRows, DefaultMaxRows)
	places := min(positive(f.MaxSeqs, DefaultMaxSeqs), maxRows)
	f.begin(jobs)
	if len(f.prompts) == 0 {
		f.fed = f.serve() // the next ones queue behind everybody
	}

	// Who decodes, and whether there is a place for prompts.
	n := len(f.decoding)
	feed := len(f.prompts) > 0
	if n >= places {
		f.byService(f.decoding)
		// Prompts are one more in the rotation: the last of those who have a place gives it up if it was served later.
		feed = feed && f.seqs[f.decoding[places-1]].last >= f.fed
		n = places
		if feed {
			n--
		}
	}
	rows := 0
	if feed {
		if rows = f.room(jobs, n, maxRows); rows == 0 {
			n = min(len(f.decoding), places)
		}
	}

	for _, i := range f.decoding[:n] {
		f.grants[i], f.seqs[i].last = 1, f.serve()
	}
	if rows > 0 {
		f.feed(jobs, rows, places-n)
		f.fed = f.serve()
	}
	return f.emit(jobs)
}

// Done reports how long a step of so many rows took, from its submission to its result. Steps for which a plan had
// to be made first are best left out.
func (f *Former) Done(rows int, took time.Duration) {
	if rows > 0 && took > 0 {
		f.model.observe(rows, took.Seconds())
	}
}

// Predict returns how long a step of so many rows is expected to take, without a margin. It reports false while
// nothing was measured.
func (f *Former) Predict(rows int) (time.Duration, bool) {
	if rows < 1 {
		return 0, false
	}
	t, ok := f.model.predict(float64(rows))
	return time.Duration(t * float64(time.Second)), ok
}

// serve returns the stamp of another service, greater than all before. Stamps order the rotations.
func (f *Former) serve() int64 {
	f.stamp++
	return f.stamp
}

// begin finds what is remembered of each job and sorts them by what they do.
func (f *Former) begin(jobs []Job) {
	f.seqs, f.before = f.before[:0], f.seqs
	f.decoding, f.prompts = f.decoding[:0], f.prompts[:0]
	f.grants = slices.Grow(f.grants[:0], len(jobs))[:len(jobs)]
	clear(f.grants)
	at := 0 // jobs mostly keep their order, so the next one is looked for after the last found
	for i := range jobs {
		s := seq{id: jobs[i].ID}
		for range f.before {
			if at >= len(f.before) {
				at = 0
			}
			at++
			if f.before[at-1].id == s.id {
				s = f.before[at-1]
				break
			}
		}
		if s.last == 0 || jobs[i].rows() == 0 {
			s.last = f.serve()
		}
		f.seqs = append(f.seqs, s)
		if jobs[i].Decoding {
			f.decoding = append(f.decoding, i)
		} else if jobs[i].Prompt > 0 {
			f.prompts = append(f.prompts, i)
		}
	}
}

// byService sorts indices of jobs by their last service, the longest ago first.
func (f *Former) byService(jobs []int) {
	slices.SortFunc(jobs, func(a, b int) int { return cmp.Compare(f.seqs[a].last, f.seqs[b].last) })
}

// room returns the rows for prompts in a step in which n sequences decode.
func (f *Former) room(jobs []Job, n, maxRows int) int {
	work := 0
	for _, i := range f.prompts {
		work = min(work+jobs[i].rows(), maxRows)
	}
	rows := min(maxRows-n, work)
	if f.MaxLatency <= 0 || len(f.decoding) == 0 {
		return rows
	}
	f.owed = min(f.owed+credit, trickle)
	fit := f.model.limit(f.MaxLatency.Seconds(), n, n+rows) - n
	if _, known := f.model.predict(1); !known || f.owed == trickle {
		fit = max(fit, trickle)
	}
	rows = min(rows, fit)
	f.owed = max(f.owed-rows, 0)
	return rows
}

// feed grants rows, at least 1, to prompts, at most as many as there are seats.
func (f *Former) feed(jobs []Job, rows, seats int) {
	f.byService(f.prompts)
	shortest := 0
	for k, i := range f.prompts {
		if jobs[i].Prompt < jobs[f.prompts[shortest]].Prompt {
			shortest = k
		}
	}
	chunk := positive(f.MinChunk, DefaultMinChunk)
	half := rows / 2
	runs := min(seats-1, (rows-half)/chunk, len(f.prompts)-1) // beside the shortest
	switch {
	case runs > 0 && half >= chunk:
		f.front(shortest)
		rows -= f.grant(jobs, 0, half)
		for k := 1; k <= runs; k++ {
			left := runs - k + 1
			rows -= f.grant(jobs, k, (rows+left-1)/left)
		}
	default:
		if f.turn = !f.turn; f.turn {
			f.front(shortest)
		}
	}
	// What those did not take, or all of it if there is one run only, goes to the first that can.
	for k := 0; k < min(seats, len(f.prompts)) && rows > 0; k++ {
		rows -= f.grant(jobs, k, rows)
	}
	for _, i := range f.prompts {
		if f.grants[i] > 0 {
			f.seqs[i].last = f.serve()
		}
	}
}

// front moves the k-th prompt before the others.
func (f *Former) front(k int) {
	i := f.prompts[k]
	copy(f.prompts[1:k+1], f.prompts[:k])
	f.prompts[0] = i
}

// grant gives the k-th prompt up to so many rows more and returns how many it took.
func (f *Former) grant(jobs []Job, k, rows int) int {
	i := f.prompts[k]
	rows = min(rows, jobs[i].rows()-f.grants[i])
	f.grants[i] += rows
	return rows
}

// emit lists what was granted.
func (f *Former) emit(jobs []Job) []Part {
	f.parts = f.parts[:0]
	for _, decoding := range [...]bool{true, false} {
		for i := range jobs {
			if f.grants[i] > 0 && jobs[i].Decoding == decoding {
				f.parts = append(f.parts, Part{jobs[i].ID, f.grants[i]})
			}
		}
	}
	return f.parts
}

// positive is n, or what stands for it when it is not positive.
func positive(n, otherwise int) int {
	if n > 0 {
		return n
	}
	return otherwise
}
