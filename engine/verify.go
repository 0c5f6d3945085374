package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// verifyTolerance is how far an op on a device may be from its twin, relative to the largest value it
// wrote. Kernels sum in float32 in their own order and the twin in float64: 2e-6 was the worst seen for the
// longest rows; driver exponentials add 1e-6 (vulkan-platform.md 11).
const verifyTolerance = 2e-5

// An OpCheck is the verdict on one op.
type OpCheck struct {
	Layer  int     `json:"layer"`
	Op     string  `json:"op"`
	Kernel string  `json:"kernel"`
	MaxErr float64 `json:"max_err"` // largest difference from the twin on the same inputs
	Scale  float64 `json:"scale"`   // largest magnitude of the twin's values
	Rel    float64 `json:"rel"`
	Tol    float64 `json:"tol"`
	OK     bool    `json:"ok"`
	Chunk  int     `json:"chunk"` // which step of the sequence
}

// A Verification compares a device with the twins: op by op on the device's own inputs, and end to end.
type Verification struct {
	Device string    `json:"device"`
	Ops    []OpCheck `json:"ops"`
	Logits struct {
		MaxErr float64 `json:"max_err"` // after the last token, against the twins run from the start by themselves
		Scale  float64 `json:"scale"`
		Argmax bool    `json:"argmax"` // the best token is the same
	} `json:"logits"`
	First *OpCheck `json:"first,omitempty"` // where the device first parts from the twins
}

// OK reports whether nothing differed.
func (v *Verification) OK() bool { return v.First == nil && v.Logits.Argmax }

// Verify runs a sequence on the device and on the twins and says where they first part. Most of the tokens
// are one step; the last is a step of its own, so that state carried between steps is covered.
func (e *Engine) Verify(ctx context.Context, tokens []int32) (*Verification, error) {
	if e.die == nil {
		return nil, errors.New("verify compares a device with the reference; choose a Vulkan device")
	}
	if len(tokens) < 2 || len(tokens) > min(e.cfg.Batch, e.cfg.Context) {
		return nil, fmt.Errorf("verify takes 2 to %d tokens, not %d", min(e.cfg.Batch, e.cfg.Context), len(tokens))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alone()
	if e.plans == nil {
		return nil, ErrClosed
	}
	v := &Verification{Device: e.Device()}
	host, err := weights.Map(e.model.Weights)
	if err != nil {
		return nil, err
	}
	steps, err := e.verifySteps(tokens)
	if err != nil {
		return nil, err
	}
	for i := range steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := e.verifyStep(ctx, v, i, steps[i], host); err != nil {
			return nil, err
		}
	}
	if err := e.verifyLogits(ctx, v, steps); err != nil {
		return nil, err
	}
	// Whatever the device works with, the twins read the file.
	return v, e.file.Intact()
}

// verifySteps divides a sequence into the steps to verify, among them those that re-encode pages. The sequence holds its
// seat for this call alone: the caller keeps others out.
func (e *Engine) verifySteps(tokens []int32) ([]shaders.Run, error) {
	seq, err := e.seat(len(tokens))
	if err != nil {
		return nil, busy(err)
	}
	defer e.unseat(seq)
	var runs []shaders.Run
	split := len(tokens) - 1
	for pos := 0; pos < len(tokens); {
		end := pos + min(len(tokens)-pos, e.pool.Policy().Cut(pos))
		if pos < split {
			end = min(end, split)
		}
		m, move, err := seq.seat.Grow(pos, end)
		if err != nil {
			return nil, err
		}
		if move {
			seq.seat.Moved()
			runs = append(runs, shaders.Run{Moves: []shaders.PageMove{{Hot: m.Hot, Cold: m.Cold}}})
			continue
		}
		runs = append(runs, shaders.Run{
			Slot: seq.seat.Slot(), Pos: pos, Tokens: tokens[pos:end], Pages: slices.Clone(seq.seat.Pages()), Fresh: pos == 0, Outs: []int{end - pos - 1},
		})
		pos = end
	}
	return runs, nil
}

// verifyKey is the plan of a step that is verified.
func (e *Engine) verifyKey(run shaders.Run, opt model.GraphOptions) planKey {
	if len(run.Moves) > 0 {
		return planKey{encode: true}
	}
	rows := bucket(len(run.Tokens))
	return planKey{rows: rows, outs: e.outs(rows), opt: opt}
}

func (e *Engine) verifyStep(ctx context.Context, v *Verification, chunk int, run shaders.Run, host shaders.HostMemory) error {
	g, _ := e.graph(e.verifyKey(run, model.GraphOptions{Logits: true, TopK: 1}))
	return scheduler.Verify(g, e.where, host, []shaders.Run{run}, e.rope, func(x scheduler.OpError) error {
		n := g.Nodes[x.Node]
		c := OpCheck{Layer: n.Layer, Op: n.Name, Kernel: n.Op.Kernel(), MaxErr: x.Err, Scale: x.Scale, Rel: x.Rel(), Tol: verifyTolerance, Chunk: chunk}
		c.OK = c.Rel <= c.Tol
		v.Ops = append(v.Ops, c)
		if !c.OK && v.First == nil {
			first := c
			v.First = &first
		}
		return ctx.Err()
	})
}

// verifyLogits runs the twins by themselves and the device by its ordinary plans, and compares the logits
// after the last token.
func (e *Engine) verifyLogits(ctx context.Context, v *Verification, steps []shaders.Run) error {
	host, err := weights.Map(e.model.Weights)
	if err != nil {
		return err
	}
	var want, got []float32
	for _, run := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		k := e.verifyKey(run, model.GraphOptions{Logits: true})
		g, out := e.graph(k)
		ref, err := scheduler.NewReference(g, host)
		if err != nil {
			return err
		}
		if _, err := ref.Run([]shaders.Run{run}, e.rope); err != nil {
			return err
		}
		p, err := e.plan(k)
		if err != nil {
			return err
		}
		if _, err := p.runner.Run([]shaders.Run{run}, e.rope); err != nil {
			return err
		}
		if len(run.Moves) > 0 {
			continue
		}
		want, got = make([]float32, e.model.Vocab), make([]float32, e.model.Vocab)
		if err := ref.Read(out.Logits.Slice(0, int64(len(want))*4), asBytes(want)); err != nil {
			return err
		}
		if err := p.runner.Read(p.out.Logits.Slice(0, int64(len(got))*4), asBytes(got)); err != nil {
			return err
		}
	}
	bestW, bestG := 0, 0
	for i := range want {
		d := math.Abs(float64(want[i]) - float64(got[i]))
		if !(d <= v.Logits.MaxErr) {
			v.Logits.MaxErr = d
		}
		v.Logits.Scale = max(v.Logits.Scale, math.Abs(float64(want[i])))
		if want[i] > want[bestW] {
			bestW = i
		}
		if got[i] > got[bestG] {
			bestG = i
		}
	}
	v.Logits.Argmax = bestW == bestG
	return nil
}
