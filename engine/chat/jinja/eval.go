package jinja

import (
	"errors"
	"fmt"
)

// A node is what statements and expressions have in common.
type node struct{ at pos }

func (n node) place() pos { return n.at }

// An expr is an expression.
type expr interface {
	place() pos
	eval(r *run, sc *scope) (Value, error)
}

// eval evaluates an expression, as a step, and gives an error its place.
func (r *run) eval(e expr, sc *scope) (Value, error) {
	if err := r.step(); err != nil {
		return nil, located(r.template.name, e.place(), err)
	}
	v, err := e.eval(r, sc)
	if err != nil {
		return nil, located(r.template.name, e.place(), err)
	}
	return v, nil
}

type (
	literal struct {
		node
		value Value
	}
	nameExpr struct {
		node
		name string
	}
	listExpr struct {
		node
		items []expr
		tuple bool
	}
	mapExpr struct {
		node
		keys, values []expr
	}
	condExpr struct {
		node
		cond, then, otherwise expr // otherwise may be nil
	}
	logicExpr struct {
		node
		operands []expr
		or       bool
	}
	notExpr struct {
		node
		of expr
	}
	signExpr struct {
		node
		op string
		of expr
	}
	// operand is one more operand of a chain, with the operator before it.
	operand struct {
		op string
		e  expr
	}
	compareExpr struct {
		node
		first expr
		rest  []operand
	}
	binaryExpr struct {
		node
		first expr
		rest  []operand
	}
	attrExpr struct {
		node
		of   expr
		name string
	}
	indexExpr struct {
		node
		of, index expr
	}
	sliceExpr struct {
		node
		of    expr
		parts [3]expr // start, stop, step; nil where left out
	}
	callExpr struct {
		node
		of   expr
		args argExprs
	}
	// filterCall is a filter as it is written down.
	filterCall struct {
		at   pos
		name string
		args argExprs
	}
	filterExpr struct {
		node
		of     expr
		filter filterCall
	}
	testExpr struct {
		node
		of   expr
		name string
		args argExprs
		not  bool
	}
	argExprs struct {
		list  []expr
		named []parameter
	}
	// parameter is a name with an expression: a default value, an argument.
	parameter struct {
		name  string
		value expr // nil for a parameter without a default
	}
)

func (e *literal) eval(*run, *scope) (Value, error) { return e.value, nil }

func (e *nameExpr) eval(r *run, sc *scope) (Value, error) { return r.lookup(sc, e.name), nil }

func (e *listExpr) eval(r *run, sc *scope) (Value, error) {
	items, err := r.evalAll(e.items, sc)
	return &List{items: items, tuple: e.tuple}, err
}

func (r *run) evalAll(exprs []expr, sc *scope) ([]Value, error) {
	if err := r.alloc(valueCost * len(exprs)); err != nil {
		return nil, err
	}
	values := make([]Value, len(exprs))
	for i, e := range exprs {
		var err error
		if values[i], err = r.eval(e, sc); err != nil {
			return nil, err
		}
	}
	return values, nil
}

func (e *mapExpr) eval(r *run, sc *scope) (Value, error) {
	m := NewMap()
	for i := range e.keys {
		k, err := r.eval(e.keys[i], sc)
		if err != nil {
			return nil, err
		}
		v, err := r.eval(e.values[i], sc)
		if err != nil {
			return nil, err
		}
		if err := r.set(m, k, v); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (e *condExpr) eval(r *run, sc *scope) (Value, error) {
	cond, err := r.eval(e.cond, sc)
	switch {
	case err != nil:
		return nil, err
	case truth(cond):
		return r.eval(e.then, sc)
	case e.otherwise != nil:
		return r.eval(e.otherwise, sc)
	}
	return undefined{"the condition was false and there is no else"}, nil
}

func (e *logicExpr) eval(r *run, sc *scope) (v Value, err error) {
	for _, o := range e.operands {
		if v, err = r.eval(o, sc); err != nil || truth(v) == e.or {
			break
		}
	}
	return v, err
}

func (e *notExpr) eval(r *run, sc *scope) (Value, error) {
	v, err := r.eval(e.of, sc)
	if err != nil {
		return nil, err
	}
	return Bool(!truth(v)), nil
}

func (e *signExpr) eval(r *run, sc *scope) (Value, error) {
	v, err := r.eval(e.of, sc)
	if err != nil {
		return nil, err
	}
	return sign(e.op, v)
}

func (e *compareExpr) eval(r *run, sc *scope) (Value, error) {
	left, err := r.eval(e.first, sc)
	if err != nil {
		return nil, err
	}
	for _, o := range e.rest {
		right, err := r.eval(o.e, sc)
		if err != nil {
			return nil, err
		}
		if ok, err := r.compare(o.op, left, right); err != nil || !ok {
			return Bool(false), err
		}
		left = right
	}
	return Bool(true), nil
}

func (e *binaryExpr) eval(r *run, sc *scope) (Value, error) {
	if e.rest[0].op == "~" {
		return e.join(r, sc)
	}
	left, err := r.eval(e.first, sc)
	if err != nil {
		return nil, err
	}
	for _, o := range e.rest {
		right, err := r.eval(o.e, sc)
		if err != nil {
			return nil, err
		}
		if left, err = r.binary(o.op, left, right); err != nil {
			return nil, located(r.template.name, o.e.place(), err)
		}
	}
	return left, nil
}

// join evaluates a ~ b ~ c.
func (e *binaryExpr) join(r *run, sc *scope) (Value, error) {
	b := builder{r: r}
	for i := range len(e.rest) + 1 {
		o := e.first
		if i > 0 {
			o = e.rest[i-1].e
		}
		v, err := r.eval(o, sc)
		if err == nil {
			err = r.print(&b, v)
		}
		if err != nil {
			return nil, err
		}
	}
	return b.done(), nil
}

func (e *attrExpr) eval(r *run, sc *scope) (Value, error) {
	of, err := r.eval(e.of, sc)
	if err != nil {
		return nil, err
	}
	return r.attr(of, e.name)
}

func (e *indexExpr) eval(r *run, sc *scope) (Value, error) {
	of, err := r.eval(e.of, sc)
	if err != nil {
		return nil, err
	}
	i, err := r.eval(e.index, sc)
	if err != nil {
		return nil, err
	}
	return r.index(of, i)
}

func (e *sliceExpr) eval(r *run, sc *scope) (Value, error) {
	of, err := r.eval(e.of, sc)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int
	for i, p := range e.parts {
		if p == nil {
			continue
		}
		v, err := r.eval(p, sc)
		if err != nil {
			return nil, err
		}
		switch v := v.(type) {
		case None:
		case Int:
			n := int(v)
			bounds[i] = &n
		default:
			return nil, fmt.Errorf("a slice is made with whole numbers, not %s", v.typeName())
		}
	}
	return r.slice(of, bounds)
}

// args are the arguments of a call.
type args struct {
	list  []Value
	named []namedValue
}

type namedValue struct {
	name  string
	value Value
}

func (a *argExprs) eval(r *run, sc *scope) (args, error) {
	var out args
	var err error
	if out.list, err = r.evalAll(a.list, sc); err != nil {
		return out, err
	}
	for _, q := range a.named {
		v, err := r.eval(q.value, sc)
		if err != nil {
			return out, err
		}
		out.named = append(out.named, namedValue{q.name, v})
	}
	return out, nil
}

func (e *callExpr) eval(r *run, sc *scope) (Value, error) {
	of, err := r.eval(e.of, sc)
	if err != nil {
		return nil, err
	}
	a, err := e.args.eval(r, sc)
	if err != nil {
		return nil, err
	}
	return r.call(of, a)
}

// call calls a value.
func (r *run) call(of Value, a args) (Value, error) {
	switch of := of.(type) {
	case *function:
		return of.call(r, a)
	case *macro:
		return of.call(r, a, nil)
	case *object:
		if of.call != nil {
			return of.call(r, a)
		}
	case undefined:
		return nil, errors.New(of.what)
	}
	return nil, fmt.Errorf("a %s cannot be called", of.typeName())
}

func (e *filterExpr) eval(r *run, sc *scope) (Value, error) {
	of, err := r.eval(e.of, sc)
	if err != nil {
		return nil, err
	}
	return r.applyFilter(&e.filter, of, sc)
}

func (r *run) applyFilter(f *filterCall, of Value, sc *scope) (Value, error) {
	a, err := f.args.eval(r, sc)
	if err != nil {
		return nil, err
	}
	return r.filter(f.name, of, a)
}

func (e *testExpr) eval(r *run, sc *scope) (Value, error) {
	of, err := r.eval(e.of, sc)
	if err != nil {
		return nil, err
	}
	a, err := e.args.eval(r, sc)
	if err != nil {
		return nil, err
	}
	ok, err := r.test(e.name, of, a)
	return Bool(ok != e.not), err
}
