package quant

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"
)

// TestCodebooks checks every codebook against the table of weights.md 2.3.
func TestCodebooks(t *testing.T) {
	iq2 := []int8{8, 25, 43}
	for _, tt := range []struct {
		name        string
		types       []Type
		entries     int
		lanes, bits int
		values      []int8
		sum         int
		even        bool   // levels of each point sum to an even number
		codes, rows string // sha256 of the codes as uint16 little-endian and of the rows as int8
	}{
		{"iq2xxs", []Type{IQ2_XXS}, 256, 8, 2, iq2, 3697703, true,
			"915952ebc4af8ddba8113583ca1316fc818843f7b825bbf1a25ae1c39bf0e16d",
			"05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54"},
		{"iq2xs", []Type{IQ2_XS}, 512, 8, 2, iq2, 8004683, true,
			"f66435966ca8d64e9e4a6e3c91e64afcf9015e700ec85962f527283ebae207b9",
			"06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de"},
		{"iq2s", []Type{IQ2_S}, 1024, 8, 2, iq2, 16519059, true,
			"e6e75e121b65e8afa5c1f92b71463cfbe217b83893f438acde22fd5db06a43f7",
			"e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88"},
		{"iq1s", []Type{IQ1_S, IQ1_M}, 2048, 8, 2, []int8{-1, 0, 1}, 44428132, false,
			"e9ffebfc997ad6023063a667c0bf4eedd8ebf7f56b3da399cbc7d1b1f7ea52c6",
			"07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a"},
		{"iq3xxs", []Type{IQ3_XXS}, 256, 4, 3, []int8{4, 12, 20, 28, 36, 44, 52, 62}, 391138, true,
			"c9678803c61b2210fbd8cbbb3f965a835409cd7d88a04d086d236261bd221d11",
			"46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d"},
		{"iq3s", []Type{IQ3_S}, 512, 4, 3, []int8{1, 3, 5, 7, 9, 11, 13, 15}, 777331, false,
			"353274c58dd7d8dc5ee960dc8fc54ff9164eaf2b49206b841cd49415cf393f81",
			"bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.types[0].Codebook()
			for _, typ := range tt.types {
				if typ.Codebook() != c {
					t.Errorf("%v has a codebook of its own", typ)
				}
			}
			if c.Name != tt.name || c.Lanes != tt.lanes || c.Bits != tt.bits || !slices.Equal(c.Values, tt.values) {
				t.Errorf("got %s of %d lanes of %d bits with the values %d", c.Name, c.Lanes, c.Bits, c.Values)
			}
			if len(c.Codes) != tt.entries {
				t.Fatalf("%d codes, want %d", len(c.Codes), tt.entries)
			}
			sum := 0
			var le []byte
			for i, code := range c.Codes {
				if i > 0 && code <= c.Codes[i-1] {
					t.Errorf("code %d, %d, is not above the one before", i, code)
				}
				if int(code)>>(c.Bits*c.Lanes) != 0 {
					t.Errorf("code %d, %d, has more than %d lanes", i, code, c.Lanes)
				}
				levels := 0
				for x := range c.Lanes {
					level := int(code) >> (c.Bits * x) & (1<<c.Bits - 1)
					if level >= len(c.Values) {
						t.Errorf("code %d, %d, has the unknown level %d", i, code, level)
					}
					levels += level
				}
				if tt.even && levels%2 != 0 {
					t.Errorf("code %d, %d: the levels sum to %d, which is odd", i, code, levels)
				}
				sum += int(code)
				le = append(le, byte(code), byte(code>>8))
			}
			if sum != tt.sum {
				t.Errorf("the codes sum to %d, want %d", sum, tt.sum)
			}
			if got := digest(le); got != tt.codes {
				t.Errorf("sha256 of the codes: got %s, want %s", got, tt.codes)
			}
			var rows []byte
			for _, v := range c.Rows() {
				rows = append(rows, byte(v))
			}
			if got := digest(rows); got != tt.rows {
				t.Errorf("sha256 of the rows: got %s, want %s", got, tt.rows)
			}
		})
	}
	n := 0
	for _, typ := range append(Types(), 4, 1<<31) {
		if typ.Codebook() != nil {
			n++
		}
	}
	if n != 7 {
		t.Errorf("%d types with a codebook, want 7", n)
	}
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
