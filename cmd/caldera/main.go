// Command caldera runs Qwen hybrid language models on any Vulkan device.
//
// Each subcommand is one file; what it does lives in the packages below engine. What a command is asked for
// goes to stdout and everything else to stderr. Exit codes are in exit.go, settings in config.go.
package main

import (
	"context"
	"io"
	"os"
)

func main() {
	os.Exit(execute(withSignals(context.Background()), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	return newApp(in, out, errw).execute(ctx, args)
}

func (a *app) execute(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(longSpellings(args))
	err := root.ExecuteContext(ctx)
	if err != nil && !a.running {
		err = asUsage(err)
	}
	if err != nil && ctx.Err() != nil {
		err = errInterrupted
	}
	return a.report(err)
}
