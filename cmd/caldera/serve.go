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
	"sync/atomic"
	"time"

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
		"serve.tls-cert", "serve.tls-key", "serve.max-body", "serve.max-tokens", "serve.ping", "serve.write-timeout", "serve.grace",
		"serve.reasoning-format", "serve.tool-call-in-think", "serve.metrics-compat", "serve.log-prompts", "serve.embeddings")
	return cmd
}

// serve listens, loads the model, and answers until ctx ends.
func (a *app) serve(ctx context.Context) (err error) {
	if a.isDefault("log-level") {
		a.log = a.log.Level(zerolog.InfoLevel) // a line for each request is what a server's log is for
	}
	cfg, err := a.serverConfig()
	if err != nil {
		return err
	}
	ln, cert, err := a.listen()
	if err != nil {
		return err
	}
	defer ln.Close()
	cfg.CheckHost = server.Loopback(ln)
	if !cfg.CheckHost && len(cfg.Keys) == 0 {
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
	e, err := a.loadServed(ctx, s)
	if err != nil {
		cancel(err)
		return errors.Join(err, <-served)
	}
	if e == nil { // the server's time was over before there was a model
		return <-served
	}
	defer closeEngine(e, &err)
	s.Ready(e)
	a.log.Info().Str("model", a.modelName()).Str("device", e.Device()).Int("slots", e.Stats().Slots).Int("ctx", e.Context()).
		Float64("load_s", e.LoadTime().Seconds()).Str("url", listenURL(scheme, ln)).Msg("ready")
	return <-served
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
		Models: c.Alias, AnyModel: c.AnyModel, KeyRate: c.KeyRate, Hosts: c.AllowHost, Origins: c.CORSOrigin, MaxTokens: c.MaxTokens,
		NoThink: a.cfg.Run.NoThink, KeepTags: c.ReasoningFormat == "none", NoCallInThink: !c.ToolCallInThink, TrustSpecial: a.cfg.TrustSpecial,
		Embeddings: c.Embeddings, MetricsCompat: c.MetricsCompat, LogPrompts: c.LogPrompts, Log: a.log, Version: newVersion().Version,
		Sampling: a.sampling,
	}
	if len(cfg.Models) == 0 {
		cfg.Models = []string{strings.TrimSuffix(filepath.Base(a.modelName()), ".gguf")}
	}
	if c.KeyRate < 0 || c.MaxTokens < 0 {
		return cfg, usagef("--key-rate and --max-tokens cannot be below 0")
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
	if a.cfg.Serve.APIKeyFile != "" {
		s, err := a.readText(a.cfg.Serve.APIKeyFile)
		if err != nil {
			return nil, usagef("--api-key-file: %w", err)
		}
		if strings.TrimSpace(s) == "" {
			return nil, usagef("--api-key-file: %s has no key", a.cfg.Serve.APIKeyFile)
		}
		text += "\n" + s
	}
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' || r == '\r' || r == ' ' || r == '\t' }), nil
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
const stallAfter = 10 * time.Second

// loadServed opens the engine and runs it once, so that its pipelines are there before the first request. It returns nil
// when ctx ends before: loading cannot be broken off, but the program can end.
func (a *app) loadServed(ctx context.Context, s *server.Server) (*engine.Engine, error) {
	c := a.engineConfig(0)
	if c.Slots = a.cfg.Slots; c.Slots == 0 {
		c.Slots = serveSlots
	}
	if c.Queue = a.cfg.Queue; c.Queue == 0 {
		c.Queue = -1
	}
	c.MaxLatency, _ = parseLatency(a.cfg.MaxLatency) // checked with the configuration
	a.addCache(&c, true)
	if err := a.prepare(&c); err != nil {
		return nil, err
	}
	l := &loadWatch{a: a, s: s}
	l.stage("reading the model", 0, 0)
	c.Progress = func(p engine.Progress) { l.stage("loading weights", p.Done, p.Total) }
	ctxWatch, stop := context.WithCancel(ctx)
	defer stop()
	go l.watch(ctxWatch)
	type opened struct {
		e   *engine.Engine
		err error
	}
	done := make(chan opened, 1)
	go func() {
		e, err := engine.Open(c)
		if err == nil {
			l.stage("compiling pipelines", 0, 0)
			if err = warmUp(ctx, e); err != nil {
				err = errors.Join(err, e.Close())
				e = nil
			}
		}
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

// warmUp runs a prompt of several tokens and an answer of two, as the first request does.
func warmUp(ctx context.Context, e *engine.Engine) error {
	p := sample.Neutral()
	p.Temperature = 0
	st, err := e.Generate(ctx, engine.Request{Prompt: make([]int32, min(8, e.Context()-2)), MaxTokens: 2, Sample: p, IgnoreEOG: true, NoCache: true})
	if err != nil {
		return err
	}
	_, err = st.Result()
	return err
}

// loadWatch says where loading is, and when it stands still.
type loadWatch struct {
	a    *app
	s    *server.Server
	at   atomic.Pointer[loadStage]
	said string // the stage that the log knows; of the goroutine that watches
}

type loadStage struct {
	name        string
	done, total int64
	since       time.Time
}

func (l *loadWatch) stage(name string, done, total int64) {
	l.at.Store(&loadStage{name, done, total, time.Now()})
	x := server.Loading{Stage: name, Done: done, Total: total}
	if total > 0 {
		x.Progress = float64(done) / float64(total)
	}
	l.s.Load(x)
}

// watch looks at the stage once a second.
func (l *loadWatch) watch(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	warned := time.Time{}
	for {
		x := l.at.Load()
		if x.name != l.said {
			l.said = x.name
			l.a.log.Info().Str("stage", x.name).Msg("loading")
		}
		if still := time.Since(x.since); still >= stallAfter && time.Since(warned) >= stallAfter {
			warned = time.Now()
			l.a.log.Warn().Str("stage", x.name).Float64("seconds", math.Round(still.Seconds())).Msg("loading: no progress")
			l.s.Load(server.Loading{Stage: x.name, Done: x.done, Total: x.total, Stalled: still.Round(time.Second).String()})
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
