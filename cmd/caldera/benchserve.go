package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine/bench/load"
)

// apiKeyEnv is the environment variable with the key that a client sends.
const apiKeyEnv = "CALDERA_API_KEY"

// serveLoadFlags are the flags of bench serve that need reading.
type serveLoadFlags struct {
	keyFile, dataset string
	prompt, output   string
	goodput, atMost  string
}

func (a *app) benchServeCommand() *cobra.Command {
	var o load.Options
	var x serveLoadFlags
	cmd := &cobra.Command{
		Use:   "serve [--url URL]",
		Short: "Put load on a running server and judge its answers",
		Long: `Serve sends requests to a server with OpenAI's interface, by default the one on this machine, and prints
throughput and latencies in the names of vLLM's bench serve (-o json: schema ` + load.Schema + `).

Without --rate each of --concurrency clients sends its next request when its last has ended. With --rate requests
are due at random times, at most --concurrency run at a time, and what a request waits beyond its time counts.
The same --seed makes the same requests.

--disconnect and --malformed make clients that leave and that err: the server must bear the first and tell the
second so. An answer that no such client explains is a fault, and so is a slot that stays busy: the exit code is
then 7, as it is when a result is above --at-most. The server's memory, goroutines, pages and slots are reported
when its /metrics and /slots can be read.

A key comes from ` + apiKeyEnv + ` or --api-key-file, and goes to no other address than the one given.`,
		Example: `  caldera bench serve --concurrency 32 --duration 5m --disconnect 0.2 --malformed 0.05
  caldera bench serve --rate 4 --requests 500 -p lognormal:400,0.8 -n 32-256 --goodput ttft:500,tpot:50
  caldera bench serve -c 8 --long-prompt-every 20 --long-prompt 4096 --at-most p99_itl_long_ms:250
  caldera bench serve -c 32 --duration 2m --shutdown-grace 30s   # and stop the server meanwhile`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format := a.cfg.Bench.Output
			if a.json {
				format = "json"
			}
			a.json = format != "md"
			if o.Requests == 0 && !cmd.Flags().Changed("duration") {
				o.Duration = time.Minute
			}
			if err := x.read(&o); err != nil {
				return err
			}
			if err := o.Check(); err != nil {
				return usageError{err}
			}
			return a.benchServe(cmd.Context(), o, format)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.URL, "url", load.DefaultURL, "the server, `URL`: http://HOST:PORT, https://HOST:PORT or unix:PATH")
	f.StringVar(&x.keyFile, "api-key-file", "", "a `file` with the key to send, instead of "+apiKeyEnv)
	f.StringVar(&o.Endpoint, "endpoint", load.Chat, "`which` to use: chat or completions")
	f.StringVarP(&o.Model, "model", "m", "", "the served model to ask for, by `name`; default the first that the server lists")
	f.IntVarP(&o.Concurrency, "concurrency", "c", 4, "`N` clients; with --rate the most requests at a time, where more is usual")
	f.Float64Var(&o.Rate, "rate", 0, "open loop: `R` requests a second on average, at random times; 0 is a closed loop")
	f.DurationVar(&o.Duration, "duration", 0, "begin no request after this `time`; default 1m, or no limit with --requests")
	f.IntVar(&o.Requests, "requests", 0, "begin `N` requests; 0 is no limit")
	f.Uint64Var(&o.Seed, "seed", 1, "start `N` of the random numbers: the same one makes the same requests")
	f.IntVar(&o.Warmup, "warmup", 1, "send `N` requests before the run that do not count")
	f.StringVarP(&x.prompt, "n-prompt", "p", "128", "tokens of prompts, a `distribution`: 64, 16-256, lognormal:MEAN,SIGMA[,MOST]")
	f.StringVarP(&x.output, "n-gen", "n", "64", "most tokens of answers, a `distribution`")
	f.BoolVar(&o.IgnoreEOS, "ignore-eos", true, "ask the server to go on when the model ends its answer, so that answers have the length asked for")
	f.Float64Var(&o.PrefixShare, "prefix-share", 0, "`share` of the prompts that begin with the same text, 0 to 1")
	f.IntVar(&o.PrefixLength, "prefix-length", 128, "tokens `N` of that text, beside the prompt's own")
	f.StringVar(&x.dataset, "dataset", "", "draw prompts from this `file` of JSON lines with prompt, or messages, and maybe max_tokens")
	f.Float64Var(&o.Disconnect, "disconnect", 0, "`share` of the requests that the client cuts: once sent, in prefill or in the stream")
	f.Float64Var(&o.Malformed, "malformed", 0, "`share` of the requests with malformed bodies, which must be answered by 4xx and an error object")
	f.IntVar(&o.LongEvery, "long-prompt-every", 0, "give every `N`-th request a long prompt; 0 is none")
	f.IntVar(&o.LongPrompt, "long-prompt", 2048, "tokens `N` of long prompts")
	f.StringVar(&x.goodput, "goodput", "", "count requests that stay within these `ms`, as in ttft:500,tpot:50,e2el:4000")
	f.StringVar(&x.atMost, "at-most", "", "fail when a `result` is above, as in p99_itl_ms:250,goroutines_growth:8 (names as in -o json)")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "an answer of which nothing comes for this `time` is a fault")
	f.DurationVar(&o.Wait, "wait", 30*time.Second, "`time` for a server that is still loading")
	f.DurationVar(&o.Settle, "settle", 10*time.Second, "`time` after the run in which the server's slots must be free")
	f.DurationVar(&o.ShutdownGrace, "shutdown-grace", 0, "the server is stopped during the run, and has this `time` to end its streams properly; 0: it is not stopped")
	f.BoolVar(&a.json, "json", false, "the same as -o json")
	addSettings(f, "bench.output")
	return cmd
}

// read puts what flags, files and the environment say into options.
func (x *serveLoadFlags) read(o *load.Options) (err error) {
	for _, l := range []struct {
		flag, text string
		to         *load.Lengths
	}{{"n-prompt", x.prompt, &o.Prompt}, {"n-gen", x.output, &o.Output}} {
		if *l.to, err = load.ParseLengths(l.text); err != nil {
			return usagef("--%s: %w", l.flag, err)
		}
	}
	if o.Goodput, err = load.ParseGoals(x.goodput); err != nil {
		return usagef("--goodput: %w", err)
	}
	if o.AtMost, err = load.ParseBars(x.atMost); err != nil {
		return usagef("--at-most: %w", err)
	}
	o.Key = firstKey(os.Getenv(apiKeyEnv))
	if x.keyFile != "" {
		if o.Key, err = readKey(x.keyFile); err != nil {
			return usagef("--api-key-file: %w", err)
		}
	}
	if x.dataset == "" {
		return nil
	}
	f, err := os.Open(x.dataset)
	if err != nil {
		return usagef("--dataset: %w", err)
	}
	defer f.Close()
	if o.Dataset, err = load.ReadDataset(f); err != nil {
		return usagef("--dataset %s: %w", x.dataset, err)
	}
	return nil
}

// firstKey is the first of keys in the form that serve takes them: separated by commas or white space.
func firstKey(s string) string {
	keys := strings.FieldsFunc(s, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	if len(keys) == 0 {
		return ""
	}
	return keys[0]
}

// readKey reads the first key of a file.
func readKey(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return "", err
	}
	if key := firstKey(string(b)); key != "" {
		return key, nil
	}
	return "", fmt.Errorf("%s has no key", path)
}

// benchServe runs the load and prints the report, also of a run that was interrupted.
func (a *app) benchServe(ctx context.Context, o load.Options, format string) error {
	if o.Key != "" && strings.HasPrefix(o.URL, "http:") && !load.IsLoopback(o.URL) {
		a.log.Warn().Msg("the API key goes over the network unencrypted: use https")
	}
	p := a.newProgress()
	o.Progress = func(n load.Progress) {
		p.update("%.0f s: %d running, %d completed, %d cut, %d other, %d faults, %d tokens",
			n.Elapsed.Seconds(), n.Running, n.Completed, n.Cut, n.Other, n.Faults, n.Output)
	}
	rep, err := load.Run(ctx, o)
	p.done()
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return errInterrupted
		}
		return err
	}
	v := newVersion()
	if rep.Build = cmp.Or(v.Commit, "unknown"); v.Dirty {
		rep.Build += " (modified)"
	}
	if err := rep.Write(a.out, format); err != nil {
		return err
	}
	for _, n := range rep.Notes {
		a.note("%s", printable(n))
	}
	if rep.Drain > 0 {
		a.note("from the first sign of the shutdown to the end of the last request: %.3f s", rep.Drain.Seconds())
	}
	failure := rep.Failure()
	if rep.Interrupted {
		if failure != "" {
			a.note("until the interrupt: %s", printable(failure))
		}
		return errInterrupted
	}
	if failure != "" {
		return fmt.Errorf("%w: %s", errCheck, failure)
	}
	return nil
}
