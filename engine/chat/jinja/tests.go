package jinja

import (
	"errors"
	"fmt"
)

// A test is what stands after "is". Its parameters are names with spaces between them, see bind.
type test struct {
	params string
	call   func(r *run, v Value, a []Value) (bool, error)
}

// test applies a test by its name.
func (r *run) test(name string, v Value, a args) (bool, error) {
	t, ok := r.template.lang.tests[name]
	if !ok {
		return false, fmt.Errorf("there is no test '%.40s'", name)
	}
	values, err := a.bind(name, t.params)
	if err != nil {
		return false, err
	}
	return t.call(r, v, values)
}

// is makes a test of a question about the value alone.
func is(f func(v Value) bool) test {
	return test{call: func(_ *run, v Value, _ []Value) (bool, error) { return f(v), nil }}
}

// isType makes a test of a value's type.
func isType[T Value]() test {
	return is(func(v Value) bool { _, ok := v.(T); return ok })
}

// compares makes a test of a comparison.
func compares(op string) test {
	return test{"other!", func(r *run, v Value, a []Value) (bool, error) { return r.compare(op, v, a[0]) }}
}

// modulo makes a test of what is left of a whole number by a division.
func modulo(params string, divisor, rest int64) test {
	return test{params, func(_ *run, v Value, a []Value) (bool, error) {
		by := divisor
		if len(a) > 0 {
			n, err := intArg(a[0], 0)
			if err != nil {
				return false, err
			}
			by = int64(n)
		}
		if err := isUndefined(v); err != nil {
			return false, err
		}
		n, ok := whole(v)
		if !ok {
			return false, fmt.Errorf("a whole number is wanted, not a %s", v.typeName())
		}
		if by == 0 {
			return false, errors.New("division by zero")
		}
		return ((n%by)+by)%by == rest, nil
	}}
}

// tests are all that there are.
var tests = map[string]test{
	"!=":      compares("!="),
	"<":       compares("<"),
	"<=":      compares("<="),
	"==":      compares("=="),
	">":       compares(">"),
	">=":      compares(">="),
	"boolean": isType[Bool](),
	"callable": is(func(v Value) bool {
		switch v := v.(type) {
		case *function, *macro:
			return true
		case *object:
			return v.call != nil
		}
		return false
	}),
	"defined":     is(func(v Value) bool { _, missing := v.(undefined); return !missing }),
	"divisibleby": modulo("num!", 0, 0),
	"eq":          compares("=="),
	"equalto":     compares("=="),
	"even":        modulo("", 2, 0),
	"false":       is(func(v Value) bool { return v == Value(Bool(false)) }),
	"filter":      {call: named(func(l *names, name string) bool { _, ok := l.filters[name]; return ok })},
	"float":       isType[Float](),
	"ge":          compares(">="),
	"greaterthan": compares(">"),
	"gt":          compares(">"),
	"in":          compares("in"),
	"integer":     is(isInteger),
	"iterable": is(func(v Value) bool {
		switch v.(type) {
		case undefined, Text, *List, *Map, *loop:
			return true
		}
		return false
	}),
	"le":       compares("<="),
	"lessthan": compares("<"),
	"lower":    onCase(isLower),
	"lt":       compares("<"),
	"mapping":  isType[*Map](),
	"ne":       compares("!="),
	"none":     isType[None](),
	"number": is(func(v Value) bool {
		_, ok := float(v)
		return ok
	}),
	"odd": modulo("", 2, 1),
	"sameas": {"other!", func(r *run, v Value, a []Value) (bool, error) {
		if v.typeName() != a[0].typeName() {
			return false, nil
		}
		switch v := v.(type) {
		case *List:
			return v == a[0], nil
		case *Map:
			return v == a[0], nil
		}
		return r.equal(v, a[0], 0)
	}},
	"sequence": is(func(v Value) bool {
		switch v.(type) {
		case undefined, Text, *List, *Map:
			return true
		}
		return false
	}),
	"string":    isType[Text](),
	"test":      {call: named(func(l *names, name string) bool { _, ok := l.tests[name]; return ok })},
	"true":      is(func(v Value) bool { return v == Value(Bool(true)) }),
	"undefined": isType[undefined](),
	"upper":     onCase(isUpper),
}

func isInteger(v Value) bool {
	switch v.(type) {
	case Int, Big:
		return true
	}
	return false
}

// named makes a test of whether there is a filter or test with a name.
func named(has func(l *names, name string) bool) func(*run, Value, []Value) (bool, error) {
	return func(r *run, v Value, _ []Value) (bool, error) {
		t, ok := v.(Text)
		return ok && has(r.template.lang, t.s), nil
	}
}

// onCase makes a test of a string's case; other values become strings first.
func onCase(is func(s string) bool) test {
	return test{call: func(r *run, v Value, _ []Value) (bool, error) {
		t, err := r.text(v)
		if err == nil {
			err = r.looked(slowly * len(t.s))
		}
		return is(t.s), err
	}}
}
