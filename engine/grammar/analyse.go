package grammar

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// ErrUnsatisfiable is the error for a grammar that no text matches.
var ErrUnsatisfiable = errors.New("no text matches the grammar")

// A RecursionError names a rule that refers to itself before it has matched a byte.
type RecursionError struct{ Rule string }

func (e *RecursionError) Error() string {
	return fmt.Sprintf("rule %q is left-recursive: it refers to itself before it matches anything", e.Rule)
}

// maxExprDepth bounds the recursion over expressions.
const maxExprDepth = 4096

// maxEmptyRepeat is the greatest upper bound for the repetition of something that may be empty. Each count is another
// way to read the same text.
const maxEmptyRepeat = 64

// never is a need that no limit allows: nothing matches.
const never = 1 << 30

// A need is how many nested rules and open calls the cheapest string of an expression takes at once. It is what keeps
// the limits from leading to a state that cannot go on: a branch is taken only where its need still fits. The two
// minima can come from different strings, which matters only within a few levels of both limits at once.
type need struct{ nest, depth int }

type analysis struct {
	b        *Builder
	bodies   []*node // by rule; rules that the root does not reach match nothing
	nullable []bool
	needs    []need
}

// analyse checks the rules that the root reaches and finds out what each needs.
func analyse(ctx context.Context, b *Builder, root Rule) (*analysis, error) {
	a := &analysis{b: b, bodies: make([]*node, len(b.rules)), nullable: make([]bool, len(b.rules)),
		needs: make([]need, len(b.rules))}
	for i := range a.bodies {
		a.bodies[i], a.needs[i] = Never().n, need{never, never}
	}
	var buf []Rule
	for queue := []Rule{root}; len(queue) > 0; {
		r := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		def := &b.rules[r]
		if a.bodies[r] == def.body {
			continue
		}
		if def.body == nil {
			return nil, fmt.Errorf("rule %q is not defined", def.name)
		}
		if def.body.depth > maxExprDepth {
			return nil, &LimitError{"levels in an expression", maxExprDepth}
		}
		a.bodies[r] = def.body
		buf = refs(buf[:0], def.body)
		queue = append(queue, buf...)
	}
	deps := a.dependents()
	if err := fixpoint(ctx, deps, func(r Rule) bool {
		was := a.nullable[r]
		a.nullable[r] = was || a.empty(a.bodies[r])
		return a.nullable[r] != was
	}); err != nil {
		return nil, err
	}
	if err := fixpoint(ctx, deps, func(r Rule) bool {
		was := a.needs[r]
		a.needs[r] = a.need(a.bodies[r], true)
		return a.needs[r] != was
	}); err != nil {
		return nil, err
	}
	if err := a.leftRecursion(); err != nil {
		return nil, err
	}
	for r, body := range a.bodies {
		if err := a.repeats(body); err != nil {
			return nil, fmt.Errorf("rule %q: %w", b.rules[r].name, err)
		}
	}
	switch n := a.needs[root]; {
	case n.nest >= never || n.depth >= never:
		return nil, ErrUnsatisfiable
	case n.nest > b.limits.Nesting:
		return nil, &LimitError{"levels of nesting", b.limits.Nesting}
	case n.depth >= b.limits.Depth:
		return nil, &LimitError{"open calls", b.limits.Depth}
	}
	return a, nil
}

// fixpoint evaluates rules until none changes; eval reports whether its rule did. Values must only ever fall, or only
// ever rise.
func fixpoint(ctx context.Context, deps [][]Rule, eval func(Rule) bool) error {
	queue := make([]Rule, len(deps))
	queued := make([]bool, len(deps))
	for i := range queue {
		// Front ends mostly define a rule before those that use it.
		queue[i], queued[i] = Rule(i), true
	}
	for n := 0; len(queue) > 0; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		r := queue[0]
		queue = queue[1:]
		queued[r] = false
		if !eval(r) {
			continue
		}
		for _, d := range deps[r] {
			if !queued[d] {
				queue, queued[d] = append(queue, d), true
			}
		}
	}
	return nil
}

// empty reports whether an expression matches the empty string, as far as is known of the rules.
func (a *analysis) empty(n *node) bool {
	switch n.kind {
	case kindEmpty:
		return true
	case kindSeq:
		for _, k := range n.kids {
			if !a.empty(k) {
				return false
			}
		}
		return true
	case kindAlt:
		for _, k := range n.kids {
			if a.empty(k) {
				return true
			}
		}
		return false
	case kindRepeat:
		return n.min == 0 || a.empty(n.kids[0])
	case kindRef:
		return a.nullable[n.rule]
	}
	return false
}

// need returns what an expression needs; tail says that it is the last thing of its rule, where a call leaves
// nothing open.
func (a *analysis) need(n *node, tail bool) need {
	switch n.kind {
	case kindNever:
		return need{never, never}
	case kindSeq:
		var most need
		for i, k := range n.kids {
			d := a.need(k, tail && i == len(n.kids)-1)
			most = need{max(most.nest, d.nest), max(most.depth, d.depth)}
		}
		return most
	case kindAlt:
		least := need{never, never}
		for _, k := range n.kids {
			d := a.need(k, tail)
			least = need{min(least.nest, d.nest), min(least.depth, d.depth)}
		}
		return least
	case kindRepeat:
		if n.min == 0 {
			return need{}
		}
		d := a.need(n.kids[0], false)
		if counted(n) {
			d.depth++
		}
		return d.capped()
	case kindRef:
		d := a.needs[n.rule]
		nested := a.b.rules[n.rule].nested
		if nested {
			d.nest++
		}
		if nested || !tail {
			d.depth++
		}
		return d.capped()
	}
	return need{}
}

func (n need) capped() need { return need{min(n.nest, never), min(n.depth, never)} }

// counted reports whether a repetition keeps a count in the state.
func counted(n *node) bool {
	return !(n.max == Unbounded && n.min <= 1 || n.min == 0 && n.max == 1)
}

// repeats checks the bounds of repetitions.
func (a *analysis) repeats(n *node) error {
	if n.kind == kindRepeat {
		if limit := a.b.limits.Repeat; n.min > limit || n.max > limit {
			return &LimitError{"repetitions", limit}
		}
		if n.min < 0 || n.max < n.min && n.max != Unbounded {
			return fmt.Errorf("the repetition {%d,%d} has its bounds the wrong way round", n.min, n.max)
		}
		if n.max > maxEmptyRepeat && a.empty(n.kids[0]) {
			return &LimitError{"repetitions of something that may be empty", maxEmptyRepeat}
		}
	}
	for _, k := range n.kids {
		if err := a.repeats(k); err != nil {
			return err
		}
	}
	return nil
}

// leftmost appends the rules that an expression can call before it has matched a byte.
func (a *analysis) leftmost(dst []Rule, n *node) []Rule {
	switch n.kind {
	case kindRef:
		return append(dst, n.rule)
	case kindSeq:
		for _, k := range n.kids {
			if dst = a.leftmost(dst, k); !a.empty(k) {
				break
			}
		}
	case kindAlt, kindRepeat:
		for _, k := range n.kids {
			dst = a.leftmost(dst, k)
		}
	}
	return dst
}

// leftRecursion looks for a cycle in the graph of leftmost calls.
func (a *analysis) leftRecursion() error {
	const (
		fresh = iota
		open
		done
	)
	colour := make([]uint8, len(a.b.rules))
	type visit struct {
		rule Rule
		left []Rule // still to look at
	}
	for r := range a.b.rules {
		if colour[r] != fresh {
			continue
		}
		colour[r] = open
		path := []visit{{Rule(r), a.leftmost(nil, a.bodies[r])}}
		for len(path) > 0 {
			v := &path[len(path)-1]
			if len(v.left) == 0 {
				colour[v.rule] = done
				path = path[:len(path)-1]
				continue
			}
			to := v.left[0]
			v.left = v.left[1:]
			switch colour[to] {
			case open:
				return &RecursionError{a.b.rules[to].name}
			case fresh:
				colour[to] = open
				path = append(path, visit{to, a.leftmost(nil, a.bodies[to])})
			}
		}
	}
	return nil
}

// refs appends the rules that an expression refers to, each once for each time.
func refs(dst []Rule, n *node) []Rule {
	if n.kind == kindRef {
		return append(dst, n.rule)
	}
	for _, k := range n.kids {
		dst = refs(dst, k)
	}
	return dst
}

// dependents returns for each rule the rules that refer to it.
func (a *analysis) dependents() [][]Rule {
	deps := make([][]Rule, len(a.bodies))
	var buf []Rule
	for r, body := range a.bodies {
		buf = refs(buf[:0], body)
		slices.Sort(buf)
		for _, to := range slices.Compact(buf) {
			deps[to] = append(deps[to], Rule(r))
		}
	}
	return deps
}
