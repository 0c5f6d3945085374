package vk

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

//go:embed testdata/affine.spv
var affineSPIRV []byte

//go:embed testdata/texels.spv
var texelsSPIRV []byte

// instance is shared by the tests: nil without a loader or device.
var (
	instance *Instance
	openErr  error
)

// TestMain opens Vulkan with the validation layer where it is installed, and
// fails when it had anything to say.
func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "vk-cache-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Setenv("CALDERA_CACHE_DIR", dir)
	validate := os.Getenv("CALDERA_VALIDATION") != "0"
	instance, openErr = Open(Config{AppName: "vk test", Validation: validate, GPUAssisted: os.Getenv("CALDERA_VALIDATION") == "gpu"})
	if validate && errors.Is(openErr, ErrUnsupported) {
		fmt.Fprintln(os.Stderr, openErr)
		instance, openErr = Open(Config{AppName: "vk test"})
	}
	code := m.Run()
	if instance != nil {
		instance.Close()
		if n := instance.ValidationCount(); n > 0 {
			fmt.Fprintf(os.Stderr, "FAIL: %d validation messages\n", n)
			for _, s := range instance.ValidationMessages() {
				fmt.Fprintln(os.Stderr, "\t"+s)
			}
			code = 1
		}
	}
	return code
}

func needInstance(t testing.TB) *Instance {
	t.Helper()
	if instance == nil {
		t.Skip(openErr)
	}
	return instance
}

// eachDevice runs a test on every device, with all it has and with the floor.
func eachDevice(t *testing.T, f func(t *testing.T, d *Device)) {
	in := needInstance(t)
	for _, info := range in.Devices() {
		if m := info.Missing(); len(m) > 0 {
			t.Logf("%s lacks %v", info, m)
			continue
		}
		for _, name := range []string{"auto", "floor"} {
			t.Run(fmt.Sprintf("%d-%s-%s", info.Index, info.Type, name), func(t *testing.T) {
				f(t, openDevice(t, info, name))
			})
		}
	}
}

// openDevice opens a device for the length of a test.
func openDevice(t testing.TB, info DeviceInfo, profile string) *Device {
	t.Helper()
	p, err := ProfileFor(info, profile)
	if err != nil {
		t.Fatal(err)
	}
	d, err := needInstance(t).NewDevice(info, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !d.Lost() {
			t.Error(err)
		}
	})
	return d
}

// must returns v, or ends the test run with err.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const groupSize = 32

// affine is the test kernel with its push constants.
func newAffine(d *Device, factor uint32) (*Pipeline, error) {
	return d.NewPipeline(PipelineConfig{Name: "affine", SPIRV: affineSPIRV, Buffers: 2, PushBytes: 12, Spec: []uint32{groupSize, factor}})
}

func words(v ...uint32) []byte {
	b := make([]byte, 4*len(v))
	for i, w := range v {
		binary.LittleEndian.PutUint32(b[4*i:], w)
	}
	return b
}

func wordsOf(b []byte) []uint32 {
	v := make([]uint32, len(b)/4)
	for i := range v {
		v[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return v
}

func groups(n int) [3]uint32 { return [3]uint32{uint32((n + groupSize - 1) / groupSize), 1, 1} }

// run records, submits and waits.
func run(t testing.TB, d *Device, cmds ...Command) {
	t.Helper()
	cb, err := d.NewCommandBuffer()
	check(t, err)
	defer cb.Free()
	check(t, cb.Record(cmds))
	ticket, err := d.Submit([]*CommandBuffer{cb})
	check(t, err)
	check(t, ticket.Wait(time.Minute))
	ticket.Release()
}

// counting returns the words 0..n-1.
func counting(n int) []byte {
	v := make([]uint32, n)
	for i := range v {
		v[i] = uint32(i)
	}
	return words(v...)
}
