package shaders

import "fmt"

// ExpertGroup sorts the step's pairs of a row and a slot by the expert in the slot and cuts the pairs of each
// expert into tiles, so that the experts' kernels decode a weight once for all pairs of a tile.
// A pair is the number row*K + slot. Ids that name no expert share a bucket behind the last expert.
type ExpertGroup struct {
	Step    View
	Ids     View // [Rows][K] uint32
	Tiles   View // of TilesBytes
	Rows    int
	Experts int
	K       int
}

// tileWidths are the pairs that the three kinds of tiles hold. A tile of four takes three pairs as well, with
// the last place empty; what then is left of an expert's pairs, one or two, is a tile of that size, as on software
// devices each further pair takes a third of the time of the first.
var tileWidths = [3]int{1, 2, matmulTokens}

// expertTiles is the layout of Tiles in words: the numbers of tiles of each kind, the number of pairs of each
// bucket, then the tiles of each kind, which are the expert followed by the pairs, ^0 for an empty place.
type expertTiles struct {
	pairs, buckets int
}

func tilesOf(rows, k, experts int) expertTiles { return expertTiles{rows * k, experts + 1} }

// TilesBytes is the size of the tiles of steps of at most so many rows.
func TilesBytes(rows, k, experts int) int64 {
	t := tilesOf(rows, k, experts)
	return 4 * int64(t.at(len(tileWidths)))
}

// most is the largest number of tiles of a kind.
func (t expertTiles) most(kind int) int {
	switch tileWidths[kind] {
	case 1, 2:
		return min(t.pairs/tileWidths[kind], t.buckets)
	}
	return t.pairs / 3
}

// at is the word at which the tiles of a kind begin; behind the last kind they end.
func (t expertTiles) at(kind int) int {
	n := len(tileWidths) + t.buckets
	for i := range kind {
		n += t.most(i) * (tileWidths[i] + 1)
	}
	return n
}

// byExpert reads tiles, for the twins of ops that take them: the pairs of each expert, and those of no expert. What
// is outside the step is left out, as in the kernels.
func (t expertTiles) byExpert(words []uint32, pairs int) (of map[int][]int, none []int) {
	of = map[int][]int{}
	for kind, width := range tileWidths {
		n := min(int64(words[kind]), int64(t.most(kind)))
		for i := range int(n) {
			tile := words[t.at(kind)+i*(width+1):][:width+1]
			for _, pair := range tile[1:] {
				switch {
				case int64(pair) >= int64(pairs):
				case int64(tile[0]) >= int64(t.buckets-1):
					none = append(none, int(pair))
				default:
					of[int(tile[0])] = append(of[int(tile[0])], int(pair))
				}
			}
		}
	}
	return of, none
}

func expertGroupModules() []Module {
	return []Module{{Name: "expert_group", Source: "expert_group.comp", Buffers: 3, Params: 6}}
}

func (o *ExpertGroup) Kernel() string { return "expert_group" }

func (o *ExpertGroup) Operands() []Operand { return []Operand{R(o.Step), R(o.Ids), W(o.Tiles)} }

// Contents says that tiles are indices.
func (o *ExpertGroup) Contents(operand int) Content {
	if operand == 2 {
		return Indices
	}
	return Values
}

func (o *ExpertGroup) Cost() Cost {
	return Cost{Bytes: 8*int64(o.Rows)*int64(o.K) + TilesBytes(o.Rows, o.K, o.Experts)}
}

// GroupLoops is how often an invocation goes around its loops at most: over the experts before its own and over
// all pairs.
func GroupLoops(rows, k, experts int) int { return rows*k + experts + 1 }

func (o *ExpertGroup) Lower(p *Profile) ([]Dispatch, error) {
	switch ids, tiles := 4*int64(o.Rows)*int64(o.K), TilesBytes(o.Rows, o.K, o.Experts); {
	case o.Rows < 1 || o.K < 1 || o.Experts < 1:
		return nil, fmt.Errorf("expert_group: %d of %d experts for %d rows", o.K, o.Experts, o.Rows)
	case o.Ids.Len < ids || o.Tiles.Len < tiles:
		return nil, fmt.Errorf("expert_group: ids of %d and tiles of %d bytes, %d rows of %d of %d experts need %d and %d",
			o.Ids.Len, o.Tiles.Len, o.Rows, o.K, o.Experts, ids, tiles)
	}
	if err := p.loops("expert_group", GroupLoops(o.Rows, o.K, o.Experts)); err != nil {
		return nil, err
	}
	groups, err := p.grid("expert_group", ceilDiv(o.Experts+1, int(p.Subgroup)), 1, 1)
	if err != nil {
		return nil, err
	}
	t := tilesOf(o.Rows, o.K, o.Experts)
	var ds []Dispatch
	for fill, access := range []Access{Write, ReadWrite} {
		ds = append(ds, Dispatch{
			Module: "expert_group",
			Spec:   []uint32{p.Subgroup},
			Bind:   []Operand{R(o.Step), R(o.Ids), {o.Tiles, access}},
			Push:   []uint32{uint32(o.K), uint32(o.Experts), uint32(fill), uint32(t.at(0)), uint32(t.at(1)), uint32(t.at(2))},
			Groups: groups,
		})
	}
	return ds, nil
}

func (o *ExpertGroup) Twin(m Memory) error {
	n := ViewStep(m, o.Step).Rows() * o.K
	t, words := tilesOf(o.Rows, o.K, o.Experts), U32(m, o.Tiles)
	buckets := make([][]int, o.Experts+1)
	for i, e := range U32(m, o.Ids)[:n] {
		b := int(min(int64(e), int64(o.Experts)))
		buckets[b] = append(buckets[b], i)
	}
	var tiles [len(tileWidths)]int
	for e, of := range buckets {
		words[len(tileWidths)+e] = uint32(len(of))
		for len(of) > 0 {
			kind := min(len(of), 3) - 1
			width := tileWidths[kind]
			tile := words[t.at(kind)+tiles[kind]*(width+1):]
			tile[0] = uint32(e)
			for i := range width {
				tile[1+i] = ^uint32(0)
				if i < len(of) {
					tile[1+i] = uint32(of[i])
				}
			}
			of = of[min(width, len(of)):]
			tiles[kind]++
		}
	}
	for kind, n := range tiles {
		words[kind] = uint32(n)
	}
	return nil
}
