package engine_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/vk"
)

// The phases of an engine's life in which calls are made to fail.
const (
	duringLoad     = "load"
	duringPrefill  = "prefill"
	duringDecode   = "decode"
	duringShutdown = "shutdown"
)

// sweepNumbers are the calls of a kind that fail, counted from the beginning of the phase.
var sweepNumbers = []int{1, 2, 7, 50}

// sweepMost is the longest that a fault may take to have its consequences.
const sweepMost = 30 * time.Second

// Calls that no engine on a software device makes, and why. They fail in the tests of package vk.
var notSwept = map[string]string{
	"vkCreateQueryPool":              "times of ops are noted for bench and tune alone",
	"vkGetQueryPoolResults":          "likewise",
	"vkResetCommandBuffer":           "command buffers are recorded once",
	"vkFlushMappedMemoryRanges":      "the memory of these devices is coherent",
	"vkInvalidateMappedMemoryRanges": "likewise",
}

// A Vulkan call that fails ends the requests that it concerns with an error that says what failed, and no others; the engine
// goes on, or, if the device is lost, can be closed, and another opened. Nothing is left of what failed. Every kind of call
// fails in every phase in which it is made, the first, second, seventh and fiftieth time, with every error it might have.
func TestFaultSweep(t *testing.T) {
	struck, phases := map[string]int{}, map[string]int{}
	injected, total := 0, 0
	for _, r := range devices(t, "auto") {
		if !strings.HasPrefix(r.name, "llvmpipe") && os.Getenv("CALDERA_LONG") == "" {
			continue
		}
		done := map[string]map[string]int{}
		// The floor waits for fences and copies weights, and does what is left as a device with all features does.
		for _, profile := range []string{"auto", "floor"} {
			start := time.Now()
			s := newSweep(t, r, profile)
			s.run(func(phase, call string) bool {
				return phase != duringLoad && call != "vkQueueSubmit" && done[phase][call] > 0
			})
			s.close()
			n := 0
			for phase, calls := range s.struck {
				for call, k := range calls {
					struck[call] += k
					phases[phase] += k
					n += k
				}
			}
			t.Logf("%s, %s: %d faults armed, %d struck, in %v", r.name, profile, s.injected, n, time.Since(start).Round(100*time.Millisecond))
			injected, total, done = injected+s.injected, total+n, s.struck
		}
	}
	for _, call := range slices.Sorted(maps.Keys(struck)) {
		t.Logf("%4d %s", struck[call], call)
	}
	t.Logf("%d faults armed, %d struck: %v", injected, total, phases)
	if total < 200 {
		t.Errorf("%d faults struck, 200 at least are expected", total)
	}
	for _, call := range vk.Calls() {
		if (struck[call] == 0) != (notSwept[call] != "") {
			t.Errorf("%s failed %d times, exempt: %q", call, struck[call], notSwept[call])
		}
	}
}

// A sweep is the faults of one device and profile.
type sweep struct {
	t          *testing.T
	cfg        engine.Config
	base       map[string]int64 // Vulkan objects before
	goroutines int
	counts     map[string]map[string]int // calls of a clean run, by phase and kind
	want       map[string][][]int32      // tokens of a clean run, by phase

	e   *engine.Engine
	dev *vk.Device
	mem vk.MemoryInUse // without plans

	closing error // of the last shutdown

	all      bool // faults, however long they take
	injected int
	struck   map[string]map[string]int // by phase and call
}

func newSweep(t *testing.T, r rig, profile string) *sweep {
	t.Helper()
	t.Setenv("CALDERA_CACHE_DIR", t.TempDir())
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, small.config(t).Data, 0o600); err != nil {
		t.Fatal(err)
	}
	r.profile = profile
	cfg := r.config(engine.Config{Path: path, Context: 256, Slots: 3, Batch: 2, CacheRAM: 8 << 20})
	if profile == "floor" {
		cfg.SubmitBudget = time.Millisecond // steps of several submissions
		if os.Getenv("CALDERA_LONG") == "" {
			cfg.Batch = 1 // half the kernels to make after each loss
		}
	}
	s := &sweep{t: t, cfg: cfg, base: vk.Live(), goroutines: runtime.NumGoroutine(), all: os.Getenv("CALDERA_LONG") != "", struck: map[string]map[string]int{}}
	for _, phase := range []string{duringLoad, duringPrefill, duringDecode, duringShutdown} {
		s.struck[phase] = map[string]int{}
	}
	s.clean()
	return s
}

// open opens an engine without faults.
func (s *sweep) open() {
	s.t.Helper()
	e, dev, err := s.opened(nil)
	if err != nil {
		s.t.Fatalf("opening after a fault: %v", err)
	}
	s.e, s.dev = e, dev
}

// opened opens an engine with faults. The device is nil where it could not be made.
func (s *sweep) opened(faults []vk.Fault) (e *engine.Engine, dev *vk.Device, err error) {
	e, err = engine.Open(engine.WithFaults(s.cfg, faults, func(d *vk.Device) { dev = d }))
	return e, dev, err
}

// clean runs every phase without a fault, and notes what comes of it and how many calls that takes.
func (s *sweep) clean() {
	const never = 1 << 30
	var all []vk.Fault
	for _, call := range vk.Calls() {
		all = append(all, vk.Fault{Call: call, N: never, Result: vk.ErrorUnknown})
	}
	e, dev, err := s.opened(all)
	if err != nil {
		s.t.Fatal(err)
	}
	s.e, s.dev = e, dev
	s.counts, s.want = map[string]map[string]int{}, map[string][][]int32{}
	before := map[string]int{}
	count := func(phase string) {
		m := map[string]int{}
		for _, f := range dev.Armed() {
			if n := never - f.N; n > before[f.Call] {
				m[f.Call], before[f.Call] = n-before[f.Call], n
			}
		}
		s.counts[phase] = m
	}
	count(duringLoad)
	for _, phase := range []string{duringPrefill, duringDecode} {
		s.fresh()
		count("") // of preparations
		for i, o := range s.requests(phase, func() { count("") }) {
			if o.err != nil {
				s.t.Fatalf("%s, request %d without a fault: %v", phase, i, o.err)
			}
			s.want[phase] = append(s.want[phase], o.tokens)
		}
		count(phase)
	}
	s.fresh()
	s.mem = s.e.MemoryInUse()
	s.requests(duringShutdown, func() { count("") })
	if s.closing != nil {
		s.t.Fatalf("closing without a fault: %v", s.closing)
	}
	count(duringShutdown)
	s.nothingLeft("a clean run")
	s.open()
}

// fresh brings the engine into the state in which phases begin.
func (s *sweep) fresh() {
	engine.DropPlans(s.e)
	s.e.Cache().Clear()
}

// An outcome is what a request gave.
type outcome struct {
	tokens []int32
	err    error
}

// requests sends the requests of a phase and returns what they give; ready is called where the phase begins, which in decoding
// is when tokens come. That of the shutdown closes the engine while they run.
func (s *sweep) requests(phase string, ready func()) []outcome {
	s.t.Helper()
	ctx := context.Background()
	prompt := func(seed, n int) (p []int32) {
		for i := range n {
			p = append(p, int32((seed*37+i*11)%250+1))
		}
		return p
	}
	var streams []*engine.Stream
	var outs []outcome
	send := func(seed, n, tokens int) {
		r := greedy(prompt(seed, n), tokens)
		st, err := s.e.Generate(ctx, r)
		if err != nil {
			outs = append(outs, outcome{err: err})
			streams = append(streams, nil)
			return
		}
		streams, outs = append(streams, st), append(outs, outcome{})
	}
	begun := func() { // every request has given a token, or ended
		for i, st := range streams {
			if st == nil {
				continue
			}
			if tok, ok := engine.NextToken(st); ok {
				outs[i].tokens = append(outs[i].tokens, tok.ID)
			}
		}
	}
	s.within(phase, func() {
		switch phase {
		case duringPrefill:
			ready()
			send(1, 60, 1)
			send(2, 35, 1)
			send(3, 17, 2)
			send(4, 5, 2) // waits for a slot
		case duringDecode:
			send(5, 3, 30)
			send(6, 5, 50)
			begun()
			ready()
			send(7, 4, 12)
		case duringShutdown:
			send(5, 3, 60)
			send(6, 5, 60)
			begun()
			ready()
			return
		}
		s.gather(streams, outs)
	})
	if phase == duringShutdown {
		s.within(phase, func() {
			s.closing = s.e.Close()
			s.gather(streams, outs)
		})
	}
	return outs
}

// gather waits for the ends of requests.
func (s *sweep) gather(streams []*engine.Stream, outs []outcome) {
	for i, st := range streams {
		if st == nil {
			continue
		}
		for tok, err := range st.Tokens() {
			if err != nil {
				outs[i].err = err
				break
			}
			outs[i].tokens = append(outs[i].tokens, tok.ID)
		}
	}
}

// within runs f, which must not take long.
func (s *sweep) within(what string, f func()) {
	s.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(sweepMost):
		buf := make([]byte, 1<<20)
		s.t.Fatalf("%s takes more than %v:\n%s", what, sweepMost, buf[:runtime.Stack(buf, true)])
	}
}
