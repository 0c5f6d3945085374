package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/vk"
)

// sentinels are what errors of results wrap.
var sentinels = map[vk.Result]error{
	vk.ErrorDeviceLost: engine.ErrDeviceLost, vk.ErrorOutOfDeviceMemory: engine.ErrOutOfMemory,
	vk.ErrorOutOfHostMemory: vk.ErrOutOfHostMemory, vk.Timeout: engine.ErrHang,
}

// madeOnce are the calls of which an engine that has run steps makes no more.
var madeOnce = []string{"vkCreateComputePipelines", "vkCreateDescriptorSetLayout", "vkCreatePipelineLayout", "vkCreateShaderModule"}

// losing are the calls by which drivers tell of a lost device.
var losing = []string{"vkCreateDevice", "vkDeviceWaitIdle", "vkGetFenceStatus", "vkGetSemaphoreCounterValue", "vkQueueSubmit", "vkWaitForFences", "vkWaitSemaphores"}

// results are the errors that the i-th of sweepNumbers of a call returns in a phase. A lost device takes making all kernels
// anew, which is most of the time, so that without CALDERA_LONG only such calls lose it as do in practice, and those that
// are the first of their kind have more errors than later ones.
func (s *sweep) results(phase, call string, i int) (list []vk.Result) {
	if s.all || phase == duringLoad || slices.Contains(losing, call) {
		list = append(list, vk.ErrorDeviceLost)
	}
	if s.all || i%2 == 0 {
		list = append(list, vk.ErrorOutOfDeviceMemory)
	}
	if s.all || i%2 == 1 || i == 0 {
		list = append(list, vk.ErrorOutOfHostMemory)
	}
	if strings.HasPrefix(call, "vkWait") && (s.all || i%2 == 0) {
		list = append(list, vk.Timeout)
	}
	return list
}

// reached reports whether a phase may come to the n-th call of a kind. How often a device is asked whether it is done is a
// matter of time.
func (s *sweep) reached(phase, call string, n int) bool {
	count := s.counts[phase][call]
	if strings.HasPrefix(call, "vkGet") || strings.HasPrefix(call, "vkWait") {
		count += count / 2
	}
	return n <= count
}

// run makes every call fail in every phase, but for those that done says have.
func (s *sweep) run(done func(phase, call string) bool) {
	for _, phase := range []string{duringLoad, duringPrefill, duringDecode, duringShutdown} {
		late := 0 // faults that come after the last call
		for _, call := range vk.Calls() {
			if !s.all && done(phase, call) {
				continue
			}
			for i, n := range sweepNumbers {
				for _, r := range s.results(phase, call, i) {
					if !s.reached(phase, call, n) {
						if late++; late > 2 {
							continue // without a call nothing fails: two such runs show that
						}
					}
					s.inject(phase, vk.Fault{Call: call, N: n, Result: r})
				}
			}
		}
	}
}

// inject runs a phase with a fault.
func (s *sweep) inject(phase string, f vk.Fault) {
	s.injected++
	what := fmt.Sprintf("%s: call %d of %s returns %s", phase, f.N, f.Call, f.Result)
	if phase == duringLoad {
		s.load(what, f)
		return
	}
	if slices.Contains(madeOnce, f.Call) && s.e != nil {
		s.close()
	}
	if s.e == nil {
		s.open()
	}
	s.fresh()
	outs := s.requests(phase, func() { s.dev.InjectFault(f.Call, f.N, f.Result) })
	struck := len(s.dev.Armed()) == 0
	if struck {
		s.note(phase, f)
	}
	s.dev.Disarm()
	for i, o := range outs {
		s.ended(fmt.Sprintf("%s, request %d", what, i), phase, i, o, f, struck)
	}
	if phase == duringShutdown {
		if err := s.closing; err != nil && !(struck && errors.Is(err, sentinels[f.Result])) {
			s.t.Errorf("%s: closing: %v", what, err)
		}
		s.nothingLeft(what)
		s.open()
		return
	}
	s.serves(what, struck, f)
}

// note counts a fault that has struck.
func (s *sweep) note(phase string, f vk.Fault) {
	s.struck[phase][f.Call]++
}

// ended checks how a request has ended.
func (s *sweep) ended(what, phase string, i int, o outcome, f vk.Fault, struck bool) {
	s.t.Helper()
	if phase == duringShutdown {
		// The same requests as in decoding, longer.
		want := s.want[duringDecode][i]
		if n := min(len(want), len(o.tokens)); !slices.Equal(o.tokens[:n], want[:n]) {
			s.t.Errorf("%s: tokens %v, want %v", what, o.tokens, want)
		}
	} else if w := s.want[phase]; w != nil {
		switch want := w[i]; {
		case o.err == nil && !slices.Equal(o.tokens, want):
			s.t.Errorf("%s: tokens %v, want %v", what, o.tokens, want)
		case len(o.tokens) > len(want) || !slices.Equal(o.tokens, want[:len(o.tokens)]):
			s.t.Errorf("%s: tokens %v and %v, want the beginning of %v", what, o.tokens, o.err, want)
		}
	}
	switch {
	case o.err == nil, phase == duringShutdown && errors.Is(o.err, engine.ErrClosed):
	case !struck:
		s.t.Errorf("%s, which it never did: %v", what, o.err)
	case !errors.Is(o.err, sentinels[f.Result]) && !(f.Result == vk.Timeout && errors.Is(o.err, engine.ErrDeviceLost)):
		s.t.Errorf("%s: the error is %v", what, o.err)
	case f.Result != vk.Timeout && !strings.Contains(o.err.Error(), f.Result.String()):
		s.t.Errorf("%s: the error does not say so: %v", what, o.err)
	}
}

// serves checks that the engine goes on, or, if its device is lost, that it says so, leaves nothing and another takes its place.
func (s *sweep) serves(what string, struck bool, f vk.Fault) {
	s.t.Helper()
	lost := struck && (f.Result == vk.ErrorDeviceLost || f.Result == vk.Timeout)
	if s.dev.Lost() != lost {
		s.t.Errorf("%s: lost is %v", what, s.dev.Lost())
	}
	if !lost {
		s.within(what, func() { s.answers(what) })
		if held := engine.Held(s.e); held != "" {
			s.t.Errorf("%s: %s", what, held)
		}
		s.fresh()
		if now := s.e.MemoryInUse(); now.Buffers != s.mem.Buffers {
			s.t.Errorf("%s: memory in use is %v, before %v", what, now.Buffers, s.mem.Buffers)
		}
		return
	}
	s.within(what, func() {
		st, err := s.e.Generate(context.Background(), greedy([]int32{1, 2}, 2))
		if err == nil {
			_, err = collect(st)
		}
		if !errors.Is(err, engine.ErrDeviceLost) {
			s.t.Errorf("%s: a request afterwards: %v", what, err)
		}
	})
	if !errors.Is(s.e.Lost(), engine.ErrDeviceLost) {
		s.t.Errorf("%s: the engine does not say that the device is lost: %v", what, s.e.Lost())
	}
	s.close()
	s.open()
}

// answers checks an answer of the engine. Prompts depend on no other, so that of a phase serves.
func (s *sweep) answers(what string) {
	s.t.Helper()
	prompt := []int32{}
	for i := range 5 {
		prompt = append(prompt, int32((4*37+i*11)%250+1))
	}
	st, err := s.e.Generate(context.Background(), greedy(prompt, 2))
	if err != nil {
		s.t.Errorf("%s: the next request: %v", what, err)
		return
	}
	if got, err := collect(st); err != nil || !slices.Equal(got, s.want[duringPrefill][3]) {
		s.t.Errorf("%s: the next request gives %v, %v; want %v", what, got, err, s.want[duringPrefill][3])
	}
}

// load opens an engine with a fault. Calls count from the making of the device on.
func (s *sweep) load(what string, f vk.Fault) {
	s.t.Helper()
	if s.e != nil {
		s.close()
	}
	var e *engine.Engine
	var dev *vk.Device
	var err error
	s.within(what, func() { e, dev, err = s.opened([]vk.Fault{f}) })
	struck := err != nil || len(dev.Armed()) == 0
	if struck {
		s.note(duringLoad, f)
	}
	if err != nil {
		s.ended(what, duringLoad, 0, outcome{err: err}, f, struck)
		s.e, s.dev = nil, dev
		s.nothingLeft(what)
		return
	}
	// It did without what failed.
	s.e, s.dev = e, dev
	s.dev.Disarm()
	if dev.Lost() {
		s.t.Errorf("%s: opened on a lost device", what)
	}
	s.within(what, func() { s.answers(what) })
	s.close()
}

// close closes the engine, which leaves nothing.
func (s *sweep) close() {
	s.t.Helper()
	if s.e == nil {
		return
	}
	s.within("closing", func() {
		if err := s.e.Close(); err != nil {
			s.t.Errorf("closing: %v", err)
		}
	})
	s.nothingLeft("closing")
}

// nothingLeft checks that a closed engine has left nothing, and forgets it.
func (s *sweep) nothingLeft(what string) {
	s.t.Helper()
	if s.dev != nil {
		if n := s.dev.Left(); n > 0 {
			s.t.Errorf("%s: %d objects were never freed", what, n)
		}
	}
	if now := vk.Live(); fmt.Sprint(now) != fmt.Sprint(s.base) {
		s.t.Errorf("%s: Vulkan objects %v, before %v", what, now, s.base)
		s.base = now // say it once
	}
	for start := time.Now(); runtime.NumGoroutine() > s.goroutines+2; time.Sleep(time.Millisecond) {
		if time.Since(start) > 5*time.Second {
			buf := make([]byte, 1<<20)
			s.t.Fatalf("%s: %d goroutines, before %d:\n%s", what, runtime.NumGoroutine(), s.goroutines, buf[:runtime.Stack(buf, true)])
		}
	}
	s.e, s.dev = nil, nil
}
