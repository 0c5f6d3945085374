package quant

import (
	_ "embed" // for the data files
	"math/bits"
	"sync"
)

// The IQ1, IQ2 and IQ3 formats store indices into codebooks: lists of lattice
// points that were found by a search and have no closed form (weights.md 2.3).
// The lists are data files, 9 KiB together, of packed level codes in ascending
// order; all else is made from those.

// Codebook is the list of points that a codebook format stores indices into. A
// point is a row of Lanes values (8 or 4), each one of len(Values) levels. All
// slices are shared and must not be changed.
type Codebook struct {
	Name   string   // of the data file, such as "iq2xs"; formats with one codebook share the name
	Lanes  int      // values of a point
	Bits   int      // per level in a code
	Values []int8   // decoded value of each level; a code holds no level beyond them
	Codes  []uint16 // point i: the sum over lanes x of level x << (Bits·x), ascending

	rows func() []int8
}

// Rows returns the points as values, Lanes for each point in the order of Codes,
// lane 0 first: len(Codes)·Lanes values.
func (c *Codebook) Rows() []int8 { return c.rows() }

// Codebook returns the codebook of t, or nil if t is not a codebook format. The
// same pointer is returned for every call, and for formats that share one (IQ1_S
// and IQ1_M).
func (t Type) Codebook() *Codebook {
	switch t {
	case IQ1_S, IQ1_M:
		return bookIQ1()
	case IQ2_XXS:
		return bookIQ2_XXS()
	case IQ2_XS:
		return bookIQ2_XS()
	case IQ2_S:
		return bookIQ2_S()
	case IQ3_XXS:
		return bookIQ3_XXS()
	case IQ3_S:
		return bookIQ3_S()
	}
	return nil
}

var (
	//go:embed grids/iq1s.levels.u16le.bin
	codesIQ1 string
	//go:embed grids/iq2xxs.levels.u16le.bin
	codesIQ2_XXS string
	//go:embed grids/iq2xs.levels.u16le.bin
	codesIQ2_XS string
	//go:embed grids/iq2s.levels.u16le.bin
	codesIQ2_S string
	//go:embed grids/iq3xxs.levels.u16le.bin
	codesIQ3_XXS string
	//go:embed grids/iq3s.levels.u16le.bin
	codesIQ3_S string
)

// Each is unpacked at its first use.
var (
	bookIQ1     = sync.OnceValue(func() *Codebook { return newCodebook("iq1s", 8, levelsIQ1, codesIQ1) })
	bookIQ2_XXS = sync.OnceValue(func() *Codebook { return newCodebook("iq2xxs", 8, levelsIQ2, codesIQ2_XXS) })
	bookIQ2_XS  = sync.OnceValue(func() *Codebook { return newCodebook("iq2xs", 8, levelsIQ2, codesIQ2_XS) })
	bookIQ2_S   = sync.OnceValue(func() *Codebook { return newCodebook("iq2s", 8, levelsIQ2, codesIQ2_S) })
	bookIQ3_XXS = sync.OnceValue(func() *Codebook { return newCodebook("iq3xxs", 4, levelsIQ3_XXS, codesIQ3_XXS) })
	bookIQ3_S   = sync.OnceValue(func() *Codebook { return newCodebook("iq3s", 4, levelsIQ3_S, codesIQ3_S) })
)

// The values of the levels, weights.md 2.3.
var (
	levelsIQ1     = []int8{-1, 0, 1}
	levelsIQ2     = []int8{8, 25, 43}
	levelsIQ3_XXS = []int8{4, 12, 20, 28, 36, 44, 52, 62}
	levelsIQ3_S   = []int8{1, 3, 5, 7, 9, 11, 13, 15}
)

// newCodebook unpacks codes of 16 bits each, little-endian; every lane of a code
// must be a level that values has, which a test of the data files assures.
func newCodebook(name string, lanes int, values []int8, data string) *Codebook {
	c := &Codebook{
		Name: name, Lanes: lanes, Bits: bits.Len(uint(len(values) - 1)), Values: values,
		Codes: make([]uint16, len(data)/2),
	}
	for i := range c.Codes {
		c.Codes[i] = uint16(data[2*i]) | uint16(data[2*i+1])<<8
	}
	c.rows = sync.OnceValue(func() []int8 {
		rows := make([]int8, 0, len(c.Codes)*lanes)
		for _, code := range c.Codes {
			for range lanes {
				rows = append(rows, values[code&(1<<c.Bits-1)])
				code >>= c.Bits
			}
		}
		return rows
	})
	return c
}
