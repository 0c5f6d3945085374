package selftest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A Step is a step of a small model in which variants are checked.
type Step struct {
	Graph *scheduler.Graph
	Run   shaders.Run
	// Later names a kernel that is not judged in this step, as another gives it more to do.
	Later string
}

// A Result is what was found of a variant.
type Result struct {
	Variant
	Op     string  // where it was worst
	Rows   int     // of that step
	MaxErr float64 // largest difference from the twin on the same inputs
	Scale  float64 // largest magnitude of the twin's values
	Rel    float64
	Tol    float64
	OK     bool
	Err    string // why the driver made no pipeline of it, if it did not
	// With are the other variants of an op that was wrong, the fewest of those that were: one of them may be to blame.
	With []Variant
}

// Check runs steps one after the other on a die that holds the weights and the state of their model, and compares every op that uses
// one of the variants in todo with its twin. The results are in order of the variants' names, one for each that a step has.
//
// An op of several dispatches is judged as a whole, with all their variants, and each that was wrong in company says so.
func Check(ctx context.Context, die *scheduler.Die, steps []Step, memory shaders.HostMemory, rope shaders.RopeTable, todo map[Variant]bool, tol float64) ([]Result, error) {
	failed, err := pipelines(ctx, die, steps, todo)
	if err != nil || len(failed) > 0 {
		// Steps cannot be recorded without them.
		return failed, err
	}
	found := map[Variant]Result{}
	for _, s := range steps {
		if err := s.check(ctx, die, memory, rope, todo, tol, found); err != nil {
			return nil, err
		}
	}
	return sorted(maps.Values(found)), nil
}

func sorted(results func(yield func(Result) bool)) []Result {
	return slices.SortedFunc(results, func(a, b Result) int { return strings.Compare(a.String(), b.String()) })
}

// pipelines makes the pipelines of steps, and returns those in todo that the driver refuses to make.
func pipelines(ctx context.Context, die *scheduler.Die, steps []Step, todo map[Variant]bool) ([]Result, error) {
	var graphs []*scheduler.Graph
	for _, s := range steps {
		graphs = append(graphs, s.Graph)
	}
	err := scheduler.On(die).MakePipelines(ctx, graphs, func(int, int) {})
	if !refused(err) {
		return nil, err
	}
	failed := map[Variant]Result{}
	for _, s := range steps {
		for _, n := range s.Graph.Nodes {
			ds, err := n.Op.Lower(&die.Kernels)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", n.Label(), err)
			}
			for _, d := range ds {
				v := Of(d, &die.Kernels)
				if _, seen := failed[v]; seen || !todo[v] {
					continue
				}
				if err := die.MakePipeline(d); refused(err) {
					failed[v] = Result{Variant: v, Op: n.Label(), Rows: s.Graph.Shape.Rows, MaxErr: math.Inf(1), Rel: math.Inf(1), Err: err.Error()}
				} else if err != nil {
					return nil, err
				}
			}
		}
	}
	if len(failed) == 0 {
		return nil, err // of a variant that was right before
	}
	return sorted(maps.Values(failed)), nil
}

// refused reports whether an error is the driver's about a pipeline, and not about memory or a device that is gone.
func refused(err error) bool {
	var e *vk.Error
	return errors.As(err, &e) && !errors.Is(err, vk.ErrDeviceLost) && !errors.Is(err, vk.ErrOutOfDeviceMemory) && !errors.Is(err, vk.ErrOutOfHostMemory)
}

// check runs one step, unless all its variants have been found about, and notes what it finds.
func (s *Step) check(ctx context.Context, die *scheduler.Die, memory shaders.HostMemory, rope shaders.RopeTable, todo map[Variant]bool, tol float64, found map[Variant]Result) error {
	before := maps.Clone(found)
	nodes := make([][]Variant, len(s.Graph.Nodes)) // what to judge of each
	all := make([][]Variant, len(s.Graph.Nodes))   // and all that it uses
	some := false
	for i, n := range s.Graph.Nodes {
		if n.Op.Kernel() == s.Later {
			continue
		}
		ds, err := n.Op.Lower(&die.Kernels)
		if err != nil {
			return fmt.Errorf("%s: %w", n.Label(), err)
		}
		for _, d := range ds {
			v := Of(d, &die.Kernels)
			if slices.Contains(all[i], v) {
				continue
			}
			all[i] = append(all[i], v)
			if _, done := before[v]; todo[v] && !done {
				nodes[i], some = append(nodes[i], v), true
			}
		}
	}
	if !some {
		return nil
	}
	want := func(i int) bool { return len(nodes[i]) > 0 }
	rows := len(s.Run.Tokens)
	return scheduler.VerifySome(s.Graph, scheduler.On(die), memory, []shaders.Run{s.Run}, rope, want, tol, func(e scheduler.OpError) error {
		n := s.Graph.Nodes[e.Node]
		for _, v := range nodes[e.Node] {
			r := Result{Variant: v, Op: n.Label(), Rows: rows, MaxErr: e.Err, Scale: e.Scale, Rel: e.Rel(), Tol: tol}
			r.OK = r.Rel <= tol
			if !r.OK {
				r.With = slices.DeleteFunc(slices.Clone(all[e.Node]), func(x Variant) bool { return x == v })
			}
			old, seen := found[v]
			switch {
			case seen && !old.OK && !r.OK && len(old.With) < len(r.With):
				// It was wrong in less company.
			case !seen || old.Rel < r.Rel || !old.OK && !r.OK && len(r.With) < len(old.With):
				found[v] = r
			}
		}
		return ctx.Err()
	})
}
