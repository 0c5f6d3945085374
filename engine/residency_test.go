package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// devicesThatImport returns the UUIDs and names of devices that read host memory in place.
func devicesThatImport(t *testing.T) (list []vk.DeviceInfo) {
	t.Helper()
	in, err := vk.Open(vk.Config{AppName: "caldera tests"})
	if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for _, d := range in.Devices() {
		if d.Unified() && d.Features.HostImport {
			list = append(list, d)
		}
	}
	if len(list) == 0 {
		t.Skip("no device reads host memory in place")
	}
	return list
}

// writeDemo writes the demo model as parts files with an alignment, with a tensor of 34 bytes that nothing uses
// before the odd-th, so that those after it are not at whole words when the alignment is small. It returns the
// path of the first part. The files' time of modification lies in the past.
func writeDemo(t *testing.T, parts int, align uint32, odd int) string {
	t.Helper()
	f, err := gguf.OpenBytes(demo.Name, demo.Model())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	all := f.Tensors()
	for part := range parts {
		var w gguf.Writer
		set := func(key string, v any) {
			if err := w.Set(key, v); err != nil {
				t.Fatal(err)
			}
		}
		name := "demo.gguf"
		if parts > 1 {
			name = fmt.Sprintf("demo-%05d-of-%05d.gguf", part+1, parts)
			set("split.no", uint16(part))
			set("split.count", uint16(parts))
			n := len(all)
			if odd >= 0 {
				n++
			}
			set("split.tensors.count", int32(n))
		}
		if part == 0 {
			for key, v := range f.KeyValues() {
				set(key, v)
			}
		}
		set("general.alignment", align)
		for i := part * len(all) / parts; i < (part+1)*len(all)/parts; i++ {
			x := all[i]
			if i == odd {
				if err := w.AddTensor("odd", quant.Q8_0, []uint64{32}, make([]byte, 34)); err != nil {
					t.Fatal(err)
				}
			}
			data, err := f.Data(x)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.AddTensor(x.Name, x.Type, x.Dims, data); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, name)
		if err := w.WriteFile(path); err != nil {
			t.Fatal(err)
		}
		past := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.gguf"))
	if err != nil || len(names) != parts {
		t.Fatal(names, err)
	}
	return names[0]
}

// openFor opens a model for the length of a test.
func openFor(t *testing.T, cfg Config) *Engine {
	t.Helper()
	cfg.Context, cfg.Check = 64, true
	e, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

var residencyPrompt = []int32{2553, 558, 258, 586, 466, 309, 12, 7}

// continuation feeds a prompt and the three best tokens after it, one by one, and returns all logits on the way.
func continuation(t *testing.T, e *Engine) (all []float32) {
	t.Helper()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tokens := residencyPrompt
	for range 4 {
		row, err := s.Last(context.Background(), tokens)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, row...)
		best := 0
		for i, v := range row {
			if v > row[best] {
				best = i
			}
		}
		tokens = []int32{int32(best)}
	}
	return all
}

// Weights give the same logits, bit for bit, wherever they live and however the file is laid out: in one file or in
// parts, in large windows or in windows that most tensors do not fit, and where some of it cannot be imported.
func TestResidencyAgrees(t *testing.T) {
	devices := devicesThatImport(t)
	files := []struct {
		name   string
		path   string
		window int64
		all    bool // everything but rearranged rows is imported
		least  int  // windows
	}{
		{"whole", writeDemo(t, 1, 32, -1), 0, true, 1},
		{"split", writeDemo(t, 2, 32, -1), 0, true, 2},
		// The embedding, the head and the stacks of experts are larger than this.
		{"small windows", writeDemo(t, 1, 32, -1), 448 << 10, true, 20},
		{"bytes between words", writeDemo(t, 1, 2, 40), 0, false, 1},
		{"split, bytes between words, small windows", writeDemo(t, 3, 1, 90), 448 << 10, false, 3},
	}
	for i, d := range devices {
		copied := func(binding int64) []float32 {
			e := openFor(t, Config{Path: files[0].path, Device: d.UUID, Residency: weights.Copy})
			e.die.LimitBinding(binding)
			return continuation(t, e)
		}
		want := copied(1 << 40)
		for j, f := range files {
			if i < len(devices)-1 && j > 0 && j < len(files)-1 {
				continue // the slower devices take the plain file and the worst one
			}
			t.Run(d.Name+"/"+f.name, func(t *testing.T) {
				e := openFor(t, Config{Path: f.path, Device: d.UUID, window: f.window})
				r := e.Weights()
				total := weights.Total(e.model.Weights)
				if r.Imported+r.Copied != total || r.Imported == 0 || (r.Copied == 0) != f.all || r.Windows < f.least || f.window == 0 && r.Windows > f.least {
					t.Errorf("%+v of %d", r, total)
				}
				if got := e.die.Device.MemoryInUse().Buffers[vk.Imported]; got < r.Imported {
					t.Errorf("%d bytes are imported on the device, %d reported", got, r.Imported)
				}
				want := want
				if f.window > 0 {
					// Experts that are added up in several dispatches are added up in another order.
					want = copied(e.die.Kernels.MaxBinding)
				}
				if !slices.Equal(continuation(t, e), want) {
					t.Error("the logits differ from those of copied weights")
				}
			})
		}
	}
}

// An import that the driver refuses is a copy, and the report says so.
func TestResidencyFallsBack(t *testing.T) {
	path := writeDemo(t, 1, 32, -1)
	// What the driver refuses does not depend on it here: one device is enough.
	devices := devicesThatImport(t)
	for _, d := range devices[len(devices)-1:] {
		want := continuation(t, openFor(t, Config{Path: path, Device: d.UUID, Residency: weights.Copy}))
		for _, c := range []struct {
			call string
			n    int
		}{{"vkGetMemoryHostPointerPropertiesEXT", 1}, {"vkAllocateMemory", 1}, {"vkCreateBuffer", 3}, {"vkBindBufferMemory", 2}} {
			t.Run(d.Name+"/"+c.call, func(t *testing.T) {
				e := openFor(t, Config{Path: path, Device: d.UUID, Residency: weights.Import, window: 2 << 20, inject: func(d *vk.Device) {
					d.InjectFault(c.call, c.n, vk.ErrorOutOfHostMemory)
				}})
				r := e.Weights()
				if r.Copied == 0 || r.Imported == 0 || len(r.Fallbacks) != 1 || !strings.Contains(r.Fallbacks[0].Reason, c.call) || r.Fallbacks[0].Bytes != r.Copied {
					t.Errorf("%+v", r)
				}
				if !slices.Equal(continuation(t, e), want) {
					t.Error("the logits differ from those of copied weights")
				}
			})
		}
	}
}

// Copies of a model in memory, on devices that the host cannot write to, and of files are what they say.
func TestResidencyReport(t *testing.T) {
	path := writeDemo(t, 1, 32, -1)
	d := devicesThatImport(t)[0]
	for _, c := range []struct {
		name string
		cfg  Config
		want func(r weights.Report, total int64) bool
	}{
		{"memory", Config{Data: demo.Model(), Name: demo.Name}, func(r weights.Report, n int64) bool { return r.Copied == n }},
		{"copy", Config{Path: path, Residency: weights.Copy}, func(r weights.Report, n int64) bool { return r.Copied == n && r.Windows == 0 }},
		{"floor", Config{Path: path, Profile: "floor"}, func(r weights.Report, n int64) bool { return r.Uploaded == n }},
		{"import on the floor", Config{Path: path, Profile: "floor", Residency: weights.Import}, func(r weights.Report, n int64) bool {
			return r.Uploaded == n && strings.Contains(r.Fallbacks[0].Reason, "cannot import")
		}},
	} {
		c.cfg.Device = d.UUID
		var last Progress
		calls := 0
		c.cfg.Progress = func(p Progress) { last, calls = p, calls+1 }
		e := openFor(t, c.cfg)
		total := weights.Total(e.model.Weights)
		if r := e.Weights(); !c.want(r, total) || r.Imported+r.Copied+r.Uploaded+r.Host != total {
			t.Errorf("%s: %+v of %d", c.name, r, total)
		}
		if want := (Progress{total, total, d.Name}); last != want || calls < 2 {
			t.Errorf("%s: progress ends with %+v after %d calls, want %+v", c.name, last, calls, want)
		}
	}
	if _, err := Open(Config{Path: path, Residency: "here"}); err == nil || !strings.Contains(err.Error(), `residency "here"`) {
		t.Errorf("an unknown residency: %v", err)
	}
}

// What happens to a model file while it is in use: damage is an error that names the file, at once and for good, with
// the process alive; what does not touch the bytes goes unnoticed.
func TestFileChanges(t *testing.T) {
	overwrite := func(path string) error {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt(make([]byte, 1<<20), 1<<20)
		return err
	}
	changes := []struct {
		name   string
		change func(path string) error
		want   string // "" for no error
	}{
		{"truncated", func(p string) error { return os.Truncate(p, 100_000) }, "to 100000 bytes"},
		{"truncated to nothing", func(p string) error { return os.Truncate(p, 0) }, "to 0 bytes"},
		{"overwritten", overwrite, "written to"},
		{"renamed over", func(p string) error {
			if err := os.WriteFile(p+".new", []byte("another file"), 0o600); err != nil {
				return err
			}
			return os.Rename(p+".new", p)
		}, ""},
		{"removed", os.Remove, ""},
	}
	// The look at the file is the engine's; one device is enough, and TestFileTruncatedDuringStep takes all of them.
	devices := devicesThatImport(t)
	d := devices[len(devices)-1]
	for _, cfg := range []Config{{Backend: Reference}, {Device: d.UUID}, {Device: d.UUID, Residency: weights.Copy}} {
		for _, c := range changes {
			cfg.Path = writeDemo(t, 1, 32, -1)
			e := openFor(t, cfg)
			t.Run(c.name+"/"+e.Device()+"/"+cfg.Residency, func(t *testing.T) {
				s, err := e.NewSession()
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				ctx := context.Background()
				row, err := s.Last(ctx, residencyPrompt)
				if err != nil {
					t.Fatal(err)
				}
				want := slices.Clone(row)
				if err := c.change(cfg.Path); err != nil {
					t.Fatal(err)
				}
				expect := c.want
				if cfg.Residency == weights.Copy {
					expect = "" // nothing reads the file any more
				}
				var first error
				before := e.DeviceStats().Submits
				for i := range 3 {
					s.Reset()
					row, err := s.Last(ctx, residencyPrompt)
					if expect == "" {
						if err != nil || !slices.Equal(row, want) {
							t.Fatalf("step %d: %v, or other logits", i, err)
						}
						continue
					}
					if !errors.Is(err, gguf.ErrChanged) || !errors.Is(err, ErrModel) || !strings.Contains(err.Error(), cfg.Path) || !strings.Contains(err.Error(), expect) {
						t.Fatalf("step %d: %v, want %q", i, err, expect)
					}
					if first == nil {
						first = err
					}
					if err.Error() != first.Error() {
						t.Errorf("step %d: %v, before %v", i, err, first)
					}
				}
				if n := e.DeviceStats().Submits - before; expect != "" && n != 0 {
					t.Errorf("%d steps were run on a file that had changed", n)
				}
			})
		}
	}
}

// A file that is truncated between the look before a step and the step is found by the look after it: the step reads
// zeros where the pages are gone, on whatever thread, and its results are not returned.
func TestFileTruncatedDuringStep(t *testing.T) {
	configs := []Config{{Backend: Reference}}
	for _, d := range devicesThatImport(t) {
		configs = append(configs, Config{Device: d.UUID})
	}
	for _, cfg := range configs {
		cfg.Path = writeDemo(t, 1, 32, -1)
		e := openFor(t, cfg)
		t.Run(e.Device(), func(t *testing.T) {
			s, err := e.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ctx := context.Background()
			if _, err := s.Last(ctx, residencyPrompt); err != nil {
				t.Fatal(err)
			}
			e.prefault.stop() // as after a while
			// The runner of the plan truncates the file when it is about to run: the step has been let through.
			for k, p := range e.plans {
				p.runner = &truncating{p.runner, cfg.Path}
				e.plans[k] = p
			}
			s.Reset()
			_, err = s.Last(ctx, residencyPrompt)
			if !errors.Is(err, gguf.ErrChanged) || !strings.Contains(err.Error(), cfg.Path) {
				t.Fatalf("the step: %v", err)
			}
			if _, err := s.Last(ctx, residencyPrompt); !errors.Is(err, gguf.ErrChanged) {
				t.Errorf("the session went on: %v", err)
			}
		})
	}
}

// truncating is a runner whose file loses its bytes before the step.
type truncating struct {
	scheduler.Runner
	path string
}

func (r *truncating) Begin(runs []shaders.Run, rope shaders.RopeTable) (*scheduler.Flight, error) {
	if err := os.Truncate(r.path, 50_000); err != nil {
		return nil, err
	}
	return r.Runner.Begin(runs, rope)
}
