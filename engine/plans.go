package engine

import (
	"fmt"
	"math"
	"slices"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// planKey tells plans apart: the row bucket, how many rows may want logits, and what is delivered of them; or that
// pages are re-encoded and nothing else.
type planKey struct {
	rows, outs int
	opt        model.GraphOptions
	encode     bool
	lane       int // of the steps that are under way together
}

// planned is a graph made ready to run.
type planned struct {
	runner scheduler.Runner
	out    model.Outputs
	stats  scheduler.Stats
	cost   shaders.Cost
}

// outs is how many rows of a step may want logits, but for steps in which all do.
func (e *Engine) outs(rows int) int { return min(rows, e.state.Slots) }

// readLogits reads a row of logits into dst, which is made as long as needed.
func (p *planned) readLogits(i int, dst []float32) ([]float32, error) {
	width := p.out.Logits.Width
	if len(dst) != width {
		dst = make([]float32, width)
	}
	return dst, p.runner.Read(p.out.Logits.Slice(int64(i)*int64(width)*4, int64(width)*4), asBytes(dst))
}

// readTop appends the best k of a row's candidates to dst, of which the plan delivers at least as many. Buf is for it
// to use.
func (p *planned) readTop(i, k int, dst []Candidate, buf *[]byte, vocab int) ([]Candidate, error) {
	n := int64(8 * p.out.TopK)
	if int64(len(*buf)) != n {
		*buf = shaders.AlignedBytes(n)
	}
	if err := p.runner.Read(p.out.Top.Slice(int64(i)*n, n), *buf); err != nil {
		return dst, err
	}
	w := shaders.Words(*buf)
	for j := range min(k, p.out.TopK) {
		if int(w[2*j]) < vocab {
			dst = append(dst, Candidate{int32(w[2*j]), math.Float32frombits(w[2*j+1])})
		}
	}
	return dst, nil
}

// bucket is the row capacity for n rows: the next power of two.
func bucket(n int) int {
	b := 1
	for b < n {
		b *= 2
	}
	return b
}

// plan returns the plan for a step, made on first use and kept.
func (e *Engine) plan(k planKey) (*planned, error) {
	if e.plans == nil {
		return nil, ErrClosed
	}
	if p := e.plans[k]; p != nil {
		return p, nil
	}
	g, out := e.graph(k)
	p := &planned{out: out, cost: g.Cost()}
	if e.die == nil {
		r, err := scheduler.NewReference(g, e.memory)
		if err != nil {
			return nil, err
		}
		p.runner = r
	} else {
		use := generation
		switch {
		case k.encode:
			use = encoding
		case k.outs > e.outs(k.rows):
			use = allLogits
		case k.lane > 0:
			use = behind + k.lane - 1
		}
		w, err := e.workspace(use)
		if err != nil {
			return nil, fmt.Errorf("planning a step of %d rows: %w", k.rows, err)
		}
		c, err := scheduler.Compile(g, e.where, scheduler.Options{Check: e.cfg.Check, Workspace: w, Machine: &e.machine, Budget: e.limit.budget})
		if err != nil {
			return nil, fmt.Errorf("planning a step of %d rows: %w", k.rows, err)
		}
		p.runner, p.stats = c, c.Stats()
		e.reachThreads()
	}
	e.plans[k] = p
	return p, nil
}

// graph builds the graph of a plan.
func (e *Engine) graph(k planKey) (*scheduler.Graph, model.Outputs) {
	if k.encode {
		return e.model.EncodeGraph(e.state.Slots, e.state), model.Outputs{}
	}
	shape := shaders.StepShape{Rows: k.rows, Seqs: min(k.rows, e.state.Slots), Outs: k.outs, Pages: pagesFor(e.cfg.Context)}
	return e.model.Graph(shape, e.state, k.opt)
}

// Counts are what one step of a plan does.
type Counts struct {
	scheduler.Stats
	Cost shaders.Cost
}

// DecodeCounts returns the counts of a step that decodes one token of each of so many sequences greedily.
func (e *Engine) DecodeCounts(seqs int) (Counts, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, err := e.plan(planKey{rows: bucket(seqs), outs: e.outs(bucket(seqs)), opt: model.GraphOptions{TopK: 1}})
	if err != nil {
		return Counts{}, err
	}
	return Counts{p.stats, p.cost}, nil
}

// The workspaces of an engine.
const (
	generation = iota // steps that deliver the logits of a row of each sequence
	allLogits         // steps that deliver those of every row
	encoding          // steps that re-encode pages
	behind            // and on: the same as generation, under way beside it, with its scratch; one for each lane but the first
	workspaces = behind + MaxDevices - 1
)

// workspace returns a workspace, made on first use for the largest step there is.
func (e *Engine) workspace(use int) (*scheduler.Workspace, error) {
	if e.works[use] != nil {
		return e.works[use], nil
	}
	var beside *scheduler.Workspace
	if use >= behind {
		var err error
		if beside, err = e.workspace(generation); err != nil {
			return nil, err
		}
	}
	w, err := scheduler.NewWorkspace(e.where.Dies, e.stepNeeds(use, e.room.Batch), beside)
	if err != nil {
		return nil, err
	}
	e.works[use] = w
	return w, nil
}

// stepNeeds is what the steps of a workspace take at most.
func (e *Engine) stepNeeds(use, batch int) []scheduler.Needs {
	pages := pagesFor(e.cfg.Context)
	switch use {
	case allLogits:
		return logitNeeds(e.model, e.state, e.where.Split, pages, batch, true)
	case encoding:
		return scheduler.NeedsOf(e.model.EncodeGraph(e.state.Slots, e.state), e.where.Split)
	}
	return stepNeeds(e.model, e.state, e.where.Split, pages, batch, true)
}

// reserve makes room for steps of n rows. Where there is not enough, it frees the plans and their workspaces, and
// plans are made again when they are used.
func (e *Engine) reserve(n int) error {
	if e.die == nil || n <= e.room.Batch {
		return nil
	}
	w, err := scheduler.NewWorkspace(e.where.Dies, e.stepNeeds(generation, n), nil)
	if err != nil {
		return fmt.Errorf("batch of %d rows: %w", n, err)
	}
	for k, p := range e.plans {
		p.runner.Close()
		delete(e.plans, k)
	}
	e.freeWorkspaces()
	e.works[generation], e.room.Batch = w, n
	needs := w.Needs()
	for i := range needs {
		for range e.cfg.lanes(e.where.Split) - 1 {
			needs[i] = needs[i].Add(needs[i].Beside())
		}
	}
	before := e.room.Scratch + e.room.Step + e.room.Results
	e.room.needs(needs)
	more := e.room.Scratch + e.room.Step + e.room.Results - before
	e.room.Needed, e.room.Total = e.room.Needed+more, e.room.Total+more
	return nil
}

// freeWorkspaces frees the workspaces, whose plans are closed.
func (e *Engine) freeWorkspaces() {
	// What shares another's scratch goes before it.
	for i, w := range slices.Backward(e.works[:]) {
		if w != nil {
			w.Free()
		}
		e.works[i] = nil
	}
}
