package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/server"
)

// serveSlots is how many answers are computed at a time unless told.
const serveSlots = 4

func (a *app) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve [-m MODEL]",
		Short: "Serve a model to OpenAI clients and a browser",
		Long: `Serve answers requests of OpenAI, Anthropic and Ollama clients and of llama-server's tools, and has a page for a browser at /.
It listens on this machine alone unless --host says otherwise. It answers from the beginning: GET /health says when the
model is ready.

API keys come from CALDERA_API_KEY or --api-key-file, separated by commas or lines; with any, every request must carry one.
SIGTERM or an interrupt ends it once running answers are finished, or after --grace; a second one at once. SIGHUP reads the
TLS certificate again. docs/server.md has the endpoints and fields.`,
		Example: `  caldera serve
  caldera serve -m model.gguf --ctx 32768 --slots 8 --kv q8_0
  caldera serve -m model.gguf --host 0.0.0.0 --port 8443 --tls-cert cert.pem --tls-key key.pem --api-key-file keys.txt`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context()) },
	}
	f := cmd.Flags()
	addEngineSettings(f, "device", "temp", "top-k", "top-p", "min-p", "repeat-penalty", "presence-penalty", "frequency-penalty",
		"repeat-last-n", "run.no-think", "tokenizer-nfc", "chat-template-file", "trust-special-tokens",
		"slots", "queue", "max-latency", "cache-ram", "cache-disk", "cache-every",
		"serve.host", "serve.port", "serve.alias", "serve.any-model", "serve.api-key-file", "serve.key-rate", "serve.allow-host", "serve.cors-origin",
		"serve.tls-cert", "serve.tls-key", "serve.max-body", "serve.predict", "serve.ping", "serve.write-timeout", "serve.grace",
		"serve.reasoning-format", "serve.tool-call-in-think", "serve.metrics-compat", "serve.log-prompts", "serve.embeddings")
	return cmd
}

// emptyGrace is how long a server ends that never had a model.
const emptyGrace = time.Second

// serve listens, loads the model, and answers until ctx ends.
func (a *app) serve(ctx context.Context) (err error) {
	if a.isDefault("log-level") && !a.cfg.Quiet {
		a.log = a.log.Level(zerolog.InfoLevel) // a line for each request is what a server's log is for
	}
	cfg, err := a.serverConfig()
	if err != nil {
		return err
	}
	model, err := a.servedModel()
	if err != nil {
		return err
	}
	ln, cert, err := a.listen()
	if err != nil {
		return err
	}
	defer ln.Close()
	cfg.CheckHost = server.Browsable(ln)
	if !server.Loopback(ln) && len(cfg.Keys) == 0 {
		a.log.Warn().Str("address", ln.Addr().String()).Msg("other machines can use this server without an API key; see --api-key-file")
	}
	s, err := server.New(cfg)
	if err != nil {
		return usageError{err}
	}
	grace, _ := parseLatency(a.cfg.Serve.Grace) // checked with the configuration
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	served := make(chan error, 1)
	go func() {
		err := s.Serve(ctx, ln, cert, grace)
		cancel(err)
		served <- err
	}()
	if cert != nil {
		defer onHangup(ctx, func() {
			if err := cert.Reload(); err != nil {
				a.log.Error().Err(err).Msg("the old certificate stays")
			} else {
				a.log.Info().Msg("the certificate was read again")
			}
		})()
	}
	scheme := "http"
	if cert != nil {
		scheme = "https"
	}
	a.log.Info().Str("url", listenURL(scheme, ln)).Msg("listening")
	// The engine outlives the requests that it answers.
	using, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	kept := make(chan error, 1)
	go func() {
		after, began := "", time.Now()
		err := s.Keep(using, func(context.Context) (*engine.Engine, error) {
			began = time.Now()
			l := &loadWatch{a: a, s: s, after: after, began: began}
			after = "again: "
			return l.load(ctx, model)
		}, func(e *engine.Engine) {
			a.log.Info().Str("model", a.modelName()).Str("device", e.Device()).Int("slots", e.Stats().Slots).Int("ctx", e.Context()).
				Float64("load_s", e.LoadTime().Seconds()).Float64("after_s", time.Since(began).Seconds()).Str("url", listenURL(scheme, ln)).Msg("ready")
		})
		cancel(err)
		kept <- err
	}()
	select {
	case err = <-served:
		release()
		return errors.Join(err, <-kept)
	case err = <-kept: // it failed, or the server's time was over before there was a model
		select {
		case serr := <-served:
			return errors.Join(err, serr)
		case <-time.After(emptyGrace): // connections are open, on which there is no answer worth waiting for
			return err
		}
	}
}

// listenURL is where a listener is reached.
func listenURL(scheme string, ln net.Listener) string {
	if a, ok := ln.Addr().(*net.TCPAddr); ok {
		return scheme + "://" + a.String()
	}
	return "unix:" + ln.Addr().String()
}

// listen opens the server's address and certificate.
func (a *app) listen() (net.Listener, *server.Certificate, error) {
	c := &a.cfg.Serve
	var cert *server.Certificate
	var err error
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return nil, nil, usagef("--tls-cert and --tls-key go together")
	case c.TLSCert != "":
		if cert, err = server.OpenCertificate(c.TLSCert, c.TLSKey); err != nil {
			return nil, nil, usageError{err}
		}
	}
	if c.Port < 0 || c.Port > math.MaxUint16 {
		return nil, nil, usagef("--port is %d; use 1 to %d, or 0 for any", c.Port, math.MaxUint16)
	}
	addr := c.Host
	if !strings.HasPrefix(addr, "unix:") {
		addr = net.JoinHostPort(strings.Trim(c.Host, "[]"), strconv.Itoa(c.Port))
	}
	ln, err := server.Listen(addr)
	if err != nil {
		return nil, nil, fmt.Errorf("%w; choose another with --host and --port", err)
	}
	return ln, cert, nil
}

// serverConfig turns settings into the server's.
func (a *app) serverConfig() (server.Config, error) {
	c := &a.cfg.Serve
	cfg := server.Config{
		Models: c.Alias, AnyModel: c.AnyModel, KeyRate: c.KeyRate, Hosts: c.AllowHost, Origins: c.CORSOrigin, MaxTokens: c.Predict,
		NoThink: a.cfg.Run.NoThink, KeepTags: c.ReasoningFormat == "none", NoCallInThink: !c.ToolCallInThink, TrustSpecial: a.cfg.TrustSpecial,
		Embeddings: c.Embeddings, MetricsCompat: c.MetricsCompat, LogPrompts: c.LogPrompts, Log: a.log, Version: newVersion().Version,
		Sampling: a.sampling,
	}
	if len(cfg.Models) == 0 {
		cfg.Models = []string{strings.TrimSuffix(filepath.Base(a.modelName()), ".gguf")}
	}
	if c.KeyRate < 0 || c.Predict < 0 {
		return cfg, usagef("--key-rate and --predict cannot be below 0")
	}
	for _, name := range c.MetricsCompat {
		if name != "vllm" && name != "llamacpp" {
			return cfg, usagef("--metrics-compat: there is no %q; use vllm or llamacpp", name)
		}
	}
	cfg.MaxBody, _ = parseSize(c.MaxBody) // these are checked with the configuration
	cfg.WriteTimeout, _ = parseLatency(c.WriteTimeout)
	if cfg.Ping, _ = parseLatency(c.Ping); cfg.Ping == 0 {
		cfg.Ping = -1
	}
	for _, p := range []sample.Params{a.sampling(true), a.sampling(false)} {
		if err := p.Validate(); err != nil {
			return cfg, err
		}
	}
	keys, err := a.apiKeys()
	cfg.Keys = keys
	return cfg, err
}

// apiKeys are those of the environment and of the file. They are no setting, which could be shown.
func (a *app) apiKeys() ([]string, error) {
	text := os.Getenv("CALDERA_API_KEY")
	keys := splitKeys(text)
	if text != "" && len(keys) == 0 { // a server that was meant to be closed must not be open
		return nil, usagef("CALDERA_API_KEY is set and has no key")
	}
	if file := a.cfg.Serve.APIKeyFile; file != "" {
		text, err := a.readText(file)
		if err != nil {
			return nil, usagef("--api-key-file: %w", err)
		}
		more := splitKeys(text)
		if len(more) == 0 {
			return nil, usagef("--api-key-file: %s has no key", file)
		}
		keys = append(keys, more...)
	}
	return keys, nil
}

// splitKeys takes a list of keys apart.
func splitKeys(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

// sampling is what holds for requests that say nothing: what the user says, else the model family's defaults.
func (a *app) sampling(thinking bool) sample.Params {
	c, p := &a.cfg, sample.Defaults(thinking)
	for key, set := range map[string]func(){
		"temp":              func() { p.Temperature = float32(c.Temp) },
		"top-k":             func() { p.TopK = c.TopK },
		"top-p":             func() { p.TopP = float32(c.TopP) },
		"min-p":             func() { p.MinP = float32(c.MinP) },
		"repeat-penalty":    func() { p.RepetitionPenalty = float32(c.RepeatPenalty) },
		"presence-penalty":  func() { p.PresencePenalty = float32(c.PresencePenalty) },
		"frequency-penalty": func() { p.FrequencyPenalty = float32(c.FrequencyPenalty) },
		"repeat-last-n":     func() { p.RepeatLastN = c.RepeatLastN },
	} {
		if !a.isDefault(key) {
			set()
		}
	}
	if a.isDemo() && a.isDefault("temp") {
		p.Temperature, p.PresencePenalty = 0, 0 // the demo knows its answers, and is too small to survive a bad draw
	}
	return p
}

// stallAfter is how long loading may stand still before that is said.
const stallAfter = 8 * time.Second

// servedModel says what to open.
func (a *app) servedModel() (engine.Config, error) {
	c := a.engineConfig(0)
	if c.Slots = a.cfg.Slots; c.Slots == 0 {
		c.Slots = serveSlots
	}
	if c.Queue = a.cfg.Queue; c.Queue == 0 {
		c.Queue = -1
	}
	c.MaxLatency, _ = parseLatency(a.cfg.MaxLatency) // checked with the configuration
	a.addCache(&c, true)
	return c, a.prepare(&c)
}

// load opens the engine and warms it up, so that the first requests find everything made. It returns nil when ctx ends
// before: loading cannot be broken off everywhere, but the program can end.
func (l *loadWatch) load(ctx context.Context, c engine.Config) (*engine.Engine, error) {
	c.Progress = func(p engine.Progress) { l.stage(stageWeights, p.Done, p.Total) }
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go l.watch(watching)
	type opened struct {
		e   *engine.Engine
		err error
	}
	done := make(chan opened, 1)
	go func() {
		e, err := l.open(ctx, c)
		done <- opened{e, err}
	}()
	select {
	case x := <-done:
		if x.err != nil && ctx.Err() != nil {
			return nil, nil
		}
		return x.e, x.err
	case <-ctx.Done():
		return nil, nil
	}
}

// The stages of loading.
const (
	stageFile      = "reading the model"
	stageWeights   = "loading weights"
	stagePipelines = "compiling pipelines"
	stageWarmUp    = "warming up"
)

// loadWatch says where loading is, and when it stands still.
type loadWatch struct {
	a     *app
	s     *server.Server
	after string // why it loads, if not because the server began
	began time.Time

	mu sync.Mutex
	at loadStage
}

type loadStage struct {
	name        string
	done, total int64
	since       time.Time
}

// open opens the engine and warms it up.
func (l *loadWatch) open(ctx context.Context, c engine.Config) (*engine.Engine, error) {
	l.stage(stageFile, 0, 0)
	e, err := engine.Open(c)
	if err != nil {
		return nil, err
	}
	l.stage(stageWarmUp, 0, 0)
	err = e.WarmUp(ctx, func(done, total int) {
		if done < total {
			l.stage(stagePipelines, int64(done), int64(total))
		} else {
			l.stage(stageWarmUp, 0, 0)
		}
	})
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if l.a.opened != nil {
		l.a.opened(e)
	}
	return e, nil
}

// stage tells of progress.
func (l *loadWatch) stage(name string, done, total int64) {
	l.mu.Lock()
	if name != l.at.name {
		l.a.log.Info().Str("stage", name).Float64("after_s", time.Since(l.began).Seconds()).Msg("loading")
	}
	l.at = loadStage{name, done, total, time.Now()}
	l.tell("")
	l.mu.Unlock()
	if l.a.atStage != nil {
		l.a.atStage(name, done, total)
	}
}

// tell has the server say where loading is. l.mu is held.
func (l *loadWatch) tell(stalled string) {
	x := server.Loading{Stage: l.after + l.at.name, Done: l.at.done, Total: l.at.total, Stalled: stalled}
	if x.Total > 0 {
		x.Progress = float64(x.Done) / float64(x.Total)
	}
	l.s.Load(x)
}

// watch looks about once a second whether there is progress.
func (l *loadWatch) watch(ctx context.Context) {
	t := time.NewTicker(min(time.Second, l.a.stallAfter/2))
	defer t.Stop()
	var warned time.Time
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		still := time.Since(l.at.since)
		if l.at.name != "" && still >= l.a.stallAfter {
			l.tell(still.Round(time.Second).String())
			if time.Since(warned) >= l.a.stallAfter {
				warned = time.Now()
				l.a.log.Warn().Str("stage", l.at.name).Int64("done", l.at.done).Int64("total", l.at.total).Float64("seconds", math.Round(still.Seconds())).Msg("loading: no progress")
			}
		}
		l.mu.Unlock()
	}
}
