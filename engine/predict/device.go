package predict

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A Device is the figures of a GPU. Where each is from is in docs/devices.md and, in short, in Sources.
type Device struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases,omitempty"`
	Memory  float64  `json:"memory_gib"`

	Bandwidth           float64 `json:"bandwidth_gb_s"` // published peak
	BandwidthEfficiency float64 `json:"bandwidth_efficiency"`
	FP32                float64 `json:"fp32_tflops"` // published peak, a multiply-add counts as two
	FP32Efficiency      float64 `json:"fp32_efficiency"`
	Lanes               int     `json:"lanes"` // FP32 units

	Dispatch float64 `json:"dispatch_us"` // of a dispatch that does nothing
	Barrier  float64 `json:"barrier_us"`  // draining the device and filling it again
	Host     float64 `json:"host_us"`     // of a step: writing it, submitting, waking up, reading the result
	Row      float64 `json:"row_us"`      // of a row that waits for the one before it, in the delta rule

	Subgroup int  `json:"subgroup"`
	Binding  int  `json:"binding_mib"` // the largest range of one binding
	Unified  bool `json:"unified,omitempty"`
	// Features are those of vk.Features by name, for kernels that are chosen by them.
	Features []string `json:"features,omitempty"`

	Sources string `json:"sources"`
}

//go:embed devices.json
var devicesJSON []byte

// Devices lists the devices of the table.
var Devices = sync.OnceValue(func() []Device {
	ds, err := parse(devicesJSON)
	if err != nil {
		panic("devices.json: " + err.Error()) // it is part of the program, and a test reads it
	}
	return ds
})

// Generic is what a GPU of today offers to kernels: subgroups of 32 and bindings of 4 GiB. It has no rates; it is
// for counts.
func Generic() Device {
	return Device{Name: "a GPU", Subgroup: 32, Binding: 4096, Features: []string{"storage8", "storage16", "fp16", "int8", "int16", "timeline"}}
}

// ErrUnknown reports a device that the table does not have.
var ErrUnknown = errors.New("not in the table of devices")

// Find returns the device of a name. Case, spaces, dashes and underscores make no difference.
func Find(ds []Device, name string) (Device, error) {
	var names []string
	for _, d := range ds {
		for _, n := range append([]string{d.Name}, d.Aliases...) {
			if plain(n) == plain(name) {
				return d, nil
			}
		}
		names = append(names, d.Name)
	}
	return Device{}, fmt.Errorf("device %q is %w (%s)", name, ErrUnknown, strings.Join(names, ", "))
}

// plain is a name as names are compared.
func plain(s string) string {
	return strings.NewReplacer(" ", "", "-", "", "_", "").Replace(strings.ToLower(s))
}

// maxFile bounds a file of devices.
const maxFile = 1 << 20

// maxQuote is the most characters that an error quotes of a file, and of a device's name.
const maxQuote = 80

// ReadFile reads devices from a JSON file: a list like devices.json, or one device.
func ReadFile(path string) ([]Device, error) {
	// Look before opening: opening a pipe would wait for its writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s: more than %d bytes: not a list of devices", path, maxFile)
	}
	if t := bytes.TrimSpace(b); len(t) > 0 && t[0] == '{' {
		b = append(append([]byte("["), t...), ']')
	}
	ds, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return ds, nil
}

func parse(b []byte) ([]Device, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var ds []Device
	if err := d.Decode(&ds); err != nil {
		if s := err.Error(); len(s) > 2*maxQuote {
			err = fmt.Errorf("%.*s and so on", 2*maxQuote, s) // it quotes what is in the file
		}
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the list of devices")
	}
	if len(ds) == 0 {
		return nil, errors.New("no device in it")
	}
	seen := map[string]bool{}
	for i := range ds {
		if err := ds[i].check(); err != nil {
			return nil, err
		}
		for _, n := range append([]string{ds[i].Name}, ds[i].Aliases...) {
			if seen[plain(n)] {
				return nil, fmt.Errorf("two devices are named %q", n)
			}
			seen[plain(n)] = true
		}
	}
	return ds, nil
}

// check refuses figures that no prediction can be made from.
func (d *Device) check() error {
	for _, n := range append([]string{d.Name}, d.Aliases...) {
		switch {
		case plain(n) == "":
			return errors.New("a device without a name")
		case len(n) > maxQuote:
			return fmt.Errorf("a device has a name of %d bytes; use at most %d", len(n), maxQuote)
		}
	}
	for _, x := range []struct {
		field     string
		v, lo, hi float64
	}{
		{"memory_gib", d.Memory, 0.001, 1 << 20}, {"bandwidth_gb_s", d.Bandwidth, 0.1, 1e6}, {"bandwidth_efficiency", d.BandwidthEfficiency, 0.01, 1},
		{"fp32_tflops", d.FP32, 0.001, 1e5}, {"fp32_efficiency", d.FP32Efficiency, 0.01, 1}, {"lanes", float64(d.Lanes), 1, 1 << 24},
		{"dispatch_us", d.Dispatch, 0, 1e6}, {"barrier_us", d.Barrier, 0, 1e6}, {"host_us", d.Host, 0, 1e6}, {"row_us", d.Row, 0, 1e6},
		{"subgroup", float64(d.Subgroup), 4, 128}, {"binding_mib", float64(d.Binding), 128, 1 << 20},
	} {
		if !(x.v >= x.lo && x.v <= x.hi) {
			return fmt.Errorf("%s: %s is %g; use %g to %g", d.Name, x.field, x.v, x.lo, x.hi)
		}
	}
	if d.Subgroup&(d.Subgroup-1) != 0 {
		return fmt.Errorf("%s: subgroup is %d, which is no power of two", d.Name, d.Subgroup)
	}
	_, err := d.features()
	return err
}

func (d *Device) features() (vk.Features, error) {
	f, unknown := vk.FeaturesOf(d.Features)
	if unknown != "" {
		return f, fmt.Errorf("%s: unknown feature %.*q", d.Name, maxQuote, unknown)
	}
	return f, nil
}

// Kernels is what the device offers to kernels, as if it were present.
func (d *Device) Kernels() shaders.Profile {
	f, _ := d.features() // checked
	return scheduler.Kernels(vk.Profile{
		Name: "auto", Unified: d.Unified, SubgroupSize: d.Subgroup, SubgroupFixed: true,
		SubgroupOps: vk.SubgroupBasic | vk.SubgroupVote | vk.SubgroupArithmetic | vk.SubgroupBallot | vk.SubgroupShuffle | vk.SubgroupShuffleRelative,
		// One byte less, as drivers say it, fits no 32 bits otherwise.
		MaxBinding: min(int64(d.Binding)<<20, 1<<32-1), MaxGroups: [3]uint32{1<<31 - 1, 65535, 65535},
		MaxInvocations: 1024, MaxGroupSize: [3]int{1024, 1024, 64}, MaxBuffers: 32, Lanes: true, SharedMemory: 48 << 10, PushBytes: vk.MaxPush,
		OffsetAlign: 16, Timestamps: true, Features: f,
	})
}
