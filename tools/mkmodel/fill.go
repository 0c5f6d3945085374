package main

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"

	"github.com/calderaml/caldera/gguf/quant"
)

// chunkBytes is about what a goroutine fills at a time. Chunks have seeds of their own, so that the bytes do not
// depend on how many processors there are.
const chunkBytes = 4 << 20

// filler returns what writes a tensor's bytes.
func filler(t tensor, typ quant.Type, seed uint64) (func(io.Writer) error, error) {
	h := fnv.New64a()
	io.WriteString(h, t.name)
	seed = mix64(seed ^ h.Sum64())
	n := uint64(1)
	for _, d := range t.dims {
		n *= d
	}
	std := 1 / math.Sqrt(float64(t.dims[0]))
	switch {
	case t.kind != matrix && t.kind != router:
		return func(w io.Writer) error { return writeVector(w, t.kind, int(n), seed) }, nil
	case typ == quant.F32 || typ == quant.F16 || typ == quant.BF16:
		width := uint64(4)
		if typ != quant.F32 {
			width = 2
		}
		return func(w io.Writer) error {
			return writeChunks(w, n*width, chunkBytes, seed, func(b []byte, seed uint64) { fillFloats(b, typ, std, seed) })
		}, nil
	}
	b, err := newBlock(typ, std)
	if err != nil {
		return nil, err
	}
	rows := n / t.dims[0]
	rowBytes, err := typ.RowBytes(t.dims[0])
	if err != nil {
		return nil, err
	}
	chunk := chunkBytes / uint64(b.bytes) * uint64(b.bytes)
	return func(w io.Writer) error { return writeChunks(w, rows*uint64(rowBytes), chunk, seed, b.fill) }, nil
}

// writeChunks writes n bytes that fill makes chunk by chunk, as many at once as there are processors.
func writeChunks(w io.Writer, n, chunk uint64, seed uint64, fill func(b []byte, seed uint64)) error {
	bufs := make([][]byte, runtime.GOMAXPROCS(0))
	for at := uint64(0); at < n; {
		var group sync.WaitGroup
		used := 0
		for ; used < len(bufs) && at < n; used++ {
			if bufs[used] == nil {
				bufs[used] = make([]byte, min(chunk, n))
			}
			bufs[used] = bufs[used][:min(chunk, n-at)]
			b, seed := bufs[used], mix64(seed+at)
			group.Add(1)
			go func() {
				defer group.Done()
				fill(b, seed)
			}()
			at += uint64(len(b))
		}
		group.Wait()
		for _, b := range bufs[:used] {
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// mix64 is the output step of the generator splitmix64.
func mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fillRandom fills b with random bytes.
func fillRandom(b []byte, seed uint64) {
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, mix64(seed))
		seed += 0x9e3779b97f4a7c15
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(mix64(seed) >> (8 * i))
	}
}

// fillFloats fills b with uniform values of a standard deviation.
func fillFloats(b []byte, typ quant.Type, std float64, seed uint64) {
	limit := std * math.Sqrt(3)
	for i := 0; len(b) > 0; i++ {
		v := float32((float64(mix64(seed+uint64(i)*0x9e3779b97f4a7c15)>>11)/(1<<52) - 1) * limit)
		switch typ {
		case quant.F32:
			binary.LittleEndian.PutUint32(b, math.Float32bits(v))
			b = b[4:]
		case quant.F16:
			binary.LittleEndian.PutUint16(b, halfBits(float64(v)))
			b = b[2:]
		default:
			binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(v)>>16))
			b = b[2:]
		}
	}
}

// writeVector writes the small F32 tensors, with values like those of trained models.
func writeVector(w io.Writer, k kind, n int, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 0, 4*n)
	for range n {
		u := r.Float64()
		v := 0.0
		switch k {
		case norm:
			v = 0.9 + 0.2*u
		case decay:
			v = -math.Exp(4*u - 3) // of half-lives from a token to a few dozen
		case bias:
			v = 2*u - 3
		case conv:
			v = u - 0.5
		}
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
	}
	_, err := w.Write(b)
	return err
}

// A block makes random blocks of a type whose values have a given standard deviation: random bytes in which the
// scales are then set.
type block struct {
	bytes int
	set   func(b []byte) // sets a block's scales
}

// newBlock finds the scale by looking at what a sample of blocks decodes to.
func newBlock(typ quant.Type, std float64) (block, error) {
	set, ok := scales[typ]
	if !ok {
		return block{}, fmt.Errorf("no random blocks of type %v are known", typ)
	}
	const unit, samples = 1.0 / 64, 256
	b := block{bytes: typ.BlockBytes(), set: func(b []byte) { set(b, unit) }}
	raw := make([]byte, samples*b.bytes)
	b.fill(raw, 1)
	values := make([]float32, samples*typ.BlockSize())
	if err := quant.Dequantize(typ, values, raw); err != nil {
		return block{}, err
	}
	sum := 0.0
	for _, v := range values {
		sum += float64(v) * float64(v)
	}
	d := unit * std / math.Sqrt(sum/float64(len(values)))
	b.set = func(b []byte) { set(b, d) }
	return b, nil
}

// fill fills whole blocks.
func (x block) fill(b []byte, seed uint64) {
	fillRandom(b, seed)
	for ; len(b) > 0; b = b[x.bytes:] {
		x.set(b[:x.bytes])
	}
}

// half returns a setter of the half-precision scale at an offset.
func half(at int) func(b []byte, d float64) {
	return func(b []byte, d float64) { binary.LittleEndian.PutUint16(b[at:], halfBits(d)) }
}

// halves sets a scale and an offset that brings the mean to zero: ratio times the scale.
func halves(at, minAt int, ratio float64) func(b []byte, d float64) {
	return func(b []byte, d float64) {
		binary.LittleEndian.PutUint16(b[at:], halfBits(d))
		binary.LittleEndian.PutUint16(b[minAt:], halfBits(d*ratio))
	}
}

// ternary sets the scale at an offset and turns the code 3 into 1 in the two-bit codes of bytes [from, to): the
// values are -1, 0 and 1 then, and their mean is zero.
func ternary(from, to, at int) func(b []byte, d float64) {
	return func(b []byte, d float64) {
		for i, v := range b[from:to] {
			b[from+i] = v &^ (v & (v >> 1) & 0x55 << 1)
		}
		half(at)(b, d)
	}
}

// scales set the scales of a block to d, or to what comes closest (weights.md 2.2). The ratios are the mean of
// the stored numbers.
var scales = map[quant.Type]func(b []byte, d float64){
	quant.Q4_0: half(0), quant.Q5_0: half(0), quant.Q8_0: half(0), quant.Q1_0: half(0), quant.IQ4_NL: half(0),
	quant.Q2_0: ternary(2, 18, 0), quant.TQ2_0: ternary(0, 64, 64),
	quant.Q4_1: halves(0, 2, -7.5), quant.Q5_1: halves(0, 2, -15.5),
	quant.Q2_K: halves(80, 82, 1.5), quant.Q3_K: half(108), quant.Q4_K: halves(0, 2, 7.5), quant.Q5_K: halves(0, 2, 15.5),
	quant.Q6_K: func(b []byte, d float64) {
		for i := range b[192:208] {
			b[192+i] = byte(int8(b[192+i]) >> 3) // keeps d a normal half
		}
		half(208)(b, d)
	},
	quant.IQ4_XS: half(0), quant.IQ3_XXS: half(0), quant.IQ3_S: half(0), quant.IQ2_XXS: half(0), quant.IQ2_XS: half(0),
	quant.IQ2_S: half(0), quant.IQ1_S: half(0), quant.TQ1_0: half(52),
	quant.IQ1_M: func(b []byte, d float64) {
		h := halfBits(d) // a nibble on top of each word of three-bit scales
		for i := range 4 {
			b[49+2*i] = b[49+2*i]&15 | byte(h>>(4*i)&15)<<4
		}
	},
	quant.MXFP4: func(b []byte, d float64) { b[0] = byte(max(1, min(254, 128+math.Round(math.Log2(d))))) },
	quant.NVFP4: func(b []byte, d float64) {
		for i := range 4 {
			b[i] = ue4m3(2 * d)
		}
	},
}

// ue4m3 is the unsigned float of four exponent bits (bias 7) and three mantissa bits nearest to v.
func ue4m3(v float64) byte {
	frac, exp := math.Frexp(v) // v = frac * 2^exp, frac in [0.5, 1)
	e := exp - 1 + 7
	if v <= 0 || e < 1 {
		return byte(min(8, max(0, math.Round(v*(1<<9)))))
	}
	return byte(min(0x7e, e<<3+int(math.Round((2*frac-1)*8))))
}

// halfBits rounds v to the nearest half-precision value, whose size must be below 65504.
func halfBits(v float64) uint16 {
	sign := uint16(0)
	if v < 0 {
		sign, v = 0x8000, -v
	}
	frac, exp := math.Frexp(v)
	e := exp - 1 + 15
	if v == 0 || e < 1 {
		return sign | uint16(math.Round(v*(1<<24)))
	}
	return sign | uint16(e<<10+int(math.Round((2*frac-1)*1024)))
}
