package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/calderaml/caldera/engine"
)

// The scores of perplexity --save: the magic, tokens of a chunk, number of scores (uint32 each), then the negative
// log-likelihood (float32) and the most likely token (int32) of each scored token. All is little-endian.
const scoresMagic = "caldscr1"

// maxScores bounds a file of scores.
const maxScores = 1 << 28

// scored is one token's score in a file.
type scored struct {
	NLL  float32
	Best int32
}

func writeScores(w io.Writer, p engine.Perplexity) error {
	b := bufio.NewWriter(w)
	if len(p.NLL) > maxScores {
		return fmt.Errorf("%d tokens are more than a file of scores holds", len(p.NLL))
	}
	b.WriteString(scoresMagic)
	err := binary.Write(b, binary.LittleEndian, [2]uint32{uint32(p.Chunk), uint32(len(p.NLL))})
	for i := 0; i < len(p.NLL) && err == nil; i++ {
		err = binary.Write(b, binary.LittleEndian, scored{p.NLL[i], p.Best[i]})
	}
	return errors.Join(err, b.Flush())
}

func readScores(name string) (engine.Perplexity, error) {
	var p engine.Perplexity
	f, err := os.Open(name)
	if err != nil {
		return p, usageError{fmt.Errorf("--base: %w", err)}
	}
	defer f.Close()
	bad := func(err error) (engine.Perplexity, error) {
		return p, usagef("--base %s is no file of scores, as perplexity --save writes it: %w", name, err)
	}
	r := bufio.NewReader(f)
	magic := make([]byte, len(scoresMagic))
	var head [2]uint32
	if _, err := io.ReadFull(r, magic); err != nil {
		return bad(err)
	} else if string(magic) != scoresMagic {
		return bad(errors.New("it begins with something else"))
	}
	if err := binary.Read(r, binary.LittleEndian, &head); err != nil {
		return bad(err)
	}
	st, err := f.Stat()
	if err != nil {
		return bad(err)
	}
	if want := int64(len(scoresMagic)) + 8 + 8*int64(head[1]); head[1] > maxScores || st.Size() != want {
		return bad(fmt.Errorf("it has %d bytes, %d scores take %d", st.Size(), head[1], want))
	}
	scores := make([]scored, head[1])
	if err := binary.Read(r, binary.LittleEndian, scores); err != nil {
		return bad(err)
	}
	p.Chunk = int(head[0])
	for _, s := range scores {
		p.NLL, p.Best = append(p.NLL, s.NLL), append(p.Best, s.Best)
	}
	return p, nil
}
