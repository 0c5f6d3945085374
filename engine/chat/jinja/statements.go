package jinja

import (
	"errors"
	"fmt"
)

// A flow is how a statement ended.
type flow uint8

const (
	flowNext flow = iota
	flowBreak
	flowContinue
)

// A stmt is a statement.
type stmt interface {
	place() pos
	exec(r *run, sc *scope) (flow, error)
}

// execAll runs statements, each as a step, and gives errors their place.
func (r *run) execAll(body []stmt, sc *scope) (flow, error) {
	for _, s := range body {
		if err := r.step(); err != nil {
			return flowNext, located(r.template.name, s.place(), err)
		}
		f, err := s.exec(r, sc)
		if err != nil {
			return flowNext, located(r.template.name, s.place(), err)
		}
		if f != flowNext {
			return f, nil
		}
	}
	return flowNext, nil
}

type (
	textStmt struct {
		node
		text string
	}
	printStmt struct {
		node
		of expr
	}
	branch struct {
		cond expr
		body []stmt
	}
	ifStmt struct {
		node
		branches  []branch
		otherwise []stmt
	}
	forStmt struct {
		node
		target          target
		over, filter    expr // filter may be nil
		body, otherwise []stmt
	}
	leaveStmt struct {
		node
		how flow
	}
	setStmt struct {
		node
		to    target
		value expr
	}
	setBlockStmt struct {
		node
		to      target
		filters []filterCall
		body    []stmt
	}
	macroStmt struct {
		node
		name   string
		params []parameter
		body   []stmt
	}
	callStmt struct {
		node
		params []parameter
		of     *callExpr
		body   []stmt
	}
	filterStmt struct {
		node
		filters []filterCall
		body    []stmt
	}
	withStmt struct {
		node
		values []parameter
		body   []stmt
	}
	// target is what a loop or set assigns to.
	target struct {
		names []targetName
		tuple bool
	}
	targetName struct{ name, attr string }
)

func (s *textStmt) exec(r *run, _ *scope) (flow, error) { return flowNext, r.out.own(s.text) }

func (s *printStmt) exec(r *run, sc *scope) (flow, error) {
	v, err := r.eval(s.of, sc)
	if err == nil {
		err = r.print(r.out, v)
	}
	return flowNext, err
}

func (s *ifStmt) exec(r *run, sc *scope) (flow, error) {
	for _, b := range s.branches {
		v, err := r.eval(b.cond, sc)
		if err != nil {
			return flowNext, err
		}
		if truth(v) {
			return r.execAll(b.body, sc)
		}
	}
	return r.execAll(s.otherwise, sc)
}

// assign sets the target to a value.
func (t *target) assign(r *run, sc *scope, v Value) error {
	if !t.tuple {
		return t.names[0].assign(r, sc, v)
	}
	items, err := r.items(v)
	if err != nil {
		return err
	}
	if len(items) != len(t.names) {
		return fmt.Errorf("%d values for %d names", len(items), len(t.names))
	}
	for i, n := range t.names {
		if err := n.assign(r, sc, items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (n *targetName) assign(r *run, sc *scope, v Value) error {
	if n.attr == "" {
		sc.set(n.name, v)
		return nil
	}
	ns, ok := r.lookup(sc, n.name).(*namespace)
	if !ok {
		return fmt.Errorf("attributes can only be set of a namespace, which '%.40s' is not", n.name)
	}
	return r.set(ns.attrs, Trusted(n.attr), v)
}

// A loop is the variable "loop".
type loop struct {
	items []Value
	i     int // of the current item
	last  []Value
	first bool // changed was not asked yet
}

func (s *forStmt) exec(r *run, sc *scope) (flow, error) {
	over, err := r.eval(s.over, sc)
	if err != nil {
		return flowNext, err
	}
	items, err := r.items(over)
	if err != nil {
		return flowNext, err
	}
	if s.filter != nil {
		kept := collector{r: r}
		for _, v := range items {
			inner := &scope{parent: sc}
			if err := s.target.assign(r, inner, v); err != nil {
				return flowNext, err
			}
			ok, err := r.eval(s.filter, inner)
			if err != nil {
				return flowNext, err
			}
			if truth(ok) {
				if err := kept.add(v); err != nil {
					return flowNext, err
				}
			}
		}
		items = kept.items
	}
	if len(items) == 0 {
		return r.execAll(s.otherwise, &scope{parent: sc})
	}
	l := &loop{items: items, first: true}
	for i, v := range items {
		if err := r.step(); err != nil {
			return flowNext, err
		}
		l.i = i
		inner := &scope{vars: []variable{{"loop", l}}, parent: sc}
		if err := s.target.assign(r, inner, v); err != nil {
			return flowNext, err
		}
		f, err := r.execAll(s.body, inner)
		if err != nil {
			return flowNext, err
		}
		if f == flowBreak {
			break
		}
	}
	return flowNext, nil
}

// attr returns what a template can ask of a loop.
func (l *loop) attr(name string) (Value, bool) {
	at := func(i int) Value {
		if i < 0 || i >= len(l.items) {
			return undefined{"there is no item there"}
		}
		return l.items[i]
	}
	switch name {
	case "index":
		return Int(l.i + 1), true
	case "index0":
		return Int(l.i), true
	case "revindex":
		return Int(len(l.items) - l.i), true
	case "revindex0":
		return Int(len(l.items) - l.i - 1), true
	case "first":
		return Bool(l.i == 0), true
	case "last":
		return Bool(l.i == len(l.items)-1), true
	case "length":
		return Int(len(l.items)), true
	case "depth": // only recursive loops have another
		return Int(1), true
	case "depth0":
		return Int(0), true
	case "previtem":
		return at(l.i - 1), true
	case "nextitem":
		return at(l.i + 1), true
	case "cycle":
		return &function{name, func(_ *run, a args) (Value, error) {
			if len(a.list) == 0 {
				return nil, errors.New("nothing to cycle through")
			}
			return a.list[l.i%len(a.list)], nil
		}}, true
	case "changed":
		return &function{name, func(r *run, a args) (Value, error) {
			same := false
			if !l.first {
				var err error
				if same, err = r.equal(&List{items: a.list}, &List{items: l.last}, 0); err != nil {
					return nil, err
				}
			}
			l.first, l.last = false, a.list
			return Bool(!same), nil
		}}, true
	}
	return nil, false
}

func (s *leaveStmt) exec(*run, *scope) (flow, error) { return s.how, nil }

func (s *setStmt) exec(r *run, sc *scope) (flow, error) {
	v, err := r.eval(s.value, sc)
	if err == nil {
		err = s.to.assign(r, sc, v)
	}
	return flowNext, err
}

// filtered runs a body with its output kept, and applies filters to that.
func (r *run) filtered(body []stmt, filters []filterCall, sc *scope) (Value, error) {
	inner := &scope{parent: sc}
	text, err := r.capture(func() error {
		_, err := r.execAll(body, inner)
		return err
	})
	if err != nil {
		return nil, err
	}
	var v Value = text
	for i := range filters {
		if v, err = r.applyFilter(&filters[i], v, inner); err != nil {
			return nil, located(r.template.name, filters[i].at, err)
		}
	}
	return v, nil
}

func (s *setBlockStmt) exec(r *run, sc *scope) (flow, error) {
	v, err := r.filtered(s.body, s.filters, sc)
	if err == nil {
		err = s.to.assign(r, sc, v)
	}
	return flowNext, err
}

func (s *filterStmt) exec(r *run, sc *scope) (flow, error) {
	v, err := r.filtered(s.body, s.filters, sc)
	if err == nil {
		err = r.print(r.out, v)
	}
	return flowNext, err
}

func (s *withStmt) exec(r *run, sc *scope) (flow, error) {
	inner := &scope{parent: sc}
	for _, q := range s.values {
		v, err := r.eval(q.value, sc)
		if err != nil {
			return flowNext, err
		}
		inner.set(q.name, v)
	}
	return r.execAll(s.body, inner)
}

// A macro is a part of the template that can be called. It sees the variables of the place where it stands.
type macro struct {
	name   string
	params []parameter
	body   []stmt
	scope  *scope
}

func (s *macroStmt) exec(_ *run, sc *scope) (flow, error) {
	sc.set(s.name, &macro{s.name, s.params, s.body, sc})
	return flowNext, nil
}

func (s *callStmt) exec(r *run, sc *scope) (flow, error) {
	of, err := r.eval(s.of.of, sc)
	if err != nil {
		return flowNext, err
	}
	a, err := s.of.args.eval(r, sc)
	if err != nil {
		return flowNext, err
	}
	m, ok := of.(*macro)
	if !ok {
		return flowNext, fmt.Errorf("a call block calls a macro, not a %s", of.typeName())
	}
	v, err := m.call(r, a, &macro{"caller", s.params, s.body, sc})
	if err == nil {
		err = r.print(r.out, v)
	}
	return flowNext, err
}

// call runs the macro. caller is the body of a call block, or nil.
func (m *macro) call(r *run, a args, caller *macro) (Value, error) {
	if len(a.list) > len(m.params) {
		return nil, fmt.Errorf("%d arguments for the %d parameters of macro '%.40s'", len(a.list), len(m.params), m.name)
	}
	inner := &scope{parent: m.scope}
	if caller != nil {
		inner.set("caller", caller)
	}
	values := make([]Value, len(m.params))
	copy(values, a.list)
	for _, n := range a.named {
		i := 0
		for i < len(m.params) && m.params[i].name != n.name {
			i++
		}
		switch {
		case i == len(m.params):
			return nil, fmt.Errorf("macro '%.40s' has no parameter '%.40s'", m.name, n.name)
		case values[i] != nil:
			return nil, fmt.Errorf("the argument '%.40s' of macro '%.40s' is there twice", n.name, m.name)
		}
		values[i] = n.value
	}
	var text Text
	err := r.deeper(func() (err error) {
		for i, q := range m.params {
			switch {
			case values[i] != nil:
			case q.value == nil:
				values[i] = undefined{fmt.Sprintf("parameter '%s' was not given", q.name)}
			default:
				if values[i], err = r.eval(q.value, inner); err != nil {
					return err
				}
			}
			inner.set(q.name, values[i])
		}
		text, err = r.capture(func() error {
			_, err := r.execAll(m.body, inner)
			return err
		})
		return err
	})
	return text, err
}
