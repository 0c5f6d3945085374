package shaders_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// groupOf returns the op that makes tiles of ids.
func groupOf(step, ids shaders.View, rows, k, experts int, fill map[*shaders.Buffer][]byte) *shaders.ExpertGroup {
	tiles := filledWords("tiles", int(shaders.TilesBytes(rows, k, experts)/4)+3, nil, fill)
	return &shaders.ExpertGroup{Step: step, Ids: ids, Tiles: tiles.View().Slice(8, tiles.Size-8), Rows: rows, Experts: experts, K: k}
}

// partsOf is memory for the products of pairs, all of them, behind those of one more.
func partsOf(rows, k, out int) shaders.View {
	size := shaders.PartsBytes(rows, k, out)
	b := &shaders.Buffer{Name: "parts", Kind: shaders.Scratch, Size: size + int64(4*out)}
	return b.View().Slice(int64(4*out), size)
}

// sameMat returns a matrix of the layout and the content of another's buffer.
func sameMat(name string, m shaders.Mat, fill map[*shaders.Buffer][]byte) shaders.Mat {
	b := *m.Buf
	b.Name = name
	fill[&b] = fill[m.Buf]
	m.Buf = &b
	return m
}

// checkTiles compares tiles with what is asked of them: each pair of the step is in one tile, of its expert, and an
// expert with c pairs has as many tiles of four as take three or four of them and one tile of what is left.
func checkTiles(t *testing.T, name string, words, ids []uint32, pairs, experts int) {
	t.Helper()
	expert := func(i int) uint32 { return min(ids[i], uint32(experts)) }
	count := make([]int, experts+1)
	for i := range pairs {
		count[expert(i)]++
	}
	at, most := 3+experts+1, []int{min(len(ids), experts+1), min(len(ids)/2, experts+1), len(ids) / 3}
	seen := make([]bool, pairs)
	for kind, width := range []int{1, 2, 4} {
		of := make([]int, experts+1)
		if n := int(words[kind]); n > most[kind] {
			t.Fatalf("%s: %d tiles of %d", name, n, width)
		}
		for i := range int(words[kind]) {
			tile := words[at+i*(width+1):][:width+1]
			of[tile[0]]++
			for j, pair := range tile[1:] {
				if pair == math.MaxUint32 && j == 3 {
					continue
				}
				if int(pair) >= pairs || seen[pair] || expert(int(pair)) != tile[0] {
					t.Fatalf("%s: tile %d of %d: %d", name, i, width, tile)
				}
				seen[pair] = true
			}
		}
		at += most[kind] * (width + 1)
		for e, c := range count {
			want := 0
			switch {
			case width == 4:
				want = (c + 1) / 4
			case c%4 == width:
				want = 1
			}
			if of[e] != want {
				t.Fatalf("%s: expert %d with %d pairs has %d tiles of %d, want %d", name, e, c, of[e], width, want)
			}
			if int(words[3+e]) != c {
				t.Fatalf("%s: expert %d counts %d pairs of %d", name, e, words[3+e], c)
			}
		}
	}
	for i, s := range seen {
		if !s {
			t.Fatalf("%s: pair %d is in no tile", name, i)
		}
	}
	if n := len(words) - at; n < 0 {
		t.Fatalf("%s: tiles take %d words more than there are", name, -n)
	}
}

func TestExpertGroup(t *testing.T) {
	for i, c := range []struct {
		experts, k int
		used       int // experts that are chosen from; beyond experts: ids that name none
		rows       int // of a step of one run; 0: the uneven step
	}{
		{experts: 6, k: 3, used: 6},
		{experts: 3, k: 1, used: 5},
		{experts: 40, k: 8, used: 9},
		{experts: 1, k: 1, used: 1},
		{experts: 2, k: 4, used: 1 << 20}, // none at all
		{experts: 256, k: 8, used: 256, rows: 1},
		{experts: 512, k: 10, used: 400, rows: 500}, // the most a model asks for
	} {
		name := fmt.Sprintf("%d of %d, %d rows", c.k, c.experts, c.rows)
		r := kerneltest.Rand(uint64(i))
		fill := map[*shaders.Buffer][]byte{}
		step, rows, capacity := unevenStep(t, fill)
		if c.rows > 0 {
			rows, capacity = c.rows, c.rows+12
			b, data := kerneltest.Step(t, shaders.StepShape{Rows: capacity, Seqs: 1, Pages: 2},
				[]shaders.Run{{Tokens: kerneltest.Tokens(rows), Pages: []int32{0, 1}}}, nil)
			delete(fill, step.Buf)
			step, fill[b] = b.View(), data
		}
		ids := make([]uint32, capacity*c.k)
		for i := range ids {
			ids[i] = uint32(r.IntN(c.used))
		}
		if c.used > c.experts {
			ids[0], ids[1] = math.MaxUint32, uint32(c.experts)
		}
		idb := filledWords("ids", len(ids)+2, append([]uint32{0, 0}, ids...), fill)
		o := groupOf(step, idb.View().Slice(8, int64(len(ids))*4), capacity, c.k, c.experts, fill)
		m := runTwins(t, []shaders.Op{o}, fill)
		checkTiles(t, name, shaders.U32(m, o.Tiles), ids, rows*c.k, c.experts)
		kerneltest.Run(t, kerneltest.Case{Name: name, Ops: []shaders.Op{o}, Fill: fill, Check: []kerneltest.Check{
			{View: o.Tiles.Buf.View(), Exact: true},
		}})
	}
}

// Tiles that name what is not there, as memory that something else has written would, reach nothing outside.
func TestTilesOutside(t *testing.T) {
	const rows, k, experts, in, out = 12, 2, 3, 32, 5
	r := kerneltest.Rand(1)
	fill := map[*shaders.Buffer][]byte{}
	step, _, _ := unevenStep(t, fill)
	words := make([]uint32, shaders.TilesBytes(rows, k, experts)/4)
	for i := range words {
		words[i] = math.MaxUint32 - uint32(i)
	}
	// Tiles of one: a pair beyond the step, an expert beyond the stack, one that is as it should be, and a fourth
	// of three.
	copy(words, []uint32{3, 0, 0, 0, 0, 0, 0, 1, 4000, 3, 2, 2, 5, 0, 7})
	tiles := filledWords("tiles", len(words), words, fill)
	x := paddedMat("x", rows, in, 0, 0, fill)
	setRows(x, kerneltest.Normal(r, rows*in), fill)
	h := paddedMat("h", rows, k*out, 0, 0, fill)
	weight := func(name string) shaders.Matrix { return expertStack(r, name, quant.F32, in, out, experts, fill) }
	o := &shaders.ExpertGateUp{Step: step, Gate: weight("gate"), Up: weight("up"), X: shaders.Plain(x), Tiles: tiles.View(), H: h, Rows: rows, K: k}
	wide := paddedMat("wide", rows, k*in, 0, 0, fill)
	setRows(wide, kerneltest.Normal(r, rows*k*in), fill)
	factors := paddedMat("weights", rows, k, 0, 0, fill)
	y := paddedMat("y", rows, out, 0, 0, fill)
	down := &shaders.ExpertDown{Step: step, W: weight("down"), H: wide, Ids: filledWords("ids", rows*k, make([]uint32, rows*k), fill).View(),
		Weights: factors.View, Tiles: tiles.View(), Parts: partsOf(rows, k, out), Y: y, Rows: rows, K: k}
	kerneltest.Run(t, kerneltest.Case{Name: "outside", Ops: []shaders.Op{o, down}, Fill: fill, Check: []kerneltest.Check{
		{View: h.View, Tol: 1e-5}, {View: y.View, Tol: 1e-5},
	}})
}

func TestExpertGroupRefuses(t *testing.T) {
	for name, spoil := range map[string]func(o *shaders.ExpertGroup, p *shaders.Profile){
		"":        func(*shaders.ExpertGroup, *shaders.Profile) {},
		"ids":     func(o *shaders.ExpertGroup, _ *shaders.Profile) { o.Ids.Len -= 4 },
		"tiles":   func(o *shaders.ExpertGroup, _ *shaders.Profile) { o.Tiles.Len -= 4 },
		"experts": func(o *shaders.ExpertGroup, _ *shaders.Profile) { o.Experts = 0 },
		"slots":   func(o *shaders.ExpertGroup, _ *shaders.Profile) { o.K = 0 },
		"loops":   func(_ *shaders.ExpertGroup, p *shaders.Profile) { p.MaxLoops = shaders.GroupLoops(4, 2, 9) - 1 },
		"grid":    func(_ *shaders.ExpertGroup, p *shaders.Profile) { p.MaxGroups[0] = 2 },
	} {
		p := &shaders.Profile{Subgroup: 4, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}, MaxLoops: shaders.GroupLoops(4, 2, 9)}
		fill := map[*shaders.Buffer][]byte{}
		o := &shaders.ExpertGroup{Step: shaders.StepShape{Rows: 4, Seqs: 1, Pages: 1}.NewBuffer().View(), Ids: filledWords("ids", 8, nil, fill).View(),
			Tiles: filledWords("tiles", int(shaders.TilesBytes(4, 2, 9))/4, nil, fill).View(), Rows: 4, Experts: 9, K: 2}
		spoil(o, p)
		if _, err := o.Lower(p); (err == nil) != (name == "") {
			t.Errorf("%q: error %v", name, err)
		}
	}
}
