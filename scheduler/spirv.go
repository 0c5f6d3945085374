package scheduler

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Opcodes and others of SPIR-V 1.5.
const (
	opNop                = 0
	opExtInstImport      = 11
	opExtInst            = 12
	opMemoryModel        = 14
	opConstant           = 43
	opFunction           = 54
	opCopyObject         = 83
	opConvertSToF        = 111
	opCompositeConstruct = 80
	opBitcast            = 124
	opIAdd               = 128
	opISub               = 130
	opFSub               = 131
	opIMul               = 132
	opShiftRightLogical  = 194
	opBitwiseOr          = 197
	opBitwiseAnd         = 199
	opShiftLeftLogical   = 196
	opBitwiseXor         = 198
	opTypeVector         = 23
	opBroadcast          = 337 // OpGroupNonUniformBroadcast, and likewise below
	opBroadcastFirst     = 338
	opShuffle            = 345
	opShuffleDown        = 348
	opReduceFirst        = 349 // IAdd
	opReduceLast         = 364 // LogicalXor
	opQuadBroadcast      = 365
	opQuadSwap           = 366

	extUnpackHalf = 62 // of GLSL.std.450
	extSClamp     = 45

	spirvMagic  = 0x07230203
	spirvHeader = 5 // words; the fourth is the bound of the ids
	glslSet     = "GLSL.std.450"
)

// An instruction is its words, the first with its length and opcode.
type instruction []uint32

func (i instruction) op() uint32 { return i[0] & 0xffff }

func inst(op uint32, words ...uint32) instruction {
	return append(instruction{uint32(len(words)+1)<<16 | op}, words...)
}

// A spirvModule is a module that is rewritten.
type spirvModule struct {
	header  []uint32
	list    []instruction
	types   map[uint32]uint32      // of the ids that instructions which are looked for define
	defs    map[uint32]instruction // by the id that they define, likewise
	consts  map[[2]uint32]uint32   // ids of constants that were added, by type and value
	set     uint32                 // id of GLSL.std.450, 0 where the module does not import it
	changed bool
}

func parseModule(code []byte) (*spirvModule, error) {
	if len(code)%4 != 0 || len(code) < 4*spirvHeader || binary.LittleEndian.Uint32(code) != spirvMagic {
		return nil, errors.New("not SPIR-V")
	}
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	m := &spirvModule{header: slices.Clone(words[:spirvHeader]), types: map[uint32]uint32{}, defs: map[uint32]instruction{}, consts: map[[2]uint32]uint32{}}
	for rest := words[spirvHeader:]; len(rest) > 0; {
		n := int(rest[0] >> 16)
		if n == 0 || n > len(rest) {
			return nil, fmt.Errorf("SPIR-V: an instruction of %d words where %d are left", n, len(rest))
		}
		i := instruction(slices.Clone(rest[:n]))
		rest = rest[n:]
		m.list = append(m.list, i)
		if i.op() == opExtInstImport && n > 2 && importName(i[2:]) == glslSet {
			m.set = i[1]
		}
		if hasResult(i) {
			m.types[i[2]], m.defs[i[2]] = i[1], i
		}
	}
	return m, nil
}

// hasResult reports whether an instruction's first two operands are a type and an id, for those that compute: beside them
// the instructions that only declare, and those without a result, are few and known.
func hasResult(i instruction) bool {
	op := i.op()
	switch {
	case len(i) < 3:
		return false
	case op == opExtInst, op == opConstant, op >= 41 && op <= 52, op == 55, op == 57, op == 59, op == 61, op >= 65 && op <= 70, op >= 77 && op <= 84:
		return true
	case op >= 109 && op <= 215, op >= 227 && op <= 242 && op != 228, op == 245, op >= 333 && op <= 366:
		return true
	}
	return false
}

func importName(words []uint32) string {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	name, _, _ := strings.Cut(string(b), "\x00")
	return name
}

func (m *spirvModule) bytes() []byte {
	var b []byte
	for _, w := range m.header {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	for _, i := range m.list {
		for _, w := range i {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
	}
	return b
}

// id is a new one.
func (m *spirvModule) id() uint32 {
	m.header[3]++
	return m.header[3] - 1
}

// glsl is the id of GLSL.std.450, which is imported if need be.
func (m *spirvModule) glsl() uint32 {
	if m.set != 0 {
		return m.set
	}
	m.set = m.id()
	words := []uint32{m.set}
	for c := range slices.Chunk(append([]byte(glslSet), make([]byte, 4-len(glslSet)%4)...), 4) {
		words = append(words, binary.LittleEndian.Uint32(c))
	}
	m.insert(opMemoryModel, inst(opExtInstImport, words...))
	return m.set
}

// constant is the id of a constant of a type of 32 bits.
func (m *spirvModule) constant(typ, value uint32) uint32 {
	key := [2]uint32{typ, value}
	if m.consts[key] == 0 {
		m.consts[key] = m.id()
		m.insert(opFunction, inst(opConstant, typ, m.consts[key], value))
	}
	return m.consts[key]
}

// insert puts an instruction before the first with an opcode.
func (m *spirvModule) insert(before uint32, i instruction) {
	at := slices.IndexFunc(m.list, func(x instruction) bool { return x.op() == before })
	m.list = slices.Insert(m.list, max(at, 0), i)
}

// An emitter appends instructions whose results are of one type.
type emitter struct {
	m   *spirvModule
	typ uint32
	out []instruction
}

// do appends an instruction and returns the id of its result.
func (e *emitter) do(op uint32, operands ...uint32) uint32 {
	id := e.m.id()
	e.out = append(e.out, inst(op, append([]uint32{e.typ, id}, operands...)...))
	return id
}

// unpacks reports whether an instruction converts a word of two halves.
func (m *spirvModule) unpacks(i instruction) bool {
	return i.op() == opExtInst && len(i) == 6 && i[3] == m.set && i[4] == extUnpackHalf && m.types[i[5]] != 0
}

// replace puts other instructions in the place of those that with returns some for.
func (m *spirvModule) replace(with func(instruction) []instruction) {
	var list []instruction
	for _, i := range m.list {
		if r := with(i); len(r) > 0 {
			list, m.changed = append(list, r...), true
			continue
		}
		list = append(list, i)
	}
	m.list = list
}
