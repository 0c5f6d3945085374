package scheduler

import "slices"

// wholeHalves returns a module in which halves become floats by integer arithmetic and a subtraction instead of the driver's
// conversion, for drivers that flush subnormal halves to zero; the module itself if it converts none. Both conversions give the
// same values.
func wholeHalves(code []byte) ([]byte, error) {
	m, err := parseModule(code)
	if err != nil {
		return nil, err
	}
	// The constants come before all functions, and so before the list is gone through.
	type constants struct{ magnitude, sign, exponent, one, thirteen, fifteen, sixteen, zero, bias, least, lowest uint32 }
	by := map[uint32]*constants{}
	for _, i := range slices.Clone(m.list) {
		if !m.unpacks(i) {
			continue
		}
		t, float := m.types[i[5]], m.component(i[1])
		if by[t] != nil || float == 0 {
			continue
		}
		by[t] = &constants{
			magnitude: m.constant(t, 0x7fff), sign: m.constant(t, 0x8000), exponent: m.constant(t, 0x7c00), one: m.constant(t, 112<<23),
			thirteen: m.constant(t, 13), fifteen: m.constant(t, 15), sixteen: m.constant(t, 16), zero: m.constant(t, 0),
			lowest: m.constant(t, 0x400),
			bias:   m.constant(t, 113<<23), least: m.constant(float, 113<<23), // 2^-14, as a word and as a float
		}
	}
	m.replace(func(i instruction) []instruction {
		if !m.unpacks(i) {
			return nil
		}
		t := m.types[i[5]]
		c, float := by[t], m.component(i[1])
		if c == nil || float == 0 {
			return nil
		}
		e := &emitter{m: m, typ: t}
		as := func(typ uint32, op uint32, operands ...uint32) uint32 {
			e.typ = typ
			defer func() { e.typ = t }()
			return e.do(op, operands...)
		}
		half := func(h uint32) uint32 {
			size := e.do(opBitwiseAnd, h, c.magnitude)
			shifted := e.do(opShiftLeftLogical, size, c.thirteen)
			// masked is a value where adding to the size carries into the sign's place, and else 0.
			masked := func(value, exponents, add uint32) uint32 {
				carry := e.do(opBitwiseAnd, e.do(opIAdd, exponents, add), c.sign)
				return e.do(opBitwiseAnd, value, e.do(opISub, c.zero, e.do(opShiftRightLogical, carry, c.fifteen)))
			}
			exponent := e.do(opBitwiseAnd, size, c.exponent)
			// The largest exponent, of infinities and what is no number, becomes the largest.
			normal := e.do(opIAdd, e.do(opIAdd, shifted, c.one), masked(c.one, exponent, c.lowest))
			// With the exponent of the smallest normal half, of which there is then one too much.
			more := as(float, opBitcast, e.do(opIAdd, shifted, c.bias))
			subnormal := e.do(opBitcast, as(float, opFSub, more, c.least))
			// The first where the exponent is not zero.
			value := e.do(opBitwiseXor, subnormal, masked(e.do(opBitwiseXor, normal, subnormal), exponent, c.exponent))
			sign := e.do(opShiftLeftLogical, e.do(opBitwiseAnd, h, c.sign), c.sixteen)
			return as(float, opBitcast, e.do(opBitwiseOr, value, sign))
		}
		low := half(i[5])
		high := half(e.do(opShiftRightLogical, i[5], c.sixteen))
		return append(e.out, inst(opCompositeConstruct, i[1], i[2], low, high))
	})
	if !m.changed {
		return code, nil
	}
	return m.bytes(), nil
}

// component is the type of the components of a vector type, 0 if it is none.
func (m *spirvModule) component(vector uint32) uint32 {
	for _, x := range m.list {
		if x.op() == opTypeVector && len(x) == 4 && x[1] == vector {
			return x[2]
		}
		if x.op() == opFunction {
			break
		}
	}
	return 0
}
