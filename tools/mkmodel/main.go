// Command mkmodel writes a synthetic model: a GGUF file with the exact layer shapes, tensor types and vocabulary
// size of a released model, and random weights. Fewer layers make a slice of it that loads, computes and measures
// like the real one and fits a small machine. What it writes has no sense in it; its numbers stay finite.
//
//	go run ./tools/mkmodel -o slice.gguf                     # 4 layers of Qwen3.5-35B-A3B in Q4_K_M, 2.6 GB
//	go run ./tools/mkmodel -o dense.gguf -model 9B -layers 8 -mix Q8_0
//	go run ./tools/mkmodel -o full.gguf -layers 0 -header    # all 40 layers, to plan with: the weights are a hole
//
// The same flags give the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	var (
		o    options
		out  = flag.String("o", "", "the `file` to write")
		arch = flag.String("arch", "qwen35moe", "architecture, picks a model where -model does not: qwen35moe, qwen35, qwen3next")
	)
	flag.StringVar(&o.Model, "model", "", "`name` of the model whose shapes to take: "+strings.Join(modelNames(), ", "))
	flag.IntVar(&o.Layers, "layers", 4, "decoder layers; 0 for all of the model's")
	flag.IntVar(&o.Experts, "experts", 0, "experts of a mixture; 0 for the model's")
	flag.IntVar(&o.Vocab, "vocab", 0, "vocabulary size; 0 for the model's")
	flag.StringVar(&o.Mix, "mix", "Q4_K_M", "`mix` of tensor types ("+strings.Join(mixNames(), ", ")+"), or one type for every matrix")
	flag.Uint64Var(&o.Seed, "seed", 1, "seed of the weights")
	flag.BoolVar(&o.Header, "header", false, "write the header only and leave a hole for the weights: enough to plan with, whatever the size")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: mkmodel -o FILE [flags]")
		flag.PrintDefaults()
		os.Exit(2)
	}
	if o.Model == "" {
		o.Model = defaultModels[*arch]
	}
	start := time.Now()
	if err := write(*out, o); err != nil {
		fmt.Fprintln(os.Stderr, "mkmodel:", err)
		os.Exit(1)
	}
	info, err := os.Stat(*out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkmodel:", err)
		os.Exit(1)
	}
	hole := ""
	if o.Header {
		hole = ", of which the header is written"
	}
	fmt.Printf("%s: %.2f GB%s in %.1f s\n", *out, float64(info.Size())/1e9, hole, time.Since(start).Seconds())
}
