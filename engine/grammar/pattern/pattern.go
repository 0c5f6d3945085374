// Package pattern compiles regular expressions to grammar expressions.
//
// The syntax is that of Go's package regexp/syntax (RE2) without word boundaries and the flag m. Where JSON Schema's
// dialect, ECMA 262, gives the same text another meaning, RE2's holds: `.` excludes only the newline, `\s` only ASCII
// space, and `\uXXXX`, look-around and back-references are errors.
//
// Several patterns, a length and a forbidden string can hold at once. They are joined in one deterministic automaton
// over characters, so that the text is read in one way, and written as one rule for each of its states.
package pattern

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/calderaml/caldera/engine/grammar"
)

// A Pattern is a regular expression.
type Pattern struct {
	Source string
	// Whole says that the expression must match the whole text; otherwise it must match somewhere in it, as JSON
	// Schema's patterns do.
	Whole bool
}

// A Constraint is what a text must fulfil.
type Constraint struct {
	Patterns []Pattern // all of them
	// Min and Max bound the number of characters (code points). Max can be grammar.Unbounded.
	Min, Max int
	// Avoid is an ASCII string that does not occur in the text, unless it is empty.
	Avoid string
}

// Compile returns the expression of the texts that fulfil a constraint, with characters written by encode. The error
// is an *Error, a *grammar.LimitError or that of the context.
func Compile(ctx context.Context, b *grammar.Builder, c Constraint, encode Encoder) (grammar.Expr, error) {
	d := &dfa{ctx: ctx, b: b, c: c, encode: encode, ids: map[string]int{}, exprs: map[string]grammar.Expr{}}
	for _, p := range c.Patterns {
		prog, err := parse(p.Source, p.Whole)
		if err != nil {
			return grammar.Expr{}, &Error{p.Source, err}
		}
		d.progs = append(d.progs, prog)
	}
	d.classify()
	e, err := d.build()
	if err != nil && len(c.Patterns) > 0 && !errors.Is(err, ctx.Err()) {
		err = &Error{c.Patterns[0].Source, err}
	}
	return e, err
}

// Whole is Compile for one regular expression that matches the whole text, as raw UTF-8.
func Whole(ctx context.Context, b *grammar.Builder, source string) (grammar.Expr, error) {
	c := Constraint{Patterns: []Pattern{{source, true}}, Max: grammar.Unbounded}
	return Compile(ctx, b, c, Raw)
}

type dfa struct {
	ctx    context.Context
	b      *grammar.Builder
	c      Constraint
	encode Encoder
	progs  []*syntax.Prog

	// The characters fall into classes that nothing tells apart.
	classes [][]grammar.RuneRange

	states []dfaState
	rules  []grammar.Rule
	ids    map[string]int // by key
	exprs  map[string]grammar.Expr
	work   int
}

// A dfaState is a place in each pattern, in the forbidden string, and a count of characters.
type dfaState struct {
	progs []progState
	count int // up to Max, or up to Min when there is no Max
	avoid int // characters of Avoid that the text so far ends with
}

// A progState is a set of instructions that each wait for a character.
type progState struct {
	pcs   []uint32
	ends  bool // the pattern is found if the text ends here
	found bool // it is found whatever comes
}

// classify divides the characters into classes.
func (d *dfa) classify() {
	var tests []*syntax.Inst
	seen := map[string]bool{}
	cuts := []rune{0}
	cut := func(r rune) { cuts = append(cuts, r) }
	for _, p := range d.progs {
		for i := range p.Inst {
			in := &p.Inst[i]
			switch in.Op {
			case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			default:
				continue
			}
			key := fmt.Sprint(in.Op, in.Arg, in.Rune)
			if seen[key] {
				continue
			}
			seen[key] = true
			tests = append(tests, in)
			runes := in.Rune
			if len(runes) == 1 {
				// One character, with the flag of folding any of those that differ from it in case.
				for _, r := range folded(runes[0]) {
					cut(r)
					cut(r + 1)
				}
				continue
			}
			for i := 0; i+1 < len(runes); i += 2 {
				cut(runes[i])
				cut(runes[i+1] + 1)
			}
		}
	}
	cut('\n')
	cut('\n' + 1)
	for _, r := range d.c.Avoid {
		cut(r)
		cut(r + 1)
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	by := map[string]int{}
	for i, lo := range cuts {
		hi := rune(0x10ffff)
		if i+1 < len(cuts) {
			hi = cuts[i+1] - 1
		}
		if lo > hi || d.work > maxWork {
			continue // build reports the second
		}
		key := make([]byte, 0, len(tests)/8+5)
		var bits byte
		for j, in := range tests {
			bits <<= 1
			if in.MatchRune(lo) {
				bits |= 1
			}
			if j%8 == 7 {
				key = append(key, bits)
			}
		}
		key = append(key, bits)
		if strings.ContainsRune(d.c.Avoid, lo) {
			key = binary.NativeEndian.AppendUint32(key, uint32(lo))
		}
		d.work += len(tests)
		c, ok := by[string(key)]
		if !ok {
			c = len(d.classes)
			by[string(key)] = c
			d.classes = append(d.classes, nil)
		}
		d.classes[c] = append(d.classes[c], grammar.RuneRange{Lo: lo, Hi: hi})
	}
	// Surrogates are no characters, and a class of them alone is none.
	for i := range d.classes {
		d.classes[i] = grammar.Normalize(d.classes[i])
	}
	d.classes = slices.DeleteFunc(d.classes, func(c []grammar.RuneRange) bool { return len(c) == 0 })
}

// build makes the states, beginning with the first, and a rule of each.
func (d *dfa) build() (grammar.Expr, error) {
	first := dfaState{progs: make([]progState, len(d.progs))}
	for i, p := range d.progs {
		first.progs[i] = d.closure(p, []uint32{uint32(p.Start)}, true)
	}
	root := d.state(first)
	for i := 0; i < len(d.states); i++ {
		if err := d.ok(); err != nil {
			return grammar.Expr{}, err
		}
		d.define(i)
	}
	if err := d.ok(); err != nil {
		return grammar.Expr{}, err
	}
	return grammar.Ref(d.rules[root]), nil
}

func (d *dfa) ok() error {
	switch {
	case d.ctx.Err() != nil:
		return d.ctx.Err()
	case d.b.Err() != nil:
		return d.b.Err()
	case len(d.states) > maxStates:
		return &grammar.LimitError{What: "states of a pattern", Limit: maxStates}
	case d.work > maxWork:
		return &grammar.LimitError{What: "steps for a pattern", Limit: maxWork}
	}
	return nil
}

// state returns the index of a state.
func (d *dfa) state(s dfaState) int {
	key := binary.AppendUvarint(nil, uint64(s.count))
	key = binary.AppendUvarint(key, uint64(s.avoid))
	for _, p := range s.progs {
		flags := byte(0)
		if p.ends {
			flags |= 1
		}
		if p.found {
			flags |= 2
		}
		key = append(key, flags)
		key = binary.AppendUvarint(key, uint64(len(p.pcs)))
		for _, pc := range p.pcs {
			key = binary.AppendUvarint(key, uint64(pc))
		}
	}
	i, ok := d.ids[string(key)]
	if !ok {
		i = len(d.states)
		d.ids[string(key)] = i
		d.states = append(d.states, s)
		d.rules = append(d.rules, d.b.Rule("pattern"))
	}
	return i
}

// define writes the rule of a state: a character and the state it leads to, for each of the states.
func (d *dfa) define(i int) {
	s := d.states[i]
	var order []int
	ranges := map[int][]grammar.RuneRange{}
	for _, class := range d.classes {
		next, ok := d.step(s, class[0].Lo)
		if !ok {
			continue
		}
		to := d.state(next)
		if ranges[to] == nil {
			order = append(order, to)
		}
		ranges[to] = append(ranges[to], class...)
	}
	var alts []grammar.Expr
	for _, to := range order {
		alts = append(alts, grammar.Seq(d.chars(ranges[to]), grammar.Ref(d.rules[to])))
	}
	if d.ends(s) {
		alts = append(alts, grammar.Expr{})
	}
	d.b.Define(d.rules[i], grammar.Alt(alts...))
}

// inlineSize is the size up to which the expression of a set of characters is written where it is used.
const inlineSize = 24

// chars returns the expression of a set of characters.
func (d *dfa) chars(ranges []grammar.RuneRange) grammar.Expr {
	ranges = grammar.Normalize(ranges)
	key := fmt.Sprint(ranges)
	e, ok := d.exprs[key]
	if !ok {
		if e = d.encode(ranges); e.Size() > inlineSize {
			e = d.b.New("characters of a pattern", e)
		}
		d.exprs[key] = e
	}
	return e
}

// step returns the state after a character.
func (d *dfa) step(s dfaState, r rune) (dfaState, bool) {
	next := dfaState{progs: make([]progState, len(d.progs)), count: s.count + 1}
	switch {
	case d.c.Max == grammar.Unbounded:
		next.count = min(next.count, d.c.Min)
	case next.count > d.c.Max:
		return next, false
	}
	if d.c.Avoid != "" {
		seen := d.c.Avoid[:s.avoid] + string(r)
		for k := min(len(seen), len(d.c.Avoid)); k > 0 && next.avoid == 0; k-- {
			if strings.HasSuffix(seen, d.c.Avoid[:k]) {
				next.avoid = k
			}
		}
		if next.avoid == len(d.c.Avoid) {
			return next, false
		}
	}
	for i, p := range d.progs {
		if s.progs[i].found {
			next.progs[i].found = true
			continue
		}
		// A match may begin at any character. The start is anchored by an instruction of the pattern's own.
		pcs := []uint32{uint32(p.Start)}
		for _, pc := range s.progs[i].pcs {
			if in := &p.Inst[pc]; in.MatchRune(r) {
				pcs = append(pcs, in.Out)
			}
		}
		d.work += len(s.progs[i].pcs) + 1
		next.progs[i] = d.closure(p, pcs, false)
		if q := &next.progs[i]; len(q.pcs) == 0 && !q.ends && !q.found && anchored(p) {
			return next, false
		}
	}
	return next, true
}

// anchored reports whether a match can only begin at the start of the text.
func anchored(p *syntax.Prog) bool { return p.StartCond()&syntax.EmptyBeginText != 0 }

// ends reports whether the text may end at a state.
func (d *dfa) ends(s dfaState) bool {
	for _, p := range s.progs {
		if !p.found && !p.ends {
			return false
		}
	}
	return s.count >= d.c.Min
}

// closure follows the instructions that need no character.
func (d *dfa) closure(p *syntax.Prog, pcs []uint32, begin bool) progState {
	var s progState
	// The flag tells what was reached only if the text ends here.
	seen := map[uint64]bool{}
	stack := make([]uint64, 0, len(pcs))
	visit := func(pc uint32, end bool) {
		key := uint64(pc) << 1
		if end {
			key |= 1
		}
		if !seen[key] {
			seen[key] = true
			stack = append(stack, key)
		}
	}
	for _, pc := range pcs {
		visit(pc, false)
	}
	for len(stack) > 0 {
		key := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		pc, end := uint32(key>>1), key&1 != 0
		d.work++
		switch in := &p.Inst[pc]; in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			visit(in.Out, end)
			visit(in.Arg, end)
		case syntax.InstCapture, syntax.InstNop:
			visit(in.Out, end)
		case syntax.InstEmptyWidth:
			cond := syntax.EmptyOp(in.Arg)
			if cond&syntax.EmptyBeginText != 0 && !begin {
				continue
			}
			visit(in.Out, end || cond&syntax.EmptyEndText != 0)
		case syntax.InstMatch:
			s.found = s.found || !end
			s.ends = true
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			if !end {
				s.pcs = append(s.pcs, pc)
			}
		}
	}
	if s.found {
		return progState{found: true}
	}
	slices.Sort(s.pcs)
	return s
}
