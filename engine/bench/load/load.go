// Package load puts load on a server with OpenAI's HTTP interface and judges what it answers.
//
// A run is a stream of requests that the options and the seed determine: prompts and answers of some lengths, some
// cut by the client, some malformed. They come from a number of clients of which each waits for its answer (closed
// loop), or at random times whatever the server does (open loop). What a client cannot be blamed for is a [Fault].
// Memory does not grow with the length of a run: see samples and gauge.
//
// The package knows the server by its address alone, and so needs nothing of the engine.
package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
)

// Endpoints.
const (
	Chat        = "chat"        // /v1/chat/completions
	Completions = "completions" // /v1/completions
)

// DefaultURL is where a server is on this machine.
const DefaultURL = "http://127.0.0.1:8080"

// Options say what a run does. Shares are parts of the requests, 0 to 1.
type Options struct {
	URL      string // http://host:port, https://host:port or unix:/path
	Key      string // sent as a bearer token; empty for none
	Endpoint string // Chat or Completions
	Model    string // the name to ask for; empty is the first that the server lists

	Concurrency int           // closed loop: clients. Open loop: most requests at a time
	Rate        float64       // open loop: arrivals a second; 0 is a closed loop
	Duration    time.Duration // begin no request after this long; 0 is no limit
	Requests    int           // begin no more than these; 0 is no limit
	Seed        uint64
	Warmup      int // requests before the run that do not count

	Prompt       Lengths // tokens of prompts
	Output       Lengths // most tokens of answers
	IgnoreEOS    bool    // ask the server to go on when the model ends its answer
	PrefixShare  float64 // of the prompts that begin with the same text
	PrefixLength int     // tokens of that text, beside the prompt's own
	Dataset      []Entry // prompts to draw from instead of random words

	Disconnect float64 // share that the client cuts
	Malformed  float64 // share with malformed bodies
	LongEvery  int     // every so many requests have a long prompt; 0 is none
	LongPrompt int     // tokens of long prompts

	Goodput []Goal // what a request must reach to count as good
	AtMost  []Bar  // what the results must not be above

	Timeout       time.Duration // an answer of which nothing came for this long is a fault
	Wait          time.Duration // for a server that is still loading
	Settle        time.Duration // after the run, for the server's slots to be free
	ShutdownGrace time.Duration // the server is stopped during the run and has this long to end its streams; 0: it is not

	Progress func(Progress) // called about once a second, if not nil

	dial func(ctx context.Context, network, address string) (net.Conn, error) // of tests
}

// Progress is how far a run is.
type Progress struct {
	Elapsed                     time.Duration
	Begun, Completed, Faults    int
	Running, Output, Cut, Other int // Output in tokens
}

// A Goal is a latency of a request, as in ttft:500.
type Goal struct {
	Metric string  // "ttft", "tpot" or "e2el"
	MS     float64 // at most
}

// ParseGoals reads goals as vLLM takes them: ttft:500,tpot:50.
func ParseGoals(s string) ([]Goal, error) {
	pairs, err := parsePairs(s)
	if err != nil {
		return nil, err
	}
	var goals []Goal
	for _, p := range pairs {
		switch p.Name {
		case "ttft", "tpot", "e2el":
			goals = append(goals, Goal{p.Name, p.Most})
		default:
			return nil, fmt.Errorf("%q is no latency of a request; use ttft, tpot or e2el", p.Name)
		}
	}
	return goals, nil
}

// Limits of options.
const (
	maxConcurrency = 1 << 16
	maxRate        = 1e6
)

// Check says what is wrong with options.
func (o *Options) Check() error {
	if _, _, err := parseURL(o.URL); err != nil {
		return err
	}
	switch {
	case o.Endpoint != Chat && o.Endpoint != Completions:
		return fmt.Errorf("the endpoint is %q; use %s or %s", o.Endpoint, Chat, Completions)
	case strings.ContainsFunc(o.Key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("the API key has characters that no header can carry")
	case o.Concurrency < 1 || o.Concurrency > maxConcurrency:
		return fmt.Errorf("the concurrency is %d; use 1 to %d", o.Concurrency, maxConcurrency)
	case !(o.Rate >= 0 && o.Rate <= maxRate):
		return fmt.Errorf("the rate is %g requests a second; use 0 to %g", o.Rate, maxRate)
	case o.Duration < 0 || o.Requests < 0 || o.Warmup < 0:
		return errors.New("duration, requests and warm-up must be 0 or more")
	case o.Duration == 0 && o.Requests == 0:
		return errors.New("without a duration and a number of requests the run would not end; give one")
	case o.Prompt.zero() || o.Output.zero():
		return errors.New("the lengths of prompts and answers are missing")
	case !isShare(o.PrefixShare) || !isShare(o.Disconnect) || !isShare(o.Malformed):
		return errors.New("shares must be 0 to 1")
	case o.Disconnect+o.Malformed > 1:
		return fmt.Errorf("%g cut and %g malformed are more than all requests", o.Disconnect, o.Malformed)
	case o.PrefixLength < 0 || o.PrefixLength > maxLength || o.LongPrompt < 0 || o.LongPrompt > maxLength:
		return fmt.Errorf("prefix and long prompt must be 0 to %d tokens", maxLength)
	case o.PrefixShare > 0 && o.PrefixLength == 0:
		return errors.New("a prefix that prompts share must have a length")
	case o.LongEvery < 0 || o.LongEvery > 0 && o.LongPrompt == 0:
		return errors.New("a long prompt every so many requests needs a number of 1 or more, and a length")
	case o.Timeout <= 0 || o.Wait < 0 || o.Settle < 0 || o.ShutdownGrace < 0:
		return errors.New("the timeout must be above 0, and other times 0 or more")
	}
	if o.Endpoint == Completions {
		for _, e := range o.Dataset {
			if e.Prompt == "" {
				return errors.New("the data set has conversations, which only the chat endpoint takes")
			}
		}
	}
	return checkBarNames(o.AtMost)
}

func isShare(v float64) bool { return v >= 0 && v <= 1 }

// parseURL splits an address into what requests are sent to and, for a unix socket, its path. A user and password are refused:
// a secret has no place in a command line.
func parseURL(s string) (base, socket string, err error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if path = strings.TrimPrefix(path, "//"); path == "" {
			return "", "", errors.New("the address unix: lacks the socket's path")
		}
		return "http://localhost", path, nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", "", fmt.Errorf("the address is no URL of a server; write it as in %s", DefaultURL)
	case u.User != nil:
		return "", "", errors.New("the address has a user or password; keys come from the environment or a file")
	case u.RawQuery != "" || u.Fragment != "":
		return "", "", errors.New("the address has more than host and path")
	}
	// Clients are configured with the path /v1, which is part of every endpoint's own path here.
	return strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), "/v1"), "", nil
}

// IsLoopback reports whether an address, as of Options, is on this machine.
func IsLoopback(address string) bool {
	base, socket, err := parseURL(address)
	if err != nil || socket != "" {
		return err == nil
	}
	u, err := url.Parse(base)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// ErrUnready is in the chain of the error of a run that could not begin.
var ErrUnready = errors.New("the server cannot be measured")

// Run puts load on a server and reports. When ctx ends, so does the run, and the report says so and has what there
// is. A server that misbehaves makes no error: see [Report.Faults].
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	t, err := newTarget(&o)
	if err != nil {
		return nil, err
	}
	defer t.close()
	rep := &Report{Options: o, Date: time.Now()}
	if err := t.waitReady(ctx, o.Wait, rep); err != nil {
		return nil, err
	}
	if rep.Model = o.Model; rep.Model == "" {
		if rep.Model, err = t.firstModel(ctx); err != nil {
			return nil, err
		}
	}
	w := newWorkload(&o, rep.Model)
	if len(o.Dataset) == 0 {
		if err := w.calibrate(ctx, t); err != nil {
			rep.note("prompts have about the length asked for: %v", err)
		}
	}
	r := newRunner(&o, t, w)
	if !r.warmUp(ctx, rep) {
		return rep, nil
	}
	m := newMonitor(t, rep)
	m.begin(ctx)
	r.run(ctx, m)
	r.col.report(rep)
	rep.Interrupted = ctx.Err() != nil
	switch {
	case rep.Interrupted:
	case o.ShutdownGrace > 0:
		r.judgeShutdown(ctx, rep)
	default:
		m.finish(ctx, o.Settle)
	}
	rep.checkBars()
	return rep, nil
}
