package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
)

// An app is one run of the program: its streams and what configuration says.
type app struct {
	in        io.Reader
	out, errw io.Writer

	ctx      context.Context // ends with an interrupt
	cfg      Config
	settings *settings
	log      zerolog.Logger
	outColor bool // colour on stdout
	errColor bool // colour on stderr
	json     bool // the command prints JSON
	running  bool // a command has begun: its errors are no longer about usage

	found map[string]string // files of models, by the names they were asked for

	stallAfter time.Duration                         // of serve; tests make it short
	atStage    func(stage string, done, total int64) // called by who loads a model to be served, in tests
	opened     func(*engine.Engine)                  // called with a model that will be served, in tests
}

func newApp(in io.Reader, out, errw io.Writer) *app {
	if _, file := errw.(*os.File); !file && errw != nil {
		errw = &syncWriter{w: errw} // the log is written to while a command runs, as a file may be
	}
	return &app{
		in: in, out: out, errw: errw, log: zerolog.Nop(), ctx: context.Background(), stallAfter: stallAfter,
		outColor: wantsColor("auto", isTerminal(out)),
		errColor: wantsColor("auto", isTerminal(errw)),
	}
}

// A syncWriter passes writes on one at a time.
type syncWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *syncWriter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "caldera",
		Short: "Run Qwen hybrid language models on any Vulkan device",
		Long: `Caldera runs Qwen hybrid language models (Gated DeltaNet with gated attention and mixtures of experts)
on any Vulkan device. A small demo model is built in: caldera run works at once.

Settings come from flags, then the environment (CALDERA_...), then a configuration file, then defaults;
caldera config show says what holds and why.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 file or model refused, 4 no usable device, 5 not enough
memory, 6 device lost, 7 check not passed, 130 interrupted.`,
		Example: `  caldera run "Capital of France?"
  caldera chat -m model.gguf
  caldera run -m model.gguf --temp 0 -n 100 "Once upon a time"
  caldera run -m unsloth/Qwen3.5-35B-A3B-GGUF:Q4_K_M "Why is the sky blue?"
  caldera bench -m model.gguf -p 512 -n 128
  caldera verify`,
		Version:       newVersion().Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs, // so that RunE words the error for an unknown command
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.ctx = cmd.Context()
			if err := a.configure(cmd); err != nil {
				return asUsage(err)
			}
			a.running = true
			return nil
		},
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errw)
	root.SetFlagErrorFunc(flagError)
	root.SetGlobalNormalizationFunc(aliases)
	f := root.PersistentFlags()
	f.String("config", "", "configuration `file` (YAML or TOML; default ./caldera.yaml, then the user's configuration folder)")
	addSettings(f, "color", "log-format", "log-level", "quiet", "offline")
	root.AddCommand(
		a.runCommand(),
		a.chatCommand(),
		a.serveCommand(),
		a.benchCommand(),
		a.perplexityCommand(),
		a.verifyCommand(),
		a.selfTestCommand(),
		a.tuneCommand(),
		a.logitsCommand(),
		a.tokenizeCommand(),
		a.templateCommand(),
		a.inspectCommand(),
		a.planCommand(),
		a.quantizeCommand(),
		a.devicesCommand(),
		a.configCommand(),
		a.versionCommand(),
	)
	return root
}

// configure loads the configuration for a command and sets up what depends on it.
func (a *app) configure(cmd *cobra.Command) error {
	s, err := loadSettings(cmd)
	if err != nil {
		return err
	}
	a.settings, a.cfg = s, s.cfg
	a.outColor = wantsColor(a.cfg.Color, isTerminal(a.out))
	a.errColor = wantsColor(a.cfg.Color, isTerminal(a.errw))
	a.log = a.newLogger()
	for _, what := range s.strange {
		a.log.Warn().Msg(printable(what))
	}
	return nil
}

func (a *app) newLogger() zerolog.Logger {
	w := a.errw
	if a.cfg.LogFormat == "console" || a.cfg.LogFormat == "auto" && isTerminal(a.errw) {
		// The writer's own rule would put escapes into a pipe.
		w = zerolog.ConsoleWriter{Out: a.errw, NoColor: !a.errColor, TimeFormat: "15:04:05"}
	}
	level, err := zerolog.ParseLevel(a.cfg.LogLevel)
	if err != nil {
		level = zerolog.WarnLevel
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// note prints a fact for people on stderr, unless they want quiet.
func (a *app) note(format string, args ...any) {
	if !a.cfg.Quiet {
		fmt.Fprintln(a.errw, a.paint(a.errColor, dim, fmt.Sprintf(format, args...)))
	}
}

// addJSON defines --json on a command.
func (a *app) addJSON(cmd *cobra.Command, schema string) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print one JSON object (schema "+schema+") and nothing else on stdout")
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no argument, but was given %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}

// upToArgs refuses more than n arguments.
func upToArgs(n int, hint string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef("%s takes one argument, but was given %d; %s", cmd.CommandPath(), len(args), hint)
		}
		return nil
	}
}

// group is the RunE of a command that only holds others.
func group(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	return cmd.Help()
}

func unknownCommand(cmd *cobra.Command, name string) error {
	hint := fmt.Sprintf("see %s --help", cmd.CommandPath())
	// cobra sets the distance only when it words the error itself.
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(name); len(s) > 0 {
		hint = "did you mean " + strings.Join(s, " or ") + "?"
	}
	return usagef("unknown command %q of %s; %s", name, cmd.CommandPath(), hint)
}
