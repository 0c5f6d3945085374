package engine

import (
	"context"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/scheduler"
)

// WarmUp makes what is otherwise made when it is first needed, so that the first requests do not wait for it: the
// pipelines of all steps that requests lead to, several at a time, of which progress is told how many there are of how
// many; then steps run, as some drivers compile when they first dispatch. What was compiled is kept for the next start,
// however this process ends.
func (e *Engine) WarmUp(ctx context.Context, progress func(done, total int)) error {
	if err := e.makePipelines(ctx, progress); err != nil {
		return err
	}
	p := sample.Neutral()
	p.Temperature = 0
	// Kernels differ in how many rows they take at once: many, two or one. The first prompt and what follows it are steps of
	// many rows and of one.
	for _, n := range []int{8, 2} {
		n = max(1, min(n, e.cfg.Context-2))
		st, err := e.Generate(ctx, Request{Prompt: make([]int32, n), MaxTokens: 2, Sample: p, IgnoreEOG: true, NoCache: true})
		if err != nil {
			return err
		}
		if _, err := st.Result(); err != nil {
			return err
		}
	}
	for _, d := range e.where.Dies {
		_ = d.Device.SavePipelineCache() // as in Close, that is no reason to fail
	}
	return nil
}

// makePipelines makes the pipelines of every size of step, and of the step that re-encodes pages.
func (e *Engine) makePipelines(ctx context.Context, progress func(done, total int)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.plans == nil:
		return ErrClosed
	case e.die == nil:
		return nil
	}
	var graphs []*scheduler.Graph
	for rows := 1; rows <= bucket(e.cfg.Batch); rows *= 2 {
		g, _ := e.graph(planKey{rows: rows, outs: e.outs(rows), opt: model.GraphOptions{TopK: 1}})
		graphs = append(graphs, g)
	}
	if e.state.ColdPages > 0 {
		g, _ := e.graph(planKey{encode: true})
		graphs = append(graphs, g)
	}
	defer e.reachThreads() // compiling starts threads in some drivers
	return e.where.MakePipelines(ctx, graphs, progress)
}
