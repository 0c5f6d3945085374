package bench

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/shaders"
)

// A Record is one test as -o json, jsonl and csv print it. The first fields have llama-bench's names, order and
// meanings; csv leaves out the lists.
type Record struct {
	BuildCommit   string  `json:"build_commit"`
	BuildNumber   int     `json:"build_number"` // always 0: builds are told apart by their commit
	CPUInfo       string  `json:"cpu_info"`
	GPUInfo       string  `json:"gpu_info"`
	Backends      string  `json:"backends"` // "Vulkan" or "Reference"
	ModelFilename string  `json:"model_filename"`
	ModelType     string  `json:"model_type"`
	ModelSize     int64   `json:"model_size"` // bytes of tensors
	ModelParams   uint64  `json:"model_n_params"`
	Batch         int     `json:"n_batch"`
	UBatch        int     `json:"n_ubatch"` // the same: a batch is one step
	Threads       int     `json:"n_threads"`
	TypeK         string  `json:"type_k"`
	TypeV         string  `json:"type_v"`
	GPULayers     int     `json:"n_gpu_layers"` // -1: all
	FlashAttn     int     `json:"flash_attn"`   // always 1: the softmax is taken online
	Devices       string  `json:"devices"`      // as asked for, "auto" when not
	Prompt        int     `json:"n_prompt"`
	Gen           int     `json:"n_gen"`
	Depth         int     `json:"n_depth"`
	TestTime      string  `json:"test_time"` // UTC, RFC 3339
	AvgNS         int64   `json:"avg_ns"`
	StdDevNS      int64   `json:"stddev_ns"`
	AvgTS         float64 `json:"avg_ts"` // tokens per second
	StdDevTS      float64 `json:"stddev_ts"`

	SamplesNS []int64   `json:"samples_ns"`
	SamplesTS []float64 `json:"samples_ts"`

	Schema       string     `json:"schema"` // "caldera.bench/1"
	MedianTS     float64    `json:"median_ts"`
	MinTS        float64    `json:"min_ts"`
	MaxTS        float64    `json:"max_ts"`
	MedianTSCI   *[]float64 `json:"median_ts_ci95,omitempty"` // bounds, from ten repetitions on
	DeviceName   string     `json:"device_name"`
	Driver       string     `json:"driver"`
	APIVersion   string     `json:"api_version"`
	VendorID     uint32     `json:"vendor_id"`
	DeviceID     uint32     `json:"device_id"`
	SubgroupSize int        `json:"subgroup_size"`
	Software     bool       `json:"software"`
	Profile      string     `json:"profile"`
	Activations  string     `json:"activations"`        // what products of weights take: f32 or int8
	Matrices     string     `json:"matrices,omitempty"` // shape of the cooperative matrices of large steps
	ShaderSet    string     `json:"shader_set"`         // start of the hash of all kernels
	// Counts of one decoded token, whatever the test.
	Ops        int `json:"ops"`
	Dispatches int `json:"dispatches"`
	Barriers   int `json:"barriers"`
	Submits    int `json:"submits"`
	// CarriedBytes is what the host carries of a row from device to device.
	CarriedBytes   int64 `json:"carried_bytes"`
	CommandBuffers int   `json:"command_buffers"`

	// Sequences generate together; WeightBytes is what a step of one token each reads of the weights at most, and
	// StepFlops what it computes.
	Sequences   int   `json:"n_sequences"`
	WeightBytes int64 `json:"step_weight_bytes"`
	StepFlops   int64 `json:"step_flops"`

	ScratchBytes   int64 `json:"scratch_bytes"`     // shared by all steps
	HostNSPerToken int64 `json:"host_ns_per_token"` // outside of waiting for the device
	RecordedAgain  int   `json:"recorded_again"`    // command buffers recorded while measuring
	PipelinesMade  int64 `json:"pipelines_made"`    // while measuring
	Unplanned      int64 `json:"unplanned_submits"` // beyond the plan's, while only generating
	TTFTNS         int64 `json:"ttft_ns"`           // prompt to its last logits, mean; 0 without a prompt
	Warmup         bool  `json:"warmup"`
	ColdNS         int64 `json:"cold_ns"` // the warm-up
	LoadNS         int64 `json:"load_ns"`
	// Where the weights live, in bytes: read from the file's pages, written to memory that host and device share,
	// transferred to memory of the device.
	WeightsImported int64 `json:"weights_imported"`
	WeightsCopied   int64 `json:"weights_copied"`
	WeightsUploaded int64 `json:"weights_uploaded"`
	// What else there is, and what the device's buffers take in all but the file's pages: as planned before loading
	// and as it is after the test. 0 is used on the reference backend, which has no device.
	KVBytes       int64 `json:"kv_bytes"`
	StateBytes    int64 `json:"state_bytes"`
	MemoryPlanned int64 `json:"memory_planned"`
	MemoryUsed    int64 `json:"memory_used"`

	Seed     uint64 `json:"seed"`
	GitDirty bool   `json:"git_dirty"`

	// Where the time of the steps went, means over Steps of them.
	Steps      int   `json:"steps"`
	StepForm   int64 `json:"step_form_ns"`   // choosing tokens, pages and plan
	StepWrite  int64 `json:"step_write_ns"`  // writing the step buffer
	StepSubmit int64 `json:"step_submit_ns"` // handing the commands to the driver
	StepWait   int64 `json:"step_wait_ns"`   // until the device was done
	StepRead   int64 `json:"step_read_ns"`   // taking results

	Profiles []StepProfile `json:"op_profiles,omitempty"` // with --profile-ops
}

// A Setup is what the tests of a run share: what the engine does not know about itself.
type Setup struct {
	Commit   string
	Dirty    bool
	Model    string // file name
	Backend  string // engine.Vulkan or engine.Reference
	Device   string // as asked for
	Profile  string
	KV       string
	Seed     uint64
	Hardware Hardware
}

// Hardware describes the device; the zero value is for the reference backend.
type Hardware struct {
	Name, Driver, API  string
	VendorID, DeviceID uint32
	SubgroupSize       int
}

// NewRecord puts a result into a record.
func NewRecord(e *engine.Engine, s Setup, r *Result) Record {
	ts := r.PerSecond()
	ns := make([]float64, len(r.Samples))
	x := Record{
		BuildCommit: orElse(s.Commit, "unknown"), CPUInfo: CPU(), GPUInfo: s.Hardware.Name, Backends: "Vulkan",
		ModelFilename: s.Model, ModelType: ModelType(e.File()), Batch: e.Batch(), UBatch: e.Batch(), Threads: runtime.GOMAXPROCS(0),
		TypeK: s.KV, TypeV: s.KV, GPULayers: -1, FlashAttn: 1, Devices: orElse(s.Device, "auto"),
		Prompt: r.Prompt, Gen: r.Gen, Depth: r.Depth, TestTime: r.Start.UTC().Format(time.RFC3339),
		AvgTS: Mean(ts), StdDevTS: StdDev(ts), SamplesTS: ts,

		Schema: "caldera.bench/1", MedianTS: Median(ts), DeviceName: s.Hardware.Name, Driver: s.Hardware.Driver, APIVersion: s.Hardware.API,
		VendorID: s.Hardware.VendorID, DeviceID: s.Hardware.DeviceID, SubgroupSize: s.Hardware.SubgroupSize, Software: e.Software(),
		Profile: s.Profile, Activations: e.Activations(), ShaderSet: shaderSet(),
		Ops: r.Decode.Ops, Dispatches: r.Decode.Dispatches, Barriers: r.Decode.Barriers, Submits: r.Decode.Submits, CarriedBytes: r.Decode.Carried,
		Sequences: r.seqs(), WeightBytes: r.Decode.Cost.Weights, StepFlops: r.Decode.Cost.Flops,
		CommandBuffers: r.Decode.CommandBuffers, ScratchBytes: e.Memory().Scratch,
		HostNSPerToken: r.HostPerToken().Nanoseconds(), RecordedAgain: r.Recorded,
		PipelinesMade: r.Device.Pipelines, Unplanned: r.Unplanned(),
		TTFTNS: r.Prefill.Nanoseconds() / int64(max(1, len(r.Samples))), Warmup: r.Warm, ColdNS: r.Cold.Nanoseconds(),
		LoadNS: e.LoadTime().Nanoseconds(), WeightsImported: e.Weights().Imported, WeightsCopied: e.Weights().Copied,
		WeightsUploaded: e.Weights().Uploaded, KVBytes: e.Memory().KV.Bytes, StateBytes: e.Memory().State.Bytes,
		MemoryPlanned: e.Memory().Resident(), MemoryUsed: e.MemoryInUse().Own(), Seed: s.Seed, GitDirty: s.Dirty,
	}
	if m := e.Matrices(); m.M > 0 {
		x.Matrices = m.String()
	}
	per := r.PerStep()
	x.Steps, x.StepForm, x.StepWrite, x.StepSubmit = r.Steps, per.Form.Nanoseconds(), per.Write.Nanoseconds(), per.Submit.Nanoseconds()
	x.StepWait, x.StepRead = per.Wait.Nanoseconds(), per.Read.Nanoseconds()
	if s.Backend == engine.Reference {
		x.Backends, x.GPULayers = "Reference", 0
	}
	for i, d := range r.Samples {
		ns[i] = float64(d.Nanoseconds())
		x.SamplesNS = append(x.SamplesNS, d.Nanoseconds())
		if i == 0 || ts[i] < x.MinTS {
			x.MinTS = ts[i]
		}
		x.MaxTS = max(x.MaxTS, ts[i])
	}
	x.AvgNS, x.StdDevNS = int64(Mean(ns)), int64(StdDev(ns))
	for _, t := range e.File().Tensors() {
		x.ModelSize += t.Size
		x.ModelParams += t.Elements()
	}
	if lo, hi, ok := MedianInterval(ts); ok {
		x.MedianTSCI = &[]float64{lo, hi}
	}
	return x
}

// Test is the record's test.
func (x *Record) Test() Test {
	return Test{Prompt: x.Prompt, Gen: x.Gen, Depth: x.Depth, Sequences: x.Sequences}
}

// ModelType describes a model in the manner of llama.cpp: architecture, size and file type.
func ModelType(f *gguf.File) string {
	arch, _ := f.String("general.architecture")
	label, err := f.String("general.size_label")
	if err != nil {
		var n uint64
		for _, t := range f.Tensors() {
			n += t.Elements()
		}
		label = fmt.Sprintf("%.1fB", float64(n)/1e9)
		if n < 1e9 {
			label = fmt.Sprintf("%.0fM", float64(n)/1e6)
		}
	}
	kind := "unknown"
	if id, err := f.Uint32("general.file_type"); err == nil {
		kind = fileType(gguf.FileTypeName(id))
	}
	return clean(orElse(arch, "?") + " " + label + " " + kind)
}

// fileType is llama.cpp's spelling of a file type.
func fileType(s string) string {
	if s == "F32" {
		return "all F32"
	}
	if base, letter, ok := cutLast(s, "_"); ok && strings.Contains(base, "_K") {
		if long := map[string]string{"S": "Small", "M": "Medium", "L": "Large"}[letter]; long != "" {
			return base + " - " + long
		}
	}
	return s
}

// clean keeps what a file says from breaking a table or driving a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == '|' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// CPU names the processor.
func CPU() string {
	f, err := os.Open(filepath.FromSlash("/proc/cpuinfo"))
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if key, value, ok := bytes.Cut(sc.Bytes(), []byte(":")); ok && strings.TrimSpace(string(key)) == "model name" {
			return strings.TrimSpace(string(value))
		}
	}
	return runtime.GOARCH
}

// shaderSet identifies the kernels of this build.
func shaderSet() string {
	h := sha256.New()
	for _, m := range shaders.Modules() {
		if _, code, err := shaders.Lookup(m.Name); err == nil {
			fmt.Fprintln(h, m.Name, len(code))
			h.Write(code)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}
