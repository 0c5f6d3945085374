package shaders

import "fmt"

// PageTokens is the number of tokens in a page of the KV cache. common/step.glsl holds the same number.
const PageTokens = 256

// PageCold is set in the number of a page that is of the cold pool. common/step.glsl has the same bit.
const PageCold int32 = -1 << 31

// Words of the step buffer's header. common/step.glsl mirrors these.
const (
	stepRows   = 0 // rows in this step
	stepSeqs   = 1 // sequences in this step
	stepOuts   = 2 // rows whose logits are wanted
	stepPages  = 3 // stride of the page table: pages a sequence may have
	stepToken  = 4 // word offsets of the arrays follow
	stepPos    = 5
	stepSeq    = 6
	stepOut    = 7
	stepRun    = 8
	stepPage   = 9
	stepRope   = 10
	stepRopeN  = 11 // floats per row of the rope table: rotary dimensions
	stepMoves  = 12 // pages to re-encode in this step
	stepMove   = 13 // word offset of their array
	stepHeader = 16
	runWords   = 4 // first row, rows, slot, flags
	moveWords  = 2 // hot page, cold page
)

// RunFresh marks a run whose sequence has no state yet: kernels take zeros for the carried state instead of
// what the slot holds, so that a reused slot needs no clearing.
const RunFresh = 1

// Count selects which of the step's counts limits a kernel's rows.
type Count uint32

const (
	CountRows Count = stepRows // every token of the step
	CountOuts Count = stepOuts // the rows whose logits are wanted
)

// StepShape is the capacity of a step: the most rows, sequences, pages per sequence and rotary dimensions
// it can describe. It fixes the layout of the step buffer.
type StepShape struct {
	Rows  int
	Seqs  int
	Outs  int // rows whose logits can be wanted
	Pages int // per sequence
	Rope  int // rotary dimensions, cos and sin interleaved: Rope/2 pairs
	Moves int // pages that can be re-encoded; 0 in all but the steps made for it
	// Cold allows page tables that name pages of the cold pool. It takes no room.
	Cold bool
}

// Words returns the size of the step buffer in 32-bit words.
func (s StepShape) Words() int { return s.offset(stepMove) + s.Moves*moveWords }

func (s StepShape) offset(field int) int {
	off := stepHeader
	for _, f := range []struct{ field, words int }{
		{stepToken, s.Rows}, {stepPos, s.Rows}, {stepSeq, s.Rows}, {stepOut, s.Outs},
		{stepRun, s.Seqs * runWords}, {stepPage, s.Seqs * s.Pages}, {stepRope, s.Rows * s.Rope},
		{stepMove, s.Moves * moveWords},
	} {
		if f.field == field {
			return off
		}
		off += f.words
	}
	return off
}

// NewBuffer returns the step buffer of this shape.
func (s StepShape) NewBuffer() *Buffer {
	return &Buffer{Name: "step", Kind: StepInput, Size: int64(s.Words()) * 4}
}

// A Run is one sequence's part of a step: rows that are consecutive tokens of that sequence.
type Run struct {
	Slot   int        // recurrent slot
	Pos    int        // position of the first token
	Tokens []int32    // one row each
	Pages  []int32    // physical pages of the whole sequence, the new tokens included; cold ones have PageCold set
	Fresh  bool       // no state is carried in
	Outs   []int      // indices into Tokens whose logits are wanted, ascending
	Moves  []PageMove // pages to re-encode, in steps with room for it; such a run may have no tokens
}

// A PageMove re-encodes a full page of the hot pool into a page of the cold pool, in every layer. Both are numbers
// in their pools, without PageCold. The hot page keeps its contents.
type PageMove struct{ Hot, Cold int32 }

// RopeTable gives the rotation of positions: row p holds Rope floats, cos and sin of each pair in turn.
type RopeTable interface {
	Row(pos int) []float32
}

// Write lays out a step in words, a slice of at least Words() words. It returns an error, and writes
// nothing that a replay could mistake for a step, when the runs exceed the shape.
func (s StepShape) Write(words []uint32, runs []Run, rope RopeTable) error {
	if len(words) < s.Words() {
		return fmt.Errorf("step: %d words, the shape needs %d", len(words), s.Words())
	}
	rows, outs := 0, 0
	var moved map[int32]bool // the cold pages that moves write
	for i, r := range runs {
		rows += len(r.Tokens)
		outs += len(r.Outs)
		if len(r.Tokens) == 0 && len(r.Moves) == 0 {
			return fmt.Errorf("step: run %d has no tokens", i)
		}
		need := 0
		if len(r.Tokens) > 0 {
			need = (r.Pos + len(r.Tokens) + PageTokens - 1) / PageTokens
		}
		if len(r.Pages) < need || len(r.Pages) > s.Pages {
			return fmt.Errorf("step: run %d holds %d pages, needs %d, the step has room for %d", i, len(r.Pages), need, s.Pages)
		}
		for j, p := range r.Pages {
			if p < 0 && (!s.Cold || j < need && j >= r.Pos/PageTokens) {
				return fmt.Errorf("step: run %d: page %d of the sequence is cold; new tokens, and graphs without a cold pool, take hot ones", i, j)
			}
		}
		for _, m := range r.Moves {
			if m.Hot < 0 || m.Cold < 0 || moved[m.Cold] {
				return fmt.Errorf("step: run %d moves page %d to cold page %d: not page numbers, or taken by another move", i, m.Hot, m.Cold)
			}
			if moved == nil {
				moved = map[int32]bool{}
			}
			moved[m.Cold] = true
		}
		for _, o := range r.Outs {
			if o < 0 || o >= len(r.Tokens) {
				return fmt.Errorf("step: run %d wants logits of row %d of %d", i, o, len(r.Tokens))
			}
		}
	}
	if len(runs) == 0 || len(runs) > s.Seqs || rows > s.Rows {
		return fmt.Errorf("step: %d rows of %d sequences do not fit %d rows of %d", rows, len(runs), s.Rows, s.Seqs)
	}
	if len(moved) > s.Moves {
		return fmt.Errorf("step: %d pages are to be re-encoded, the step has room for %d", len(moved), s.Moves)
	}
	if outs > s.Outs {
		return fmt.Errorf("step: logits of %d rows are wanted, the step has room for %d", outs, s.Outs)
	}
	words[stepRows], words[stepSeqs], words[stepOuts], words[stepPages] = uint32(rows), uint32(len(runs)), uint32(outs), uint32(s.Pages)
	for _, f := range []int{stepToken, stepPos, stepSeq, stepOut, stepRun, stepPage, stepRope, stepMove} {
		words[f] = uint32(s.offset(f))
	}
	words[stepRopeN], words[stepMoves] = uint32(s.Rope), uint32(len(moved))
	tok, pos, seq, out := words[s.offset(stepToken):], words[s.offset(stepPos):], words[s.offset(stepSeq):], words[s.offset(stepOut):]
	run, page := words[s.offset(stepRun):], words[s.offset(stepPage):]
	table, move := castWords(words[s.offset(stepRope):s.offset(stepMove)]), words[s.offset(stepMove):s.Words()]
	row, o := 0, 0
	for i, r := range runs {
		flags := uint32(0)
		if r.Fresh {
			flags |= RunFresh
		}
		copy(run[i*runWords:], []uint32{uint32(row), uint32(len(r.Tokens)), uint32(r.Slot), flags})
		for j, p := range r.Pages {
			page[i*s.Pages+j] = uint32(p)
		}
		for _, w := range r.Outs {
			out[o] = uint32(row + w)
			o++
		}
		for _, m := range r.Moves {
			move[0], move[1] = uint32(m.Hot), uint32(m.Cold)
			move = move[moveWords:]
		}
		for j, t := range r.Tokens {
			tok[row], pos[row], seq[row] = uint32(t), uint32(r.Pos+j), uint32(i)
			if s.Rope > 0 {
				copy(table[row*s.Rope:(row+1)*s.Rope], rope.Row(r.Pos+j))
			}
			row++
		}
	}
	return nil
}

// StepView reads a step buffer, as kernels do. Twins use it.
type StepView struct{ w []uint32 }

// ViewStep reads the step in a view.
func ViewStep(m Memory, v View) StepView { return StepView{U32(m, v)} }

func (s StepView) Rows() int             { return int(s.w[stepRows]) }
func (s StepView) Seqs() int             { return int(s.w[stepSeqs]) }
func (s StepView) Outs() int             { return int(s.w[stepOuts]) }
func (s StepView) Count(c Count) int     { return int(s.w[c]) }
func (s StepView) Token(row int) int     { return int(s.w[int(s.w[stepToken])+row]) }
func (s StepView) Pos(row int) int       { return int(s.w[int(s.w[stepPos])+row]) }
func (s StepView) Seq(row int) int       { return int(s.w[int(s.w[stepSeq])+row]) }
func (s StepView) Out(i int) int         { return int(s.w[int(s.w[stepOut])+i]) }
func (s StepView) RunStart(seq int) int  { return int(s.w[int(s.w[stepRun])+seq*runWords]) }
func (s StepView) RunLen(seq int) int    { return int(s.w[int(s.w[stepRun])+seq*runWords+1]) }
func (s StepView) RunSlot(seq int) int   { return int(s.w[int(s.w[stepRun])+seq*runWords+2]) }
func (s StepView) RunFresh(seq int) bool { return s.w[int(s.w[stepRun])+seq*runWords+3]&RunFresh != 0 }

// Page returns the number of page i of a sequence in its pool, and whether that is the cold one.
func (s StepView) Page(seq, i int) (page int, cold bool) {
	p := int32(s.w[int(s.w[stepPage])+seq*int(s.w[stepPages])+i])
	return int(p &^ PageCold), p < 0
}

// Moves returns how many pages are to be re-encoded, and Move one of them.
func (s StepView) Moves() int { return int(s.w[stepMoves]) }

func (s StepView) Move(i int) PageMove {
	w := s.w[int(s.w[stepMove])+i*moveWords:]
	return PageMove{int32(w[0]), int32(w[1])}
}

// Rope returns the row's cos and sin, interleaved by pair.
func (s StepView) Rope(row int) []float32 {
	n := int(s.w[stepRopeN])
	off := int(s.w[stepRope]) + row*n
	return castWords(s.w[off : off+n])
}

// KVToken returns the index, in tokens of a layer's pool, of position pos of a sequence, and whether that is the
// cold pool.
func (s StepView) KVToken(seq, pos int) (token int, cold bool) {
	page, cold := s.Page(seq, pos/PageTokens)
	return page*PageTokens + pos%PageTokens, cold
}
