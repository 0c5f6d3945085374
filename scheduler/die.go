package scheduler

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A Die is a device with what lives on it longer than a plan: weights, state and pipelines.
type Die struct {
	Device  *vk.Device
	Kernels shaders.Profile
	// Break names a kernel family whose pipelines are made from damaged code, so that verification can be
	// shown to find it. Empty in all but that use.
	Break string
	// Fault makes all pipelines as a driver with a fault would, for tests of what finds it.
	Fault Fault

	places    map[*shaders.Buffer][]place
	users     map[*vk.Buffer]int // how many places lie in each piece of memory
	largest   int64              // bytes that one piece can have
	upload    *vk.Uploader       // of weights, while they are loaded
	pipelines map[string]*vk.Pipeline
	required  int // subgroup size that pipelines ask for, 0 = any
}

// Kernels is what a device with a profile offers to kernels.
func Kernels(p vk.Profile) shaders.Profile {
	k := shaders.Profile{
		LanesPerRow: p.Lanes,
		Fuse:        p.MaxBuffers >= shaders.FusedBuffers,
		Subgroup:    uint32(p.SubgroupSize),
		OneSubgroup: p.SubgroupFixed || p.Features.SubgroupSize,
		MaxBinding:  p.MaxBinding,
		MaxGroups:   p.MaxGroups,
		MaxLoops:    p.LoopLimit,
		NoPacked:    p.NoPacked,
		NoSubgroups: p.NoSubgroups,
		NoHalves:    p.NoHalves,
	}
	k.CanShare, k.CanSpread = Broadcast(p), CanSpread(p)
	if p.SlowLoads {
		k.Broadcast = k.CanShare
	}
	k.Spread = p.FreeReads && k.CanSpread
	if k.Spread {
		// In Mesa 26.1 a turn costs as much as a block of 32 weights: Q8_0 and one token take 512 weights a turn at 11.4 GB/s, 1024 at 13.2 and
		// 2048 at 14.2. The compiler of 22.3, on which these kernels only are tested, takes half a minute for that.
		k.Turn = 2048
	}
	k.CanTexels = CanTexels(p)
	k.Texels = p.FastTexels && k.CanTexels
	k.CanMatrices = matrices(p)
	return k
}

// Broadcast is the size of the subgroups that kernels may share inputs in, 0 where they cannot (shaders.Profile.Broadcast).
func Broadcast(p vk.Profile) uint32 {
	if !p.Broadcast || !p.SubgroupFixed || p.SubgroupSize%4 != 0 || 32%p.SubgroupSize != 0 {
		return 0
	}
	return uint32(p.SubgroupSize)
}

// CanTexels reports whether a device can run kernels of the texel scheme (shaders.Profile.Texels), fast or not: whatever they
// bind fits a texel buffer.
func CanTexels(p vk.Profile) bool {
	return vk.TexelBytes*p.MaxTexels >= p.MaxBinding
}

// CanSpread reports whether a device can run kernels of the spread scheme (shaders.Profile.Spread), fast or not.
func CanSpread(p vk.Profile) bool {
	return Broadcast(p) == 8 && p.Features.BufferAddress && p.Features.Int64 && p.Features.Int8 && p.Features.Storage8
}

// matrices is the shape of cooperative matrices that kernels can use on a device (shaders.Profile.CanMatrices), zero without: of
// halves added up in float32, in the scope of subgroups whose size is known.
func matrices(p vk.Profile) shaders.MatrixShape {
	f := p.Features
	if !f.CooperativeMatrix || !f.Float16 || !f.MemoryModel || !p.Broadcast || !p.SubgroupFixed && !f.SubgroupSize {
		return shaders.MatrixShape{}
	}
	for _, s := range shaders.MatrixShapes() {
		has := slices.ContainsFunc(p.Matrices, func(m vk.Matrix) bool {
			return m.M == s.M && m.N == s.N && m.K == s.K && m.Subgroup && m.A == vk.ComponentFloat16 && m.B == vk.ComponentFloat16 &&
				m.C == vk.ComponentFloat32 && m.Result == vk.ComponentFloat32
		})
		if has && p.SubgroupSize >= s.M && s.Lanes(p.SubgroupSize) <= p.MaxInvocations && s.SharedBytes() <= p.SharedMemory {
			return s
		}
	}
	return shaders.MatrixShape{}
}

// NewDie prepares a device. The scheme of the kernels follows from its profile.
func NewDie(d *vk.Device) *Die {
	p := d.Profile()
	die := &Die{Device: d, Kernels: Kernels(p), places: map[*shaders.Buffer][]place{}, users: map[*vk.Buffer]int{}, pipelines: map[string]*vk.Pipeline{}}
	die.largest = largest(d.Info().Limits)
	if !p.SubgroupFixed && p.Features.SubgroupSize {
		die.required = p.SubgroupSize
	}
	return die
}

// holdTable gives a table memory with its content on first use.
func (d *Die) holdTable(b *shaders.Buffer) error {
	if d.places[b] != nil {
		return nil
	}
	if err := d.Allocate(b, false); err != nil {
		return err
	}
	if err := d.Upload(b.View().Slice(0, int64(len(b.Content))), b.Content); err != nil {
		d.Free(b)
		return err
	}
	return nil
}

// Zero clears a buffer that has memory.
func (d *Die) Zero(b *shaders.Buffer) error {
	zeros := make([]byte, min(b.Size, 1<<20))
	for off := int64(0); off < b.Size; off += int64(len(zeros)) {
		n := min(int64(len(zeros)), b.Size-off)
		if err := d.Upload(b.View().Slice(off, n), zeros[:n]); err != nil {
			return err
		}
	}
	return nil
}

// Close frees everything on the die, and the device. If the device hangs, everything stays as it is, and the error wraps
// [vk.ErrHang].
func (d *Die) Close() error {
	if d.Device.Quiesce() != nil {
		return d.Device.Close()
	}
	if d.upload != nil {
		_ = d.upload.Close() // loading has failed, and its error been told
		d.upload = nil
	}
	for _, p := range d.pipelines {
		p.Free()
	}
	d.pipelines = nil
	for m := range d.users {
		m.Free()
	}
	d.places, d.users = nil, nil
	return d.Device.Close()
}

// pipelineKey tells pipelines apart.
func pipelineKey(x shaders.Dispatch) string { return fmt.Sprint(x.Module, x.Spec) }

// pipeline returns the pipeline of a dispatch, made on first use.
func (d *Die) pipeline(x shaders.Dispatch) (*vk.Pipeline, error) {
	key := pipelineKey(x)
	if p := d.pipelines[key]; p != nil {
		return p, nil
	}
	p, err := d.newPipeline(x)
	if err == nil {
		d.pipelines[key] = p
	}
	return p, err
}

// MakePipeline makes the pipeline of a dispatch ahead of its plans, if there is none yet.
func (d *Die) MakePipeline(x shaders.Dispatch) error {
	_, err := d.pipeline(x)
	return err
}

// newPipeline makes the pipeline of a dispatch. Several may be made at a time.
func (d *Die) newPipeline(x shaders.Dispatch) (*vk.Pipeline, error) {
	m, code, err := shaders.Lookup(x.Module)
	if err != nil {
		return nil, err
	}
	if d.Break != "" && strings.HasPrefix(x.Module, d.Break) {
		code = damage(code)
	}
	if d.Kernels.NoHalves {
		if code, err = wholeHalves(code); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", x.Module, err)
		}
	}
	if code, err = d.Fault.rewrite(code); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", x.Module, err)
	}
	p, err := d.Device.NewPipeline(vk.PipelineConfig{
		Name: x.Module, SPIRV: code, Buffers: m.Buffers, Texels: m.Texels, PushBytes: m.PushBytes(), Spec: x.Spec, Subgroup: d.required, Full: m.Matrices,
	})
	if err != nil {
		return nil, fmt.Errorf("kernel %s %v: %w", x.Module, x.Spec, err)
	}
	return p, nil
}

// MakePipelines makes the pipelines of graphs ahead of their plans, as many at a time as there are processors: drivers
// take long for each. Progress, one call at a time, is told how many there are of those that were missing, 0 first. The
// end of ctx ends it between two pipelines; those that were made stay.
func (w Placement) MakePipelines(ctx context.Context, graphs []*Graph, progress func(done, total int)) error {
	type job struct {
		die *Die
		key string
		x   shaders.Dispatch
	}
	var jobs []job
	for _, d := range w.Dies {
		missing := map[string]shaders.Dispatch{}
		for _, g := range graphs {
			for _, n := range g.Nodes {
				if w.Dies[w.Split.Die(n.Layer)] != d {
					continue
				}
				ds, err := n.Op.Lower(&d.Kernels)
				if err != nil {
					return fmt.Errorf("%s: %w", n.Label(), err)
				}
				for _, x := range ds {
					if key := pipelineKey(x); d.pipelines[key] == nil {
						missing[key] = x
					}
				}
			}
		}
		for _, key := range slices.Sorted(maps.Keys(missing)) {
			jobs = append(jobs, job{d, key, missing[key]})
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	progress(0, len(jobs))
	var mu sync.Mutex // guards what the goroutines share: done, failed, the dies' pipelines
	done, next, failed := 0, atomic.Int32{}, error(nil)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(jobs)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(jobs) {
					return
				}
				j := jobs[i]
				p, err := (*vk.Pipeline)(nil), ctx.Err()
				if err == nil {
					p, err = j.die.newPipeline(j.x)
				}
				mu.Lock()
				if err != nil {
					if failed == nil {
						failed = err
					}
					next.Store(int32(len(jobs)))
				} else {
					done++
					j.die.pipelines[j.key] = p
					progress(done, len(jobs))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

// damage returns code in which every multiplication of floats is an addition: a kernel that runs and is
// wrong.
func damage(code []byte) []byte {
	const opFAdd, opFMul, header = 129, 133, 20
	bad := append([]byte{}, code...)
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(bad[i:]) }
	for i := header; i+4 <= len(bad) && word(i)>>16 > 0; i += 4 * int(word(i)>>16) {
		if word(i)&0xffff == opFMul {
			binary.LittleEndian.PutUint16(bad[i:], opFAdd)
		}
	}
	return bad
}
