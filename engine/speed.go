package engine

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// What is measured of a device: products with a matrix of so many bytes at most, once to warm up and then for so long.
const (
	rateBytes = 16 << 20
	rateIn    = 2048 // weights of a row, a multiple of every block
	rateTime  = 60 * time.Millisecond
	rateLeast = 4 // products
)

// weightRate is how fast a device multiplies the block type that most of a model's bytes have with a vector, which is what decoding does
// nearly all of its time, in bytes of weights a second.
func weightRate(in *vk.Instance, s site, m *model.Model) (rate float64, err error) {
	dev, err := in.NewDevice(s.info, s.profile)
	if err != nil {
		return 0, err
	}
	die := scheduler.NewDie(dev)
	defer func() { err = errors.Join(err, die.Close()) }()
	w := shaders.Matrix{Name: "rate", Type: commonType(m), In: rateIn}
	w.Out = int(rateBytes/w.RowBytes()) / 64 * 64
	buf := &shaders.Buffer{Name: "rate weights", Kind: shaders.Weight, Size: int64(w.Out) * w.RowBytes()}
	w.View = buf.View()
	x := shaders.NewMat("rate input", shaders.State, 1, rateIn)
	for _, b := range []*shaders.Buffer{buf, x.Buf} {
		if err := die.Allocate(b, true); err != nil {
			return 0, err
		}
	}
	g := scheduler.NewGraph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1})
	op := &shaders.MatMul{Step: g.Step.View(), W: w, X: x, Y: shaders.NewMat("rate output", shaders.Scratch, 1, w.Out), Rows: 1, Count: shaders.CountRows}
	if m.Packs && shaders.Packs(w.Type) {
		op.Packed = shaders.NewPacked("rate packed", 1, rateIn)
	}
	g.Add("rate", op)
	p, err := scheduler.Compile(g, scheduler.On(die), scheduler.Options{})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	best, start := time.Duration(math.MaxInt64), time.Now()
	for i := 0; i <= rateLeast || time.Since(start) < rateTime; i++ {
		t, err := p.Run([]shaders.Run{{Tokens: []int32{0}, Pages: []int32{0}, Fresh: true}}, nil)
		if err != nil {
			return 0, err
		}
		if i == 0 {
			start = time.Now()
			continue
		}
		best = min(best, t.Submit+t.Wait)
	}
	if best <= 0 {
		return 0, fmt.Errorf("%d products took no time", rateLeast)
	}
	return float64(buf.Size) / best.Seconds(), nil
}

// commonType is the block type of most of a model's bytes.
func commonType(m *model.Model) quant.Type {
	sizes := map[quant.Type]int64{}
	best := quant.F32
	for _, it := range m.Weights {
		if it.Tensor == nil || len(it.Tensor.Dims) < 2 || shaders.HasScale(it.Tensor.Type) || rateIn%it.Tensor.Type.BlockSize() != 0 {
			continue
		}
		sizes[it.Tensor.Type] += it.Tensor.Size
		if sizes[it.Tensor.Type] > sizes[best] {
			best = it.Tensor.Type
		}
	}
	return best
}
