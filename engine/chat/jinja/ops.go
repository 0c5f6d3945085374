package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
)

var errOverflow = errors.New("the number is outside of 64 bits")

// fail is the error of using something that does not exist.
func (u undefined) fail() error { return errors.New(u.what) }

// isUndefined returns the error of the first undefined value.
func isUndefined(vs ...Value) error {
	for _, v := range vs {
		if u, ok := v.(undefined); ok {
			return u.fail()
		}
	}
	return nil
}

// whole returns a whole number; True is 1, as in Python.
func whole(v Value) (int64, bool) {
	switch v := v.(type) {
	case Int:
		return int64(v), true
	case Bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// float returns any number as a floating-point one.
func float(v Value) (float64, bool) {
	if i, ok := whole(v); ok {
		return float64(i), true
	}
	switch v := v.(type) {
	case Float:
		return float64(v), true
	case Big:
		f, _ := new(big.Float).SetInt(v.n).Float64()
		return f, true
	}
	return 0, false
}

func sign(op string, v Value) (Value, error) {
	if err := isUndefined(v); err != nil {
		return nil, err
	}
	if i, ok := whole(v); ok {
		if op == "+" {
			return Int(i), nil
		}
		if i == math.MinInt64 {
			return nil, errOverflow
		}
		return Int(-i), nil
	}
	switch v := v.(type) {
	case Float:
		if op == "-" {
			v = -v
		}
		return v, nil
	case Big:
		if op == "-" {
			v = Big{new(big.Int).Neg(v.n)}
		}
		if v.n.IsInt64() {
			return Int(v.n.Int64()), nil
		}
		return v, nil
	}
	return nil, fmt.Errorf("%s does not work on a %s", op, v.typeName())
}

// binary applies an arithmetic operator, or + and * to strings and lists, or % to a format.
func (r *run) binary(op string, a, b Value) (Value, error) {
	if err := isUndefined(a, b); err != nil {
		return nil, err
	}
	if t, ok := a.(Text); ok {
		switch other, ok := b.(Text); {
		case op == "+" && ok:
			return r.concat(t, other)
		case op == "%":
			return r.percent(t, b)
		}
	}
	if op == "*" {
		if n, ok := whole(b); ok {
			if v, err := r.repeat(a, n); v != nil || err != nil {
				return v, err
			}
		} else if n, ok := whole(a); ok {
			if v, err := r.repeat(b, n); v != nil || err != nil {
				return v, err
			}
		}
	}
	if l, ok := a.(*List); ok && op == "+" {
		if other, ok := b.(*List); ok && l.tuple == other.tuple {
			if err := r.alloc(valueCost * (len(l.items) + len(other.items))); err != nil {
				return nil, err
			}
			return &List{items: slices.Concat(l.items, other.items), tuple: l.tuple}, nil
		}
	}
	x, xok := whole(a)
	y, yok := whole(b)
	if xok && yok {
		return wholeOp(op, x, y)
	}
	f, fok := float(a)
	g, gok := float(b)
	if _, ok := a.(Big); ok {
		fok = false
	}
	if _, ok := b.(Big); ok {
		gok = false
	}
	if !fok || !gok {
		return nil, fmt.Errorf("%s does not work on %s and %s", op, a.typeName(), b.typeName())
	}
	return floatOp(op, f, g)
}

// repeat repeats a string or list; it returns nil for anything else.
func (r *run) repeat(v Value, n int64) (Value, error) {
	n = max(n, 0)
	switch v := v.(type) {
	case Text:
		if len(v.s) == 0 || n == 0 {
			return Text{}, nil
		}
		if n > int64(r.limits.Output)/int64(len(v.s)) {
			return nil, &LimitError{"bytes of output", r.limits.Output}
		}
		b := builder{r: r}
		for range n {
			if err := b.text(v); err != nil {
				return nil, err
			}
			if err := r.looked(16); err != nil {
				return nil, err
			}
		}
		return b.done(), nil
	case *List:
		if len(v.items) > 0 && n > maxRange/int64(len(v.items)) {
			return nil, &LimitError{"items of a repeated list", maxRange}
		}
		if err := r.alloc(valueCost * len(v.items) * int(n)); err != nil {
			return nil, err
		}
		if len(v.items) == 0 {
			n = 0
		}
		return &List{items: slices.Repeat(v.items, int(n)), tuple: v.tuple}, nil
	}
	return nil, nil
}

func wholeOp(op string, x, y int64) (Value, error) {
	switch op {
	case "+":
		if s := x + y; (s > x) == (y > 0) {
			return Int(s), nil
		}
		return nil, errOverflow
	case "-":
		if s := x - y; (s < x) == (y > 0) {
			return Int(s), nil
		}
		return nil, errOverflow
	case "*":
		if p := new(big.Int).Mul(big.NewInt(x), big.NewInt(y)); p.IsInt64() {
			return Int(p.Int64()), nil
		}
		return nil, errOverflow
	case "**":
		if y < 0 {
			return floatOp(op, float64(x), float64(y))
		}
		if y > 63 && (x < -1 || x > 1) {
			return nil, errOverflow
		}
		if y > 63 { // of 0, 1 and -1, where only odd and even matter
			y = 2 + y%2
		}
		if p := new(big.Int).Exp(big.NewInt(x), big.NewInt(y), nil); p.IsInt64() {
			return Int(p.Int64()), nil
		}
		return nil, errOverflow
	}
	if y == 0 {
		return nil, errors.New("division by zero")
	}
	switch op {
	case "/":
		return Float(float64(x) / float64(y)), nil
	case "//", "%":
		if x == math.MinInt64 && y == -1 {
			if op == "%" {
				return Int(0), nil
			}
			return nil, errOverflow
		}
		q, m := x/y, x%y
		if m != 0 && (m < 0) != (y < 0) { // Python rounds down
			q, m = q-1, m+y
		}
		if op == "%" {
			return Int(m), nil
		}
		return Int(q), nil
	}
	return nil, fmt.Errorf("unknown operator %s", op)
}

func floatOp(op string, f, g float64) (Value, error) {
	switch op {
	case "+":
		return Float(f + g), nil
	case "-":
		return Float(f - g), nil
	case "*":
		return Float(f * g), nil
	case "**":
		p := math.Pow(f, g)
		switch {
		case f == 0 && g < 0:
			return nil, errors.New("zero cannot be raised to a negative power")
		case math.IsNaN(p) && !math.IsNaN(f) && !math.IsNaN(g):
			return nil, errors.New("the power is not a real number")
		case math.IsInf(p, 0) && !math.IsInf(f, 0) && !math.IsInf(g, 0):
			return nil, errors.New("the power is too large")
		}
		return Float(p), nil
	}
	if g == 0 {
		return nil, errors.New("division by zero")
	}
	switch op {
	case "/":
		return Float(f / g), nil
	case "//", "%":
		m := math.Mod(f, g)
		q := (f - m) / g
		if m != 0 && (m < 0) != (g < 0) { // Python rounds down
			q, m = q-1, m+g
		}
		if op == "%" {
			return Float(m), nil
		}
		return Float(math.Round(q)), nil
	}
	return nil, fmt.Errorf("unknown operator %s", op)
}
