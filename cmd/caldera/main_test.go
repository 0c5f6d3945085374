package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

// result is what a command line left behind.
type result struct {
	code     int
	out, err string
}

// command runs a command line inside the test, in an empty folder and without settings from outside.
func command(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	isolate(t)
	var out, errw bytes.Buffer
	code := execute(t.Context(), args, strings.NewReader(stdin), &out, &errw)
	return result{code, out.String(), errw.String()}
}

// isolate keeps settings of the machine away from a test.
func isolate(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("CALDERA_CONFIG", "")
	for _, s := range table {
		if os.Getenv(s.env()) != "" {
			t.Setenv(s.env(), "")
		}
	}
}

// Wrong command lines end with code 2 and one line that says what to do.
func TestUsage(t *testing.T) {
	tests := []struct {
		args string
		want string // part of the message
	}{
		{"nosuch", `unknown command "nosuch"`},
		{"rnu", "did you mean run?"},
		{"config shwo", "did you mean show?"},
		{"run --tmep 3 x", "did you mean --temp?"},
		{"run --zzyzx x", "see caldera run --help"},
		{"run -Z x", "unknown flag -Z"},
		{"run -ngl 99 x", "can be left out"},
		{"run --n-gpu-layers 99 x", "can be left out"},
		{"run -ctk q8_0 x", "use --kv"},
		{"run -np 4 x", "use --slots"},
		{"run -cram 8192 x", "use --cache-ram"},
		{"run --kv q5_0 x", "use f16, f32, q8_0, q4_0"},
		{"run --kv-sink -1 x", "--kv-sink is -1"},
		{"run --kv-window x y", "no whole number"},
		{"run --memory-limit 4GB x", "is not clear"},
		{"run --cache-ram 8192 x", "without a unit"},
		{"run --cache-disk 10G x", "lacks a folder or a size"},
		{"run --cache-every -1 x", "--cache-every is -1"},
		{"run --slots 65 x", "--slots is 65; use at most 64"},
		{"run --queue -1 x", "--queue is -1"},
		{"run --max-latency 200 x", "with its unit"},
		{"run --parallel nosuch.jsonl", "nosuch.jsonl"},
		{"run --parallel 16", "use --slots"},
		{"run --parallel a.jsonl x", "both given"},
		{"run --parallel a.jsonl -p x", "both given"},
		{"run --parallel a.jsonl --json", "without --json"},
		{"perplexity --file " + os.Args[0] + " --save /no/such/folder/x", "there is no folder /no/such/folder"},
		{"bench -ub 512", "use --batch"},
		{"bench --list-devices", "use caldera devices"},
		{"run --predict x y", "no whole number"},
		{"run --temp warm y", "no number"},
		{"run --predict 0 y", "--predict is 0"},
		{"run --predict -7 y", "--predict is -7"},
		{"run --temp 5 y", "temperature is 5"},
		{"run --top-p 1.5 y", "top_p is 1.5"},
		{"run --kv q8 y", "use f16, f32"},
		{"run --backend cuda y", "use vulkan, reference"},
		{"run --profile tiny y", "floor"},
		{"run --batch -1 y", "--batch is -1"},
		{"run --batch 513 y", "use 1 to 512"},
		{"run --ctx -1 y", "--ctx is -1"},
		{"run one two", "put the prompt in quotes"},
		{"run -p one two", "given twice"},
		{"run -m x.gguf -", "the prompt is empty"},
		{"run --config nosuch.yaml y", "nosuch.yaml"},
		{"run --config settings.ini y", ".yaml or .toml"},
		{"logits -m x --tokens 1", "--out"},
		{"logits -m x --out y", "--tokens"},
		{"logits -m x --out y --tokens 1 --tokens-file z", "use one"},
		{"logits -m x --out y --tokens 1,b", `"b" is no token id`},
		{"logits -m x --out y --tokens ,", "no token ids"},
		{"logits -m x --out y --tokens-file nosuch.u16", "nosuch.u16"},
		{"perplexity", "--file TEXT or --tokens-file FILE"},
		{"perplexity --file a --tokens-file b", "--file TEXT or --tokens-file FILE"},
		{"perplexity --file a --chunk 1", "--chunk is 1"},
		{"perplexity --file a --chunk 300 --ctx 200", "--chunk is 300"},
		{"perplexity --file nosuch.txt", "nosuch.txt"},
		{"inspect", "takes one file"},
		{"inspect a b", "takes one file"},
		{"devices x", "takes no argument"},
		{"tokenize a b", "put the text in quotes"},
		{"tokenize --decode 1 text", "--decode takes ids"},
		{"tokenize --decode x", "no token id"},
		{"tokenize --decode 9999999", "outside the vocabulary"},
		{"tune --rows x", `--rows is "x", which is no list of whole numbers`},
		{"tune --rows 3", "--rows: steps of 3 rows: use powers of two up to 512"},
		{"tune --rows 1,0 -m nosuch.gguf", "--rows: steps of 0 rows"},
		{"tune --rows 1024", "--rows: steps of 1024 rows"},
		{"run --matrices --activations int8 y", "--matrices takes float32"},
		{"run --matrices --backend reference y", "leave out --matrices"},
		{"plan --matrices --backend reference", "leave out --matrices"},
		{"bench --dry-run=gpu --matrices --activations int8", "--matrices takes float32"},
		{"bench -p 0 -n 0", "nothing to measure"},
		{"bench -p 5-1", "ends before it begins"},
		{"bench -r 0", "--repetitions"},
		{"bench -b 64,0", "use 1 to 512"},
		{"bench -b x", "--batch"},
		{"bench -pg 5", "two numbers"},
		{"bench -o xml", "use md, json, jsonl, csv"},
		{"bench -p 512 -c 100", "need 512 tokens"},
		{"verify --tokens 1", "--tokens is 1"},
		{"verify --all-devices -d 0", "use one"},
		{"version now", "takes no argument"},
		{"devices --color sometimes", "use auto, always, never"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			r := command(t, "", strings.Fields(tt.args)...)
			if r.code != exitUsage {
				t.Errorf("exit code %d, want %d", r.code, exitUsage)
			}
			if r.out != "" {
				t.Errorf("stdout has %q", r.out)
			}
			if !strings.HasPrefix(r.err, "caldera: ") || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, tt.want) {
				t.Errorf("stderr is %q, want one line with %q", r.err, tt.want)
			}
		})
	}
}

// Every command explains itself, and every flag has a description.
func TestHelp(t *testing.T) {
	a := newApp(nil, &bytes.Buffer{}, &bytes.Buffer{})
	root := a.rootCommand()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Short == "" {
			t.Errorf("%s has no short description", c.Name())
		}
		for _, line := range strings.Split(c.Flags().FlagUsages(), "\n") {
			if f := strings.Fields(line); len(f) > 0 && len(f) < 3 {
				t.Errorf("%s: flag without a description: %s", c.Name(), line)
			}
		}
		r := command(t, "", c.Name(), "--help")
		if r.code != exitDone || !strings.Contains(r.out, "Usage:") || r.err != "" {
			t.Errorf("%s --help: code %d, stdout %q, stderr %q", c.Name(), r.code, r.out, r.err)
		}
	}
	if r := command(t, ""); r.code != exitDone || !strings.Contains(r.out, "Available Commands:") {
		t.Errorf("no command: code %d, stdout %q", r.code, r.out)
	}
	if r := command(t, "", "completion", "bash"); r.code != exitDone || !strings.Contains(r.out, "caldera") {
		t.Errorf("completion bash: code %d", r.code)
	}
}

func TestInterrupted(t *testing.T) {
	isolate(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errw bytes.Buffer
	code := execute(ctx, []string{"run", "--backend", "reference", "hello"}, nil, &out, &errw)
	if code != exitInterrupted || !strings.Contains(errw.String(), "caldera: interrupted\n") {
		t.Errorf("code %d, stderr %q", code, errw.String())
	}
}
