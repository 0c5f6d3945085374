// Command gpucheck checks and measures Caldera on a machine with a GPU, in a few minutes, and writes one file of
// results. scripts/gpu-check builds what it runs, or finds it where it was built before, and starts it.
//
//	gpucheck -bin DIR -root REPOSITORY [-short] [-device NAME] [-budget 7m] FOLDER
//
// A step that fails or takes too long is noted and the others go on. The exit status is 1 when one did.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	var c config
	flag.StringVar(&c.bin, "bin", "", "`folder` with caldera, mkmodel, shaders.test and vk.test")
	flag.StringVar(&c.root, "root", ".", "the repository's `folder`: tests read files beside their sources")
	flag.StringVar(&c.device, "device", "", "device by name, UUID or index; default the best one")
	flag.BoolVar(&c.short, "short", false, "a short form, to see that everything runs: few tests, small models")
	flag.DurationVar(&c.budget, "budget", 7*time.Minute, "time for all steps together; those that come when it is spent are skipped")
	flag.StringVar(&c.commit, "commit", "", "what was built, for the results")
	flag.Parse()
	if c.bin == "" || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: gpucheck -bin DIR [flags] FOLDER")
		flag.PrintDefaults()
		os.Exit(2)
	}
	path, ok, err := check(context.Background(), c, flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpucheck:", err)
		os.Exit(1)
	}
	fmt.Println(path)
	if !ok {
		os.Exit(1)
	}
}

// config says what to check with what.
type config struct {
	bin, root, device, commit string
	short                     bool
	budget                    time.Duration
}

// results is the file that is written.
type results struct {
	Schema  string    `json:"schema"` // "caldera.gpu-check/1"
	Time    time.Time `json:"time"`
	Commit  string    `json:"commit"`
	Short   bool      `json:"short"`
	Machine machine   `json:"machine"`
	Device  any       `json:"device"`  // the one that was used, as caldera devices --json has it
	Devices any       `json:"devices"` // all of them
	Steps   []*step   `json:"steps"`
	// Bench is records of caldera bench by model, Predictions those of caldera plan --predict.
	Bench       map[string]any `json:"bench"`
	Predictions map[string]any `json:"predictions"`
	Seconds     float64        `json:"seconds"`
	OK          bool           `json:"ok"`
}

// check runs all steps and writes the results into a folder.
func check(ctx context.Context, c config, folder string) (path string, ok bool, err error) {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return "", false, err
	}
	for _, dir := range []*string{&c.bin, &c.root} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return "", false, err
		}
	}
	temp, err := os.MkdirTemp("", "caldera-gpu-check-")
	if err != nil {
		return "", false, err
	}
	defer os.RemoveAll(temp)
	start := time.Now()
	r := &results{
		Schema: "caldera.gpu-check/1", Time: start.UTC().Truncate(time.Second), Commit: c.commit, Short: c.short, Machine: thisMachine(ctx), OK: true,
		Bench: map[string]any{}, Predictions: map[string]any{},
	}
	ctx, stop := context.WithTimeout(ctx, c.budget)
	defer stop()
	for _, s := range c.steps(temp, r) {
		s.run(ctx)
		r.Steps = append(r.Steps, s)
		r.OK = r.OK && s.ok()
		fmt.Fprintln(os.Stderr, s)
	}
	r.Seconds = time.Since(start).Seconds()
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return "", false, err
	}
	path = filepath.Join(folder, fileName(r))
	return path, r.OK, os.WriteFile(path, append(b, '\n'), 0o666)
}

// fileName names results by time and device.
func fileName(r *results) string {
	name := "unknown"
	if d, ok := r.Device.(map[string]any); ok {
		if s, ok := d["name"].(string); ok {
			name = s
		}
	}
	name = strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
			return c
		case c >= 'A' && c <= 'Z':
			return c - 'A' + 'a'
		}
		return '-'
	}, name)
	short := ""
	if r.Short {
		short = "-short"
	}
	return fmt.Sprintf("%s-%s%s.json", r.Time.Format("20060102-150405"), strings.Trim(name, "-"), short)
}
