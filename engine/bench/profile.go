package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/shaders"
)

// Kinds of steps that are profiled.
const (
	Decode  = "decode"  // a token of each sequence
	Prefill = "prefill" // the first step of a prompt
)

// An OpRow is all ops of a step with the same name, kernel, block type and shape.
type OpRow struct {
	Op        string  `json:"op"` // e.g. "attn_qkv"
	Kernel    string  `json:"kernel"`
	Shape     string  `json:"shape"` // block type and dimensions, or empty
	Count     int     `json:"count"` // in a step
	NS        int64   `json:"ns"`    // of a step: all of them, each its median
	Share     float64 `json:"share"` // of the sum of all ops
	Bytes     int64   `json:"bytes"` // weights read once and everything else read and written
	Flops     int64   `json:"flops"`
	GBs       float64 `json:"gb_per_s"`
	GFlops    float64 `json:"gflop_per_s"`
	CopyShare float64 `json:"copy_share"` // of the device's copy bandwidth
}

// A StepProfile is where the device's time of one step goes. Times are medians.
type StepProfile struct {
	Step        string `json:"step"` // Decode or Prefill
	Rows        int    `json:"rows"` // of all sequences
	Sequences   int    `json:"n_sequences"`
	Depth       int    `json:"n_depth"`
	Repetitions int    `json:"repetitions"`
	Dispatches  int    `json:"dispatches"`
	Barriers    int    `json:"barriers"`

	SumNS    int64 `json:"sum_ns"`    // of the ops
	DeviceNS int64 `json:"device_ns"` // from the first timestamp to the last
	WaitNS   int64 `json:"wait_ns"`   // from submitting the plan with timestamps to its end, on the host
	PlainNS  int64 `json:"plain_ns"`  // the same of the ordinary plan, measured in turn
	// With several devices: the bytes of rows that go from one to the next, and the time of the copies on the devices and on the host.
	CarriedBytes int64 `json:"carried_bytes"`
	CarryNS      int64 `json:"carry_ns"`
	HostCarryNS  int64 `json:"host_carry_ns"`
	StampNS      int64 `json:"stamp_ns"` // what a timestamp costs: the difference of the two, over the dispatches

	CopyGBs    float64 `json:"copy_gb_per_s"` // of a copy on the device, bytes read and written
	Bytes      int64   `json:"bytes"`
	Flops      int64   `json:"flops"`
	BoundNS    int64   `json:"bound_ns"`    // the time in which a copy moves as many bytes
	BoundShare float64 `json:"bound_share"` // of the ordinary plan's time

	Ops []OpRow `json:"ops"`
}

// Profile measures the steps of a test op by op: a decode step for one that generates, and the first step of a
// prompt for one that has a prompt. Copy is the device's bandwidth, see [engine.Engine.CopyRate].
func Profile(ctx context.Context, e *engine.Engine, t Test, o Options, copy float64) ([]StepProfile, error) {
	var all []StepProfile
	add := func(step string, p engine.ProfileOptions) error {
		p.Repetitions, p.Seed = o.Repetitions, o.Seed
		r, err := e.Profile(ctx, p)
		if err != nil {
			return fmt.Errorf("profile of a %s step of %s: %w", step, t.Name(), err)
		}
		all = append(all, newStepProfile(step, r, copy))
		return nil
	}
	if t.Prompt > 0 {
		if err := add(Prefill, engine.ProfileOptions{Rows: min(t.Prompt, e.Batch()), Depth: t.Depth}); err != nil {
			return nil, err
		}
	}
	if t.Gen > 0 {
		if err := add(Decode, engine.ProfileOptions{Sequences: t.seqs(), Depth: t.Depth + t.Prompt}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// opKey tells rows apart.
type opKey struct{ name, kernel, detail string }

// newStepProfile adds up the ops of a profile over the layers, the longest first.
func newStepProfile(step string, p *engine.Profile, copy float64) StepProfile {
	s := StepProfile{
		Step: step, Rows: p.Rows * p.Sequences, Sequences: p.Sequences, Depth: p.Depth, Repetitions: p.Repetitions,
		Dispatches: p.Dispatches, Barriers: p.Barriers,
		DeviceNS: p.Device.Nanoseconds(), WaitNS: p.Wait.Nanoseconds(), PlainNS: p.Plain.Nanoseconds(), CopyGBs: copy / 1e9,
	}
	s.CarriedBytes, s.CarryNS, s.HostCarryNS = p.Carried*int64(s.Rows), p.Carry.Nanoseconds(), p.HostCarry.Nanoseconds()
	s.StampNS = max(0, s.WaitNS-s.PlainNS) / int64(max(1, s.Dispatches))
	at := map[opKey]int{}
	for _, o := range p.Ops {
		k := opKey{o.Name, o.Kernel, o.Detail}
		i, ok := at[k]
		if !ok {
			i = len(s.Ops)
			at[k] = i
			s.Ops = append(s.Ops, OpRow{Op: o.Name, Kernel: o.Kernel, Shape: o.Detail})
		}
		r := &s.Ops[i]
		r.Count++
		r.NS += o.Time.Nanoseconds()
		r.Bytes += moved(o.Cost)
		r.Flops += o.Cost.Flops
		s.SumNS += o.Time.Nanoseconds()
		s.Bytes += moved(o.Cost)
		s.Flops += o.Cost.Flops
	}
	for i := range s.Ops {
		r := &s.Ops[i]
		// Bytes in a nanosecond are GB in a second.
		r.Share, r.GBs, r.GFlops = ratio(r.NS, s.SumNS), ratio(r.Bytes, r.NS), ratio(r.Flops, r.NS)
		if s.CopyGBs > 0 {
			r.CopyShare = r.GBs / s.CopyGBs
		}
	}
	slices.SortStableFunc(s.Ops, func(a, b OpRow) int { return int(b.NS - a.NS) })
	if copy > 0 {
		s.BoundNS = int64(float64(s.Bytes) / copy * 1e9)
		s.BoundShare = ratio(s.BoundNS, s.PlainNS)
	}
	return s
}

// moved is the bytes of a cost.
func moved(c shaders.Cost) int64 { return c.Weights + c.Bytes }

// ratio is a/b, 0 where b is.
func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// Title says what step it is: "decode step of 1 row @ d4096".
func (s *StepProfile) Title() string {
	t := fmt.Sprintf("%s step of %d row", s.Step, s.Rows)
	if s.Rows != 1 {
		t += "s"
	}
	if s.Depth > 0 {
		t += fmt.Sprintf(" @ d%d", s.Depth)
	}
	return t
}

// Print writes the profile as a table, and below it what holds for the step as a whole.
func (s *StepProfile) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d dispatches, %d barriers; medians of %d\n\n", s.Title(), s.Dispatches, s.Barriers, s.Repetitions)
	rows := [][]string{{"op", "kernel", "shape", "count", "µs/step", "share", "GB/s", "GFLOP/s", "of copy"}}
	row := func(op, kernel, shape string, count int, ns, bytes, flops int64, copy float64) {
		rows = append(rows, []string{clean(op), kernel, shape, strconv.Itoa(count), fmt.Sprintf("%.1f", micro(ns)), percent(ratio(ns, s.SumNS)),
			fmt.Sprintf("%.2f", ratio(bytes, ns)), fmt.Sprintf("%.2f", ratio(flops, ns)), percent(copy)})
	}
	for _, r := range s.Ops {
		row(r.Op, r.Kernel, r.Shape, r.Count, r.NS, r.Bytes, r.Flops, r.CopyShare)
	}
	row("sum", "", "", s.count(), s.SumNS, s.Bytes, s.Flops, ratio(s.BoundNS, s.SumNS))
	writeTable(&b, 3, rows)
	fmt.Fprintf(&b, "\nops: %s of the %.1f µs from the first timestamp to the last\n", percent(ratio(s.SumNS, s.DeviceNS)), micro(s.DeviceNS))
	if s.CarriedBytes > 0 {
		fmt.Fprintf(&b, "rows from device to device: %d bytes, copied in %.1f µs on the devices and %.1f on the host\n", s.CarriedBytes, micro(s.CarryNS), micro(s.HostCarryNS))
	}
	fmt.Fprintf(&b, "host: %.1f µs from submitting this plan to its end and %.1f µs for the ordinary one; a timestamp costs %.1f µs\n",
		micro(s.WaitNS), micro(s.PlainNS), micro(s.StampNS))
	fmt.Fprintf(&b, "bound: %.2f MB take %.1f µs at the copy's %.2f GB/s, %s of the ordinary step's time; it computes %.3f GFLOP at %.2f GFLOP/s\n",
		float64(s.Bytes)/1e6, micro(s.BoundNS), s.CopyGBs, percent(s.BoundShare), float64(s.Flops)/1e9, ratio(s.Flops, s.PlainNS))
	_, err := io.WriteString(w, b.String())
	return err
}

// count is the number of ops.
func (s *StepProfile) count() int {
	n := 0
	for _, r := range s.Ops {
		n += r.Count
	}
	return n
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func micro(ns int64) float64 { return float64(ns) / float64(time.Microsecond) }
