package grammar

import (
	"context"
	"fmt"
)

type op uint8

const (
	opBytes op = iota // matches a byte by arms[from:to]
	opMatch           // the end of the text
	opFork            // goes on at each of targets[from:to]
	opNeed            // goes on at next where from nested rules and to calls still fit
	opCall            // calls rule from and returns to next
	opTail            // goes on in rule from, which returns to this one's caller
	opRet
	opLoop  // begins a counted repetition
	opAgain // ends a turn of it
)

// An inst is an instruction. What from and to mean depends on op.
type inst struct {
	op       op
	nested   bool // opCall: the rule is a nested one
	from, to uint32
	next     uint32
}

// An arm of opBytes: a byte of the set leads to next.
type arm struct {
	set, next uint32
}

// A loop is a counted repetition. Its turns run from body to an opAgain; most is Unbounded or at least 1.
type loop struct {
	least, most int
	body, next  uint32
}

// A program is a compiled grammar. It does not change.
type program struct {
	insts   []inst
	arms    []arm
	targets []uint32
	loops   []loop
	sets    []ByteSet
	entry   []uint32 // by rule
	start   uint32

	// class maps bytes to classes whose members no set tells apart; first is a member of each, sizes their number.
	class [256]uint8
	first []byte
	sizes []int
}

type emitter struct {
	*program
	a     *analysis
	ctx   context.Context
	sets  map[ByteSet]uint32
	limit int
	err   error
}

// emit compiles rules into a program. Expressions are written back to front, each with the address at which the text
// goes on.
func emit(ctx context.Context, a *analysis, root Rule) (*program, error) {
	e := &emitter{program: &program{}, a: a, ctx: ctx, sets: map[ByteSet]uint32{}, limit: a.b.limits.Size}
	ret := e.add(inst{op: opRet})
	e.entry = make([]uint32, len(a.b.rules))
	for i, body := range a.bodies {
		if a.needs[i].nest >= never {
			continue // nothing calls it
		}
		e.entry[i] = e.expr(body, ret, true)
		if e.err != nil {
			return nil, e.err
		}
	}
	match := e.add(inst{op: opMatch})
	e.start = e.add(inst{op: opCall, nested: a.b.rules[root].nested, from: uint32(root), next: match})
	e.classes()
	return e.program, e.err
}

func (e *emitter) add(i inst) uint32 {
	n := len(e.insts)
	if n+len(e.arms)+len(e.targets) > e.limit && e.err == nil {
		e.err = &LimitError{"instructions", e.limit}
	}
	if n%4096 == 0 && e.ctx.Err() != nil && e.err == nil {
		e.err = e.ctx.Err()
	}
	if e.err != nil && n > 0 {
		return 0
	}
	e.insts = append(e.insts, i)
	return uint32(n)
}

func (e *emitter) set(s ByteSet) uint32 {
	i, ok := e.sets[s]
	if !ok {
		i = uint32(len(e.program.sets))
		e.sets[s] = i
		e.program.sets = append(e.program.sets, s)
	}
	return i
}

func (e *emitter) bytes(arms ...arm) uint32 {
	from := uint32(len(e.arms))
	e.arms = append(e.arms, arms...)
	return e.add(inst{op: opBytes, from: from, to: uint32(len(e.arms))})
}

// expr writes an expression that goes on at next, and returns where it begins. tail says that next is the end of the
// rule. The expression must match something.
func (e *emitter) expr(n *node, next uint32, tail bool) uint32 {
	if e.err != nil {
		return 0
	}
	switch n.kind {
	case kindEmpty:
		return next
	case kindSet:
		return e.bytes(arm{e.set(n.set), next})
	case kindLit:
		for i := len(n.lit) - 1; i >= 0; i-- {
			next = e.bytes(arm{e.set(Range(n.lit[i], n.lit[i])), next})
		}
		return next
	case kindSeq:
		for i := len(n.kids) - 1; i >= 0; i-- {
			next = e.expr(n.kids[i], next, tail)
			tail = false
		}
		return next
	case kindAlt:
		var targets []uint32
		for _, k := range n.kids {
			if to, ok := e.branch(k, next, tail); ok {
				targets = append(targets, to)
			}
		}
		return e.fork(targets)
	case kindRepeat:
		return e.repeat(n, next, tail)
	case kindRef:
		nested := e.a.b.rules[n.rule].nested
		if tail && !nested {
			return e.add(inst{op: opTail, from: uint32(n.rule)})
		}
		return e.add(inst{op: opCall, nested: nested, from: uint32(n.rule), next: next})
	}
	e.err = fmt.Errorf("grammar: expression kind %d where something must match", n.kind) // analyse rules this out
	return 0
}

// branch writes an expression that the text can do without. It is left out where nothing matches it, and guarded by
// what it needs.
func (e *emitter) branch(n *node, next uint32, tail bool) (uint32, bool) {
	d := e.a.need(n, tail)
	if d.nest >= never || d.depth >= never {
		return 0, false
	}
	to := e.expr(n, next, tail)
	if d.nest > 0 || d.depth > 0 {
		to = e.add(inst{op: opNeed, from: uint32(d.nest), to: uint32(d.depth), next: to})
	}
	return to, true
}

func (e *emitter) repeat(n *node, next uint32, tail bool) uint32 {
	body := n.kids[0]
	switch {
	case !counted(n) && n.max == Unbounded:
		// The fork is written before the body that returns to it.
		again := e.add(inst{op: opFork})
		to, ok := e.branch(body, again, false)
		if !ok {
			return next // min is 0, or the expression would not match anything
		}
		e.setFork(again, []uint32{to, next})
		if n.min == 1 {
			return to
		}
		return again
	case !counted(n):
		targets := []uint32{next}
		if to, ok := e.branch(body, next, tail); ok {
			targets = append(targets, to)
		}
		return e.fork(targets)
	}
	l := uint32(len(e.loops))
	e.loops = append(e.loops, loop{n.min, n.max, 0, next})
	to, ok := e.branch(body, e.add(inst{op: opAgain, from: l}), false)
	if !ok {
		return next
	}
	e.loops[l].body = to
	begin := e.add(inst{op: opLoop, from: l})
	if n.min == 0 {
		return e.fork([]uint32{begin, next})
	}
	return begin
}

func (e *emitter) fork(targets []uint32) uint32 {
	if len(targets) == 1 {
		return targets[0]
	}
	f := e.add(inst{op: opFork})
	e.setFork(f, targets)
	return f
}

// setFork makes f go on at each target. Targets that match a byte are joined into one, which makes one thread of many
// and leaves a deterministic expression with one thread.
func (e *emitter) setFork(f uint32, targets []uint32) {
	if e.err != nil {
		return
	}
	var rest []uint32
	from := uint32(len(e.arms))
	for _, t := range targets {
		if i := e.insts[t]; i.op == opBytes {
			e.arms = append(e.arms, e.arms[i.from:i.to]...)
		} else {
			rest = append(rest, t)
		}
	}
	arms := inst{op: opBytes, from: from, to: uint32(len(e.arms))}
	switch {
	case len(rest) == 0:
		e.insts[f] = arms
		return
	case arms.from < arms.to:
		rest = append(rest, e.add(arms))
	}
	at := uint32(len(e.targets))
	e.targets = append(e.targets, rest...)
	e.insts[f] = inst{op: opFork, from: at, to: uint32(len(e.targets))}
}

// classes divides the bytes into classes.
func (e *emitter) classes() {
	n := 1
	for i := range e.program.sets {
		s := &e.program.sets[i]
		var in, out [256]bool
		for b := range 256 {
			if s.Has(byte(b)) {
				in[e.class[b]] = true
			} else {
				out[e.class[b]] = true
			}
		}
		var split [256]uint8
		for c := range n {
			if in[c] && out[c] {
				split[c] = uint8(n) // never 0: n is at least 1
				n++
			}
		}
		for b := range 256 {
			if c := split[e.class[b]]; c != 0 && s.Has(byte(b)) {
				e.class[b] = c
			}
		}
	}
	e.first, e.sizes = make([]byte, n), make([]int, n)
	for b := 255; b >= 0; b-- {
		e.first[e.class[b]] = byte(b)
		e.sizes[e.class[b]]++
	}
}
