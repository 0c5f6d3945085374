package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/calderaml/caldera/engine"
)

// The scores of perplexity --save: the magic, tokens of a chunk, number of scores, CRC-32C of the tokens (uint32 each),
// then the negative log-likelihood (float32) and the most likely token (int32) of each scored token, and the
// CRC-32C of all before. All is little-endian.
const (
	scoresMagic  = "caldscr1"
	scoresHeader = int64(len(scoresMagic)) + 12
)

// maxScores bounds a file of scores.
const maxScores = 1 << 28

// scored is one token's score in a file.
type scored struct {
	NLL  float32
	Best int32
}

// baseScores are scores from a file.
type baseScores struct {
	engine.Perplexity
	digest uint32
}

// of refuses scores of other tokens.
func (b *baseScores) of(tokens []int32) error {
	// A last chunk that is not full is not scored.
	if b.Chunk > 1 {
		tokens = tokens[:len(tokens)/b.Chunk*b.Chunk]
	}
	if digestOf(tokens) != b.digest {
		return fmt.Errorf("it has the scores of another text, or of another number of chunks: %d in chunks of %d", len(b.NLL), b.Chunk)
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func digestOf(tokens []int32) uint32 {
	sum := crc32.New(castagnoli)
	_ = binary.Write(sum, binary.LittleEndian, tokens)
	return sum.Sum32()
}

func writeScores(w io.Writer, p engine.Perplexity, tokens []int32) error {
	if len(p.NLL) > maxScores {
		return fmt.Errorf("%d tokens are more than a file of scores holds", len(p.NLL))
	}
	sum := crc32.New(castagnoli)
	b := bufio.NewWriter(io.MultiWriter(w, sum))
	_, err := b.WriteString(scoresMagic)
	head := [3]uint32{uint32(p.Chunk), uint32(len(p.NLL)), digestOf(tokens[:p.Chunks*p.Chunk])}
	err = errors.Join(err, binary.Write(b, binary.LittleEndian, head))
	for i := 0; i < len(p.NLL) && err == nil; i++ {
		err = binary.Write(b, binary.LittleEndian, scored{p.NLL[i], p.Best[i]})
	}
	if err = errors.Join(err, b.Flush()); err != nil {
		return err
	}
	return binary.Write(w, binary.LittleEndian, sum.Sum32())
}

func readScores(name string) (baseScores, error) {
	var p baseScores
	f, err := os.Open(name)
	if err != nil {
		return p, usageError{fmt.Errorf("--base: %w", err)}
	}
	defer f.Close()
	bad := func(err error) (baseScores, error) {
		return p, usagef("--base %s is no file of scores, as perplexity --save writes it: %w", name, err)
	}
	sum := crc32.New(castagnoli)
	r := bufio.NewReader(f)
	t := io.TeeReader(r, sum)
	magic := make([]byte, len(scoresMagic))
	var head [3]uint32
	if _, err := io.ReadFull(t, magic); err != nil {
		return bad(err)
	} else if string(magic) != scoresMagic {
		return bad(errors.New("it begins with something else"))
	}
	if err := binary.Read(t, binary.LittleEndian, &head); err != nil {
		return bad(err)
	}
	st, err := f.Stat()
	if err != nil {
		return bad(err)
	}
	if want := scoresHeader + 8*int64(head[1]) + 4; head[1] > maxScores || st.Size() != want {
		return bad(fmt.Errorf("it has %d bytes, %d scores take %d", st.Size(), head[1], want))
	}
	scores := make([]scored, head[1])
	if err := binary.Read(t, binary.LittleEndian, scores); err != nil {
		return bad(err)
	}
	var stored uint32
	if err := binary.Read(r, binary.LittleEndian, &stored); err != nil {
		return bad(err)
	}
	if stored != sum.Sum32() {
		return bad(errors.New("its checksum is wrong"))
	}
	p.Chunk, p.digest = int(head[0]), head[2]
	for _, s := range scores {
		p.NLL, p.Best = append(p.NLL, s.NLL), append(p.Best, s.Best)
	}
	return p, nil
}
