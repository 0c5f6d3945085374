package shaders

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
)

// count returns how many of a module's instructions have an opcode.
func count(t *testing.T, module string, opcode uint32) (n int) {
	t.Helper()
	_, code, err := Lookup(module)
	if err != nil {
		t.Fatal(err)
	}
	for i := 20; i+4 <= len(code); {
		w := binary.LittleEndian.Uint32(code[i:])
		if w>>16 == 0 {
			t.Fatalf("%s: broken SPIR-V at byte %d", module, i)
		}
		if w&0xffff == opcode {
			n++
		}
		i += int(w>>16) * 4
	}
	return n
}

// A block type's load32 has no loops left: a driver may count those of an invocation (Profile.MaxLoops), and ops
// count a group of 32 weights as one. Nor has it branches, over which some drivers compile for minutes.
func TestLoad32IsStraight(t *testing.T) {
	const opLoopMerge, opSelectionMerge = 246, 247
	for _, typ := range kernelTypes {
		for _, of := range []struct{ module, model string }{
			{weightModule("matmul", typ, rowScheme), weightModule("matmul", quant.F32, rowScheme)},
			{weightModule("matmul", typ, lanesScheme), weightModule("matmul", quant.F32, lanesScheme)},
			{embedModule(typ), embedModule(quant.F32)},
		} {
			for name, opcode := range map[string]uint32{"loops": opLoopMerge, "branches": opSelectionMerge} {
				if n, want := count(t, of.module, opcode), count(t, of.model, opcode); n != want {
					t.Errorf("%s has %d %s, %s has %d", of.module, n, name, of.model, want)
				}
			}
		}
		// Codes (common/codes.glsl) have loops that are unrolled later, which a branch inside would prevent.
		texel, row := weightModule("matmul", typ, texelScheme), weightModule("matmul", quant.F32, rowScheme)
		if n, want := count(t, texel, opSelectionMerge), count(t, row, opSelectionMerge); n != want {
			t.Errorf("%s has %d branches, %s has %d", texel, n, row, want)
		}
	}
}

// The table that kernels read holds a codebook's points as words of 16 bits, and types with the same codebook share it.
func TestCodebookTable(t *testing.T) {
	tables := map[*Buffer][]string{}
	for _, typ := range kernelTypes {
		c := typ.Codebook()
		if c == nil {
			if len(extras(0, Matrix{Type: typ, Scale: View{Buf: &Buffer{Size: 4}, Len: 4}})) > 0 != HasScale(typ) {
				t.Errorf("%v: extra operands", typ)
			}
			continue
		}
		b := extras(0, Matrix{Type: typ})[0].Buf
		tables[b] = append(tables[b], typ.String())
		if b.Kind != Table || b.Size != int64(2*len(c.Codes)) || b.Size%4 != 0 || int64(len(b.Content)) != b.Size {
			t.Fatalf("%v: a %v of %d bytes holds %d bytes for %d points", typ, b.Kind, b.Size, len(b.Content), len(c.Codes))
		}
		for i, code := range c.Codes {
			if got := binary.LittleEndian.Uint16(b.Content[2*i:]); got != code {
				t.Fatalf("%v: point %d is %#x in the table, %#x in the codebook", typ, i, got, code)
			}
		}
	}
	if len(tables) != 6 {
		t.Errorf("%d tables, want 6, as IQ1_S and IQ1_M share one", len(tables))
	}
	for _, types := range tables {
		if len(types) > 1 && strings.Join(types, " ") != "IQ1_S IQ1_M" {
			t.Errorf("%v share a table", types)
		}
	}
}
