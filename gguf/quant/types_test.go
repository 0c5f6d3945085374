package quant

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLookup(t *testing.T) {
	for _, typ := range Types() {
		got, err := Lookup(uint32(typ))
		if err != nil || got != typ {
			t.Errorf("Lookup(%d): got %v, %v", uint32(typ), got, err)
		}
		for _, name := range []string{typ.String(), strings.ToLower(typ.String())} {
			if got, err := ParseType(name); err != nil || got != typ {
				t.Errorf("ParseType(%q): got %v, %v", name, got, err)
			}
		}
		if typ.BlockSize() <= 0 || typ.BlockBytes() <= 0 {
			t.Errorf("%v: block of %d elements in %d bytes", typ, typ.BlockSize(), typ.BlockBytes())
		}
	}
	if n := len(Types()); n != 35 {
		t.Errorf("%d types, want 35", n)
	}
	for _, tt := range []struct {
		id   uint32
		want string
	}{
		{4, "Q4_2"}, {5, "Q4_3"}, {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"},
		{36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"},
		{43, "43 is unknown"}, {97, "97"}, {142, "PQ2_0"}, {143, "PTQ1_0"}, {math.MaxUint32, "4294967295"},
	} {
		_, err := Lookup(tt.id)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Lookup(%d): got %v, want an error with %q", tt.id, err, tt.want)
		}
		typ := Type(tt.id)
		if typ.Valid() || typ.BlockSize() != 0 || typ.BlockBytes() != 0 || typ.CanDequantize() || typ.CanQuantize() {
			t.Errorf("%v is taken for a type", typ)
		}
	}
	for _, name := range []string{"", "Q4_2", "q9", "type 4"} {
		if typ, err := ParseType(name); err == nil {
			t.Errorf("ParseType(%q): got %v", name, typ)
		}
	}
}

func TestRowBytes(t *testing.T) {
	for _, tt := range []struct {
		typ  Type
		n    uint64
		want uint64
		ok   bool
	}{
		{F32, 0, 0, true},
		{F32, 7, 28, true},
		{Q4_K, 2048, 1152, true},
		{Q4_K, 2047, 0, false},
		{MXFP4, 64, 34, true},
		{NVFP4, 64, 36, true},
		{F64, 1 << 60, 0, false},
		{F32, math.MaxUint64, 0, false},
		{Q1_0, math.MaxUint64 &^ 127, 2594073385365405678, true},
		{Type(4), 32, 0, false},
	} {
		got, err := tt.typ.RowBytes(tt.n)
		if (err == nil) != tt.ok || got != tt.want {
			t.Errorf("%v.RowBytes(%d): got %d, %v, want %d, %v", tt.typ, tt.n, got, err, tt.want, tt.ok)
		}
	}
}

// TestTable compares the sizes with those of the reference vectors.
func TestTable(t *testing.T) {
	dir := oracle("quant")
	if dir == "" {
		t.Skip("no reference vectors: set CALDERA_ORACLE")
	}
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index struct {
		Types map[string]struct {
			ID       uint32 `json:"type_id"`
			Elements int    `json:"block_elements"`
			Bytes    int    `json:"block_bytes"`
		} `json:"block_types"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		t.Fatal(err)
	}
	for name, want := range index.Types {
		typ, err := Lookup(want.ID)
		if err != nil || typ.String() != name || typ.BlockSize() != want.Elements || typ.BlockBytes() != want.Bytes {
			t.Errorf("id %d: got %v of %d elements in %d bytes (%v), want %s of %d in %d",
				want.ID, typ, typ.BlockSize(), typ.BlockBytes(), err, name, want.Elements, want.Bytes)
		}
	}
}
