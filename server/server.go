// Package server gives an engine to clients over HTTP: the OpenAI API (chat completions, completions, responses), the
// Anthropic messages API, what llama-server and Ollama users expect, and what operators need (health, metrics, slots).
//
// A request passes these hands: http.go decides whether it may come in at all, a handler of one API (chat.go,
// completions.go, ...) reads its fields (body.go) into a task, task.go runs the task on the engine and tells the handler
// what comes of it, and the handler writes that down in the API's own form, at once or as a stream of events (sse.go).
// Errors are in errors.go and metrics in metrics.go; nothing else knows of either.
package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/sample"
)

// Config says how to serve. The zero value of every field but Models is a default.
type Config struct {
	// Models are the names that the model goes by, the first of which answers carry where a request names none.
	Models   []string
	AnyModel bool // take every name

	// Keys are those of which a request must carry one; without any none is needed.
	Keys []string
	// KeyRate bounds the requests a second of each key, or of all without keys; 0 for no bound.
	KeyRate float64
	// Hosts are names that a request's Host may have beside those of this machine's loopback, see CheckHost.
	Hosts []string
	// CheckHost refuses names that are neither loopback's nor in Hosts, so that a page elsewhere cannot reach a server on
	// this machine by a name of its own.
	CheckHost bool
	// Origins are the sites whose pages may use the server; its own page always may.
	Origins []string

	MaxBody      int64         // most bytes of a request; default 16 MiB
	Ping         time.Duration // between the signs of life of a stream that waits; default 15 s, -1 for none
	WriteTimeout time.Duration // most time that one write may take; default 30 s

	// Sampling is what holds for a request that says nothing, for answers with or without thinking. Nil is
	// [sample.Defaults].
	Sampling func(thinking bool) sample.Params
	// MaxTokens bounds answers whose request does not; 0 for the context.
	MaxTokens int
	// NoThink has the template close the model's thinking unless the request asks for it.
	NoThink bool
	// KeepTags leaves reasoning in the content unless the request asks otherwise.
	KeepTags bool
	// NoCallInThink takes a call that a model writes inside its reasoning as reasoning.
	NoCallInThink bool
	// TrustSpecial lets the text of clients spell control tokens.
	TrustSpecial bool
	// Embeddings offers /v1/embeddings.
	Embeddings bool

	// MetricsCompat are the engines whose names of metrics are offered beside ours: "vllm", "llamacpp".
	MetricsCompat []string
	// LogPrompts puts prompts into the log.
	LogPrompts bool
	Log        zerolog.Logger
	Version    string // of the program
}

// A Server answers requests. It does so from the beginning, and says that it is loading until it has a model.
type Server struct {
	cfg     Config
	keys    [][sha256.Size]byte
	limits  limiters
	metrics *metrics
	handler http.Handler
	began   time.Time

	model   atomic.Pointer[served]
	loading atomic.Pointer[Loading]
	lost    chan error // holds why, when the model has been lost
	closing atomic.Bool
	last    atomic.Int64 // number of the last task
	busy    atomic.Int64 // requests that may compute
	// stop ends what still runs.
	running context.Context
	stop    context.CancelCauseFunc

	mu     sync.Mutex
	faults []fault // the last ones, for the page
}

// Loading is how far a server without a model is.
type Loading struct {
	Stage       string  `json:"stage"`
	Progress    float64 `json:"progress"` // 0 to 1
	Done, Total int64   `json:"-"`        // bytes, or whatever the stage counts
	// Stalled is how long there has been no progress, once that is long.
	Stalled string `json:"stalled,omitempty"`
}

// New makes a server without a model.
func New(cfg Config) (*Server, error) {
	if len(cfg.Models) == 0 {
		return nil, errors.New("server: the model has no name")
	}
	for _, k := range cfg.Keys {
		if len(k) < 8 || strings.ContainsFunc(k, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, errors.New("an API key must have at least 8 characters, all of them visible ASCII")
		}
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 16 << 20
	}
	if cfg.Ping == 0 {
		cfg.Ping = 15 * time.Second
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = 30 * time.Second
	}
	if cfg.Sampling == nil {
		cfg.Sampling = sample.Defaults
	}
	s := &Server{cfg: cfg, began: time.Now(), lost: make(chan error, 1)}
	s.running, s.stop = context.WithCancelCause(context.Background())
	for _, k := range cfg.Keys {
		s.keys = append(s.keys, sha256.Sum256([]byte(k)))
	}
	s.limits.rate = cfg.KeyRate
	s.loading.Store(&Loading{Stage: "starting"})
	var err error
	if s.metrics, err = newMetrics(s); err != nil {
		return nil, err
	}
	s.handler = s.guard(s.routes())
	return s, nil
}

// Load says how far loading is.
func (s *Server) Load(l Loading) { s.loading.Store(&l) }

// Ready gives the server its model. The engine stays the caller's.
func (s *Server) Ready(e *engine.Engine) { s.model.Store(newServed(e)) }

// lose puts a model away that cannot go on.
func (s *Server) lose(m *served, err error) {
	if !s.model.CompareAndSwap(m, nil) {
		return
	}
	m.gone.Store(&err)
	s.loading.Store(&Loading{Stage: asError(err).Message})
	if errors.Is(err, engine.ErrDeviceLost) {
		s.metrics.lost.Inc()
	}
	s.lost <- err // there is room: a model is lost once, and the next one comes after this was taken
}

// used takes in how a request to a model went, and returns what its client is told. A model that cannot go on is put away.
func (s *Server) used(m *served, err error) error {
	why := m.Lost() // how the loss began, also where the request came to a good end
	// A model that is open is refused when its file has changed.
	if why == nil && (errors.Is(err, engine.ErrDeviceLost) || errors.Is(err, engine.ErrModel)) {
		why = err
	}
	if why != nil {
		s.lose(m, why)
	}
	if p := m.gone.Load(); p != nil && errors.Is(err, engine.ErrClosed) {
		return *p // it was closed because it was lost
	}
	return err
}

// Handler returns what answers requests.
func (s *Server) Handler() http.Handler { return s.handler }

// ready returns the model, or why there is none to use.
func (s *Server) ready() (*served, error) {
	if s.closing.Load() {
		return nil, unavailable("the server is shutting down")
	}
	m := s.model.Load()
	if m == nil {
		l := s.loading.Load()
		what := fmt.Sprintf("the model is loading (%s, %.0f %%)", l.Stage, 100*l.Progress)
		if l.Stalled != "" {
			what += "; no progress for " + l.Stalled
		}
		return nil, unavailable(what)
	}
	return m, nil
}

// Close stops taking requests: from now on they are refused, and running ones go on.
func (s *Server) Close() { s.closing.Store(true) }

// errShutdown is why requests end that still run when a server's time is over.
var errShutdown = errors.New("the server is shutting down")

// Abort ends all running requests, whose clients are told.
func (s *Server) Abort() { s.stop(errShutdown) }

const idLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// newID returns a prefix and 24 random letters and digits.
func newID(prefix string) string {
	b := make([]byte, 24)
	rand.Read(b)
	for i, x := range b {
		b[i] = idLetters[int(x)%len(idLetters)]
	}
	return prefix + string(b)
}

// A fault is an error that was the server's, not a client's.
type fault struct {
	Time    time.Time `json:"time"`
	Request string    `json:"request"`
	Message string    `json:"message"`
}

// maxFaults is how many are kept.
const maxFaults = 16

// note keeps a fault.
func (s *Server) note(f fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) == maxFaults {
		copy(s.faults, s.faults[1:])
		s.faults = s.faults[:maxFaults-1]
	}
	s.faults = append(s.faults, f)
}
