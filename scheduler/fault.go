package scheduler

import (
	"fmt"
	"slices"
	"strings"
)

// A Fault is a way in which drivers were seen to translate kernels wrongly. It is injected by rewriting the kernels' SPIR-V
// before the driver has it, so that all that comes after is as with such a driver.
type Fault string

const (
	// NoFault leaves kernels as they are.
	NoFault Fault = ""
	// FaultShuffle makes subgroup operations that give a lane the value of others, or that reduce, return the lane's own.
	FaultShuffle Fault = "shuffle"
	// FaultInt16 makes the products of the packed scheme saturate at 16 bits, as a dot product instruction does that was
	// chosen too narrow. These are the integer products that are converted to float, alone or added up; others compute where
	// things lie in memory, and kernels that got those wrong would end the process instead of being wrong.
	FaultInt16 Fault = "int16"
	// FaultFlush makes the conversion of halves to float flush subnormal ones to zero.
	FaultFlush Fault = "fp16-flush"
	// FaultArithmetic makes every multiplication of floats an addition: nothing is right then.
	FaultArithmetic Fault = "arithmetic"
)

// Faults are the faults there are.
func Faults() []Fault { return []Fault{FaultShuffle, FaultInt16, FaultFlush, FaultArithmetic} }

// ParseFault returns the fault of a name.
func ParseFault(name string) (Fault, error) {
	f := Fault(name)
	if f == NoFault || slices.Contains(Faults(), f) {
		return f, nil
	}
	var names []string
	for _, f := range Faults() {
		names = append(names, string(f))
	}
	return f, fmt.Errorf("there is no fault %q: use %s", name, strings.Join(names, ", "))
}

// rewrite returns a module as a driver with the fault takes it: the module itself if nothing in it is concerned.
func (f Fault) rewrite(code []byte) ([]byte, error) {
	switch f {
	case NoFault:
		return code, nil
	case FaultArithmetic:
		return damage(code), nil
	}
	m, err := parseModule(code)
	if err != nil {
		return nil, err
	}
	switch f {
	case FaultShuffle:
		m.ownLane()
	case FaultInt16:
		m.saturate()
	case FaultFlush:
		m.flush()
	default:
		return nil, fmt.Errorf("no fault %q", f)
	}
	if !m.changed {
		return code, nil
	}
	return m.bytes(), nil
}

// ownLane turns what takes values of other lanes into copies of the lane's own.
func (m *spirvModule) ownLane() {
	for at, i := range m.list {
		value := 0 // the operand with the value
		switch op := i.op(); {
		case op == opBroadcast, op == opBroadcastFirst, op >= opShuffle && op <= opShuffleDown, op == opQuadBroadcast, op == opQuadSwap:
			value = 4
		case op >= opReduceFirst && op <= opReduceLast:
			value = 5 // after the operation
		}
		if value == 0 || value >= len(i) {
			continue
		}
		// The instruction keeps its length, as rewriting in a driver would not move anything.
		same := inst(opCopyObject, i[1], i[2], i[value])
		for len(same) < len(i) {
			same = append(same, 1<<16|opNop)
		}
		m.list[at], m.changed = same, true
	}
}

// saturate clamps integer products that become floats to 16 bits.
func (m *spirvModule) saturate() {
	products := map[uint32]bool{}
	var follow func(id uint32, depth int)
	follow = func(id uint32, depth int) {
		i := m.defs[id]
		if len(i) < 4 || depth == 0 {
			return
		}
		switch i.op() {
		case opIMul:
			products[id] = true
		case opBitcast, opCopyObject:
			follow(i[3], depth-1)
		case opIAdd:
			follow(i[3], depth-1)
			follow(i[4], depth-1)
		}
	}
	for _, i := range m.list {
		if i.op() == opConvertSToF {
			follow(i[3], 8)
		}
	}
	if len(products) == 0 {
		return
	}
	set := m.glsl()
	low, high := map[uint32]uint32{}, map[uint32]uint32{} // by type
	for id := range products {
		if t := m.types[id]; low[t] == 0 {
			low[t], high[t] = m.constant(t, 0xffff8000), m.constant(t, 0x7fff)
		}
	}
	m.replace(func(i instruction) []instruction {
		if i.op() != opIMul || !products[i[2]] {
			return nil
		}
		whole := m.id()
		return []instruction{
			inst(opIMul, i[1], whole, i[3], i[4]),
			inst(opExtInst, i[1], i[2], set, extSClamp, whole, low[i[1]], high[i[1]]),
		}
	})
}

// flush clears the subnormal halves of words before they are converted.
func (m *spirvModule) flush() {
	// The constants come before all functions, and so before the list is gone through.
	masks := map[uint32][3]uint32{}
	for _, i := range slices.Clone(m.list) {
		if m.unpacks(i) {
			t := m.types[i[5]]
			masks[t] = [3]uint32{m.constant(t, 0x7c007c00), m.constant(t, 0x80008000), m.constant(t, 15)}
		}
	}
	m.replace(func(i instruction) []instruction {
		if !m.unpacks(i) {
			return nil
		}
		t, w := m.types[i[5]], i[5]
		exponents, signs, fifteen := masks[t][0], masks[t][1], masks[t][2]
		e := &emitter{m: m, typ: t}
		// An exponent that is not zero carries into the sign's place, which becomes a mask of the other bits.
		carry := e.do(opBitwiseAnd, e.do(opIAdd, e.do(opBitwiseAnd, w, exponents), exponents), signs)
		keep := e.do(opISub, carry, e.do(opShiftRightLogical, carry, fifteen))
		flushed := e.do(opBitwiseAnd, w, e.do(opBitwiseOr, keep, signs))
		return append(e.out, inst(opExtInst, i[1], i[2], i[3], i[4], flushed))
	})
}
