package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// spellings are other programs' names of flags: llama.cpp's long ones and variants of ours.
var spellings = map[string]string{
	"batch-size":        "batch",
	"ctx-size":          "ctx",
	"n-predict":         "predict",
	"max-tokens":        "predict",
	"max-model-len":     "ctx",
	"served-model-name": "alias",
	"temperature":       "temp",
	"dev":               "device",
	"hf":                "model",
	"hf-repo":           "model",
	"hfr":               "model",
}

// aliases gives a flag its name here.
func aliases(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "_", "-")
	if own, ok := spellings[name]; ok {
		name = own
	}
	return pflag.NormalizedName(name)
}

// foreign says what to do instead of flags that other programs have and this one has not.
var foreign = map[string]string{
	"ngl":            "every layer runs on the device, so it can be left out",
	"n-gpu-layers":   "every layer runs on the device, so it can be left out",
	"ub":             "a step is one batch: use --batch",
	"ubatch-size":    "a step is one batch: use --batch",
	"ctk":            "keys and values have one type: use --kv",
	"ctv":            "keys and values have one type: use --kv",
	"cache-type-k":   "keys and values have one type: use --kv",
	"cache-type-v":   "keys and values have one type: use --kv",
	"fa":             "attention is always computed without a stored score matrix, so it can be left out",
	"flash-attn":     "attention is always computed without a stored score matrix, so it can be left out",
	"threads":        "the device does the work, so it can be left out",
	"t":              "the device does the work, so it can be left out",
	"hff":            "put the file's name after the repository's: -m user/repo:FILE",
	"hf-file":        "put the file's name after the repository's: -m user/repo:FILE",
	"sm":             "name the devices with --device A,B and say with --split which layers each has",
	"split-mode":     "name the devices with --device A,B and say with --split which layers each has",
	"ts":             "name the devices with --device A,B and say with --split which layers each has",
	"tensor-split":   "name the devices with --device A,B and say with --split which layers each has",
	"mg":             "use --device",
	"main-gpu":       "use --device",
	"np":             "use --slots for how many sequences run at a time",
	"cram":           "use --cache-ram with a unit, as in 8G",
	"cache-reuse":    "the prefix cache finds what prompts share by itself: see --cache-ram",
	"ctxcp":          "the prefix cache bounds its snapshots by bytes: see --cache-ram",
	"no-mmap":        "use --residency copy to give the device its own copy of the weights",
	"mlock":          "weights stay in the file's pages, which the system keeps in memory while there is room; or use --residency copy",
	"list-devices":   "use caldera devices",
	"jinja":          "chat templates are always used",
	"mmproj":         "images are not supported",
	"api-key":        "keys would be seen in the list of processes: use CALDERA_API_KEY or --api-key-file",
	"metrics":        "GET /metrics is always there",
	"slots-endpoint": "GET /slots is always there",
	"parallel":       "use --slots",
	"cnv":            "a prompt is put into the chat form unless --raw is given",
	"f":              "use caldera run - < FILE",

	"ctx-checkpoints":     "the prefix cache bounds its snapshots by bytes: see --cache-ram",
	"leave-output-tensor": "use --output-tensor-type keep",
	"keep-split":          "the output is one file, so it can be left out",
}

// longSpellings rewrites the names of several letters that llama.cpp takes after a single dash, which would
// read as one-letter flags in a row.
func longSpellings(args []string) []string {
	out := make([]string, 0, len(args))
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		if name, ok := strings.CutPrefix(arg, "-"); ok && len(name) > 1 && name[0] != '-' {
			name, _, _ = strings.Cut(name, "=")
			if _, known := foreign[name]; known || spellings[name] != "" || name == "pg" {
				arg = "-" + arg
			}
		}
		out = append(out, arg)
	}
	return out
}

// flagError words an error of flag parsing with what to do.
func flagError(cmd *cobra.Command, err error) error {
	name := ""
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		name = unknown.GetSpecifiedName()
	}
	see := fmt.Sprintf("see %s --help", cmd.CommandPath())
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		return usagef("--%s is %q, which is no %s; %s", value.GetFlag().Name, value.GetValue(), typeName(value.GetFlag().Value.Type()), see)
	}
	if name == "" {
		return usagef("%w; %s", err, see)
	}
	dashes := "--"
	if len(name) == 1 {
		dashes = "-"
	}
	if advice := foreign[name]; advice != "" {
		return usagef("unknown flag %s%s: %s", dashes, name, advice)
	}
	if near := nearest(name, flagNames(cmd)); near != "" && len(name) > 1 {
		return usagef("unknown flag --%s; did you mean --%s?", name, near)
	}
	return usagef("unknown flag %s%s; %s", dashes, name, see)
}

// typeName is a flag's type for people.
func typeName(t string) string {
	switch t {
	case "int", "int64":
		return "whole number"
	case "float64":
		return "number"
	case "intSlice":
		return "list of whole numbers"
	case "bool":
		return "true or false"
	}
	return t
}

// flagNames lists the long flags that a command takes.
func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

// nearest returns the name that differs least from a mistyped one, or nothing when none is close.
func nearest(name string, names []string) string {
	best, least := "", min(2, len(name)/2)+1
	for _, n := range names {
		d := editDistance(name, n)
		if strings.HasPrefix(n, name) && len(name) >= 3 {
			d = min(d, 1)
		}
		if d < least {
			best, least = n, d
		}
	}
	return best
}

// editDistance is the number of letters to insert, remove, replace or swap with their neighbour.
func editDistance(a, b string) int {
	before, above, row := []int(nil), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, above, row = above, row, make([]int, len(b)+1)
	}
	return above[len(b)]
}
