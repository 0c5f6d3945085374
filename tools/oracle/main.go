// Command oracle runs every reference case that this version supports on every device and prints how far
// each is from the reference: the table of worst errors by case, device, profile, cache type and batch.
// It exits with 7 when a bar is missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/internal/conformance"
	"github.com/calderaml/caldera/internal/oracle"
	"github.com/calderaml/caldera/vk"
)

var errBars = errors.New("some bars are missed")

func main() {
	dir := flag.String("dir", oracle.Dir(), "folder of the cases")
	only := flag.String("case", "", "only cases whose name contains this")
	batches := flag.String("batch", "1,7,64,512", "batch sizes")
	kvs := flag.String("kv", "f32,f16", "KV cache types")
	profiles := flag.String("profile", "auto,floor", "device profiles")
	devices := flag.String("device", "", "only devices whose name contains this; \"none\" for no device")
	activations := flag.String("activations", "f32", "what products take: f32, held to the bars of float32, or int8, held to half of llama.cpp's divergence")
	matrices := flag.Bool("matrices", false, "form products with cooperative matrices, on devices that have them; held to the bars of float32 and not for the reference")
	tuning := flag.String("tuning", "", "folder with the tuning of devices (caldera tune) to use")
	verbose := flag.Bool("v", false, "a line for every batch size instead of the worst of them")
	reference := flag.Bool("reference", true, "also run the reference backend")
	flag.Parse()
	var sizes []int
	for _, b := range strings.Split(*batches, ",") {
		n, err := strconv.Atoi(b)
		if err != nil {
			fmt.Fprintln(os.Stderr, "oracle: -batch:", err)
			os.Exit(2)
		}
		sizes = append(sizes, n)
	}
	how = engine.Config{Activations: *activations, Matrices: *matrices, TuningDir: *tuning, Warn: func(err error) { fmt.Fprintln(os.Stderr, "oracle:", err) }}
	err := run(*dir, *only, *devices, sizes, strings.Split(*kvs, ","), strings.Split(*profiles, ","), *reference && !*matrices, *verbose)
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		if errors.Is(err, errBars) {
			os.Exit(7)
		}
		os.Exit(1)
	}
}

// how is the configuration of all runs.
var how engine.Config

// target is a way to run a case.
type target struct{ label, backend, device, profile string }

func targets(devices string, profiles []string, reference bool) ([]target, error) {
	var ts []target
	if devices != "none" {
		in, err := vk.Open(vk.Config{AppName: "caldera oracle"})
		if err != nil {
			return nil, err
		}
		defer in.Close()
		for _, d := range in.Devices() {
			if !strings.Contains(strings.ToLower(d.String()), strings.ToLower(devices)) {
				continue
			}
			for _, p := range profiles {
				ts = append(ts, target{d.Name + " " + d.DriverInfo, engine.Vulkan, d.UUID, p})
			}
		}
	}
	if reference {
		ts = append(ts, target{"reference", engine.Reference, "", "-"})
	}
	return ts, nil
}

func run(dir, only, devices string, batches []int, kvs, profiles []string, reference, verbose bool) error {
	cases, err := oracle.Load(dir)
	if err != nil {
		return err
	}
	ts, err := targets(devices, profiles, reference)
	if err != nil {
		return err
	}
	fmt.Printf("| %-22s | %-36s | %-7s | %-3s | %5s | %9s | %9s | %9s | %6s | %6s | %s\n", "case", "device", "profile", "kv", "rows", "last", "lp 50 %", "lp 99 %", "argmax", "greedy", "verdict")
	missed, ran := 0, 0
	for _, c := range cases {
		if !strings.Contains(c.Name, only) {
			continue
		}
		for _, t := range ts {
			for _, kv := range kvs {
				r, m, err := one(c, t, kv, batches, verbose)
				if errors.Is(err, model.ErrUnsupported) {
					continue
				}
				if err != nil {
					return fmt.Errorf("%s on %s: %w", c.Name, t.label, err)
				}
				ran += r
				missed += m
			}
		}
	}
	fmt.Printf("%d runs, %d missed a bar\n", ran, missed)
	if ran == 0 {
		return fmt.Errorf("no case in %s ran", dir)
	}
	if missed > 0 {
		return errBars
	}
	return nil
}

// one runs a case on a target with every batch size, prints the worst, and returns how many runs that were
// and how many missed a bar.
func one(c oracle.Case, t target, kv string, batches []int, verbose bool) (ran, missed int, err error) {
	cfg := how
	cfg.Path, cfg.Backend, cfg.Device, cfg.Profile, cfg.KV, cfg.Context, cfg.Check = filepath.Join(c.Dir, "model.gguf"), t.backend, t.device, profile(t), kv, 512, true
	e, err := engine.Open(cfg)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if cfg.Activations == engine.ActivationsInt8 {
		return packed(c, e, t, kv, batches)
	}
	bars := conformance.BarsFor(c, kv)
	var worst conformance.Result
	for i, batch := range batches {
		if err := e.SetBatch(batch); err != nil {
			return ran, missed, err
		}
		r, err := conformance.Check(context.Background(), e, c, bars)
		if err != nil {
			return ran, missed, err
		}
		ran++
		if r.Error(bars) != nil {
			missed++
		}
		if verbose {
			row(c, t, kv, fmt.Sprint(batch), r, bars)
		}
		if i == 0 {
			worst = r
		}
		worst = worst.Worst(r)
	}
	if !verbose {
		row(c, t, kv, "all", worst, bars)
	}
	return ran, missed, nil
}

// packed holds an engine with activations in whole numbers to half of the divergence from float32 that llama.cpp's packed ones have.
func packed(c oracle.Case, e *engine.Engine, t target, kv string, batches []int) (ran, missed int, err error) {
	reference, err := engine.Open(engine.Config{
		Path: filepath.Join(c.Dir, "model.gguf"), Backend: engine.Reference, KV: kv, Context: 512, Activations: engine.ActivationsF32,
	})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, reference.Close()) }()
	bar := c.Spread["cpu_packed"].KLMean / 2
	for _, batch := range batches {
		if err := e.SetBatch(batch); err != nil {
			return ran, missed, err
		}
		kl, err := conformance.Divergence(context.Background(), reference, e, c)
		if err != nil {
			return ran, missed, err
		}
		ran++
		verdict := "ok"
		if !(kl <= bar) {
			missed++
			verdict = "too far"
		}
		fmt.Printf("| %-22s | %-36.36s | %-7s | %-3s | %5d | mean divergence %.3g of %.3g | %s\n", c.Name, t.label, t.profile, kv, batch, kl, bar, verdict)
	}
	return ran, missed, nil
}

// row prints a line of the table.
func row(c oracle.Case, t target, kv, rows string, r conformance.Result, bars conformance.Bars) {
	verdict := "ok"
	if f := r.Error(bars); f != nil {
		verdict = f.Error()
	}
	fmt.Printf("| %-22s | %-36.36s | %-7s | %-3s | %5s | %9.2g | %9.2g | %9.2g | %6d | %3d/%2d | %s\n",
		c.Name, t.label, t.profile, kv, rows, r.LastLogits, r.LogprobMedian, r.Logprob99, r.ArgmaxWrong, r.Greedy, r.GreedyWant, verdict)
}

func profile(t target) string {
	if t.backend == engine.Reference {
		return ""
	}
	return t.profile
}
