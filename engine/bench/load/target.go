package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"
)

const (
	maxBody      = 64 << 10 // bytes of an error that are read
	maxFacts     = 4 << 20  // bytes of an answer to the questions about a server
	factsTimeout = 5 * time.Second
)

// A target is the server.
type target struct {
	base   string
	key    string
	client *http.Client
}

func newTarget(o *Options) (*target, error) {
	base, socket, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{
		// No proxy: the load must meet the server itself, and no other host may see it.
		DisableCompression:     true,
		MaxIdleConnsPerHost:    o.Concurrency + 4,
		IdleConnTimeout:        30 * time.Second, // less than servers have, which would close a connection as it is used
		MaxResponseHeaderBytes: maxBody,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
	}
	if o.dial != nil {
		tr.DialContext = o.dial
	} else if socket != "" {
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	return &target{base: base, key: o.Key, client: &http.Client{
		Transport: tr,
		// A redirect could lead to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// close closes the connections that wait for use.
func (t *target) close() { t.client.CloseIdleConnections() }

// request makes an HTTP request; body is nil for GET.
func (t *target) request(ctx context.Context, path string, body []byte) (*http.Request, error) {
	method, r := http.MethodGet, io.Reader(nil)
	if body != nil {
		method, r = http.MethodPost, bytes.NewReader(body)
	}
	q, err := http.NewRequestWithContext(ctx, method, t.base+path, r)
	if err != nil {
		return nil, err
	}
	if body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	if t.key != "" {
		q.Header.Set("Authorization", "Bearer "+t.key)
	}
	return q, nil
}

// A statusError is an answer that is not 200.
type statusError struct {
	path string
	code int
	said string
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("%s answers %d %s", e.path, e.code, http.StatusText(e.code))
	if e.said != "" {
		s += ", " + e.said
	}
	if e.code == http.StatusUnauthorized || e.code == http.StatusForbidden {
		s += "; the key comes from CALDERA_API_KEY or --api-key-file"
	}
	return s
}

// ask asks for a fact about the server; the error is a *statusError where the answer is not 200.
func (t *target) ask(ctx context.Context, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, factsTimeout)
	defer cancel()
	q, err := t.request(ctx, path, body)
	if err != nil {
		return nil, err
	}
	resp, err := t.client.Do(q)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxFacts+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case len(b) > maxFacts:
		return nil, fmt.Errorf("%s answers more than %d MiB", path, maxFacts>>20)
	case resp.StatusCode != http.StatusOK:
		e := &statusError{path: path, code: resp.StatusCode}
		if x, err := parseError(b); err == nil {
			e.said = x.String()
		}
		return nil, e
	}
	return b, nil
}

// healthPoll is how often a server that is loading is asked.
const healthPoll = 250 * time.Millisecond

// waitReady waits for a server that says it is not ready yet.
func (t *target) waitReady(ctx context.Context, wait time.Duration, rep *Report) error {
	for until := time.Now().Add(wait); ; {
		_, err := t.ask(ctx, "/health", nil)
		var status *statusError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &status) && status.code == http.StatusServiceUnavailable:
			if time.Now().After(until) {
				return fmt.Errorf("%w: %w after %v", ErrUnready, err, wait)
			}
		case errors.As(err, &status) && isMissing(status.code):
			rep.note("no /health to ask (%v)", err)
			return nil
		default:
			return fmt.Errorf("%w: %w", ErrUnready, err)
		}
		sleep(ctx, healthPoll)
	}
}

// isMissing reports whether a status says that there is no such endpoint.
func isMissing(code int) bool {
	return code == http.StatusNotFound || code == http.StatusNotImplemented || code == http.StatusMethodNotAllowed
}

// firstModel asks for the name of the first model.
func (t *target) firstModel(ctx context.Context) (string, error) {
	b, err := t.ask(ctx, "/v1/models", nil)
	if err != nil {
		return "", fmt.Errorf("%w: %w (--model gives the name without asking)", ErrUnready, err)
	}
	var x struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(b, &x); err != nil || len(x.Data) == 0 || x.Data[0].ID == "" {
		return "", fmt.Errorf("%w: /v1/models names no model; give one with --model", ErrUnready)
	}
	return x.Data[0].ID, nil
}

// countTokens asks how many tokens a text has.
func (t *target) countTokens(ctx context.Context, text string) (int, error) {
	body, err := json.Marshal(map[string]string{"content": text})
	if err != nil {
		return 0, err
	}
	b, err := t.ask(ctx, "/tokenize", body)
	if err != nil {
		return 0, err
	}
	var x struct {
		Tokens []json.RawMessage `json:"tokens"`
	}
	if err := json.Unmarshal(b, &x); err != nil {
		return 0, fmt.Errorf("/tokenize: %w", err)
	}
	return len(x.Tokens), nil
}

// isLocal reports whether an error is of this machine's own limits: files, ports.
func isLocal(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// isDial reports whether an error is that there was no connection at all.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// sleep waits, and reports whether it was for the whole time.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
