package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 60 * time.Second
	maxHeader     = 32 << 10
	// abortTimeout is how long answers have for their last words.
	abortTimeout = 2 * time.Second
)

// idlePoll is how often a server that ends looks whether answers still run.
const idlePoll = 10 * time.Millisecond

// unixPrefix begins an address that is the path of a socket.
const unixPrefix = "unix:"

// Listen opens an address: host:port, where port 0 is any free one, or unix: and a path. A socket that nobody listens to any
// more is replaced.
func Listen(addr string) (net.Listener, error) {
	path, ok := strings.CutPrefix(addr, unixPrefix)
	if !ok {
		return net.Listen("tcp", addr)
	}
	if i, err := os.Lstat(path); err == nil && i.Mode()&fs.ModeSocket != 0 {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
			return nil, fmt.Errorf("listen %s: another server listens there", addr)
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(path) // if that fails, listening does
		}
	}
	return net.Listen("unix", path)
}

// Loopback reports whether a listener can be reached from this machine alone.
func Loopback(ln net.Listener) bool {
	a, ok := ln.Addr().(*net.TCPAddr)
	return !ok || a.IP.IsLoopback()
}

// Browsable reports whether a page of another site could reach a listener by a name that means this machine.
func Browsable(ln net.Listener) bool {
	a, ok := ln.Addr().(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

// A Certificate is the files of a TLS certificate, which may change while it is in use.
type Certificate struct {
	cert, key string
	now       atomic.Pointer[tls.Certificate]
}

// OpenCertificate reads a certificate.
func OpenCertificate(cert, key string) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key}
	return c, c.Reload()
}

// Reload reads the files again. With an error the certificate stays what it was.
func (c *Certificate) Reload() error {
	x, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("TLS certificate %s with key %s: %w", c.cert, c.key, err)
	}
	c.now.Store(&x)
	return nil
}

// Serve answers what comes in at ln, with TLS where there is a certificate. When ctx ends it refuses what comes in, so that
// /health tells balancers, lets what runs run for the time of grace, then cuts it off, and returns nil.
func (s *Server) Serve(ctx context.Context, ln net.Listener, cert *Certificate, grace time.Duration) error {
	h := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(logWriter{s}, "", 0),
	}
	done := make(chan error, 1)
	go func() {
		if cert == nil {
			done <- h.Serve(ln)
			return
		}
		h.TLSConfig = &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert.now.Load(), nil },
		}
		done <- h.ServeTLS(ln, "", "")
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	s.Close()
	s.cfg.Log.Info().Int64("running", s.busy.Load()).Float64("grace_s", grace.Seconds()).Msg("ending: nothing new is taken in")
	for end := time.Now().Add(grace); s.busy.Load() > 0 && time.Now().Before(end); {
		time.Sleep(idlePoll)
	}
	if n := s.busy.Load(); n > 0 {
		s.cfg.Log.Warn().Int64("running", n).Msg("the grace is over: what runs is cut off")
		s.Abort()
	}
	limit, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	if h.Shutdown(limit) != nil {
		return h.Close()
	}
	return nil
}

// logWriter puts what net/http has to say into the log: mostly of clients that break off handshakes.
type logWriter struct{ s *Server }

func (l logWriter) Write(b []byte) (int, error) {
	what := strings.TrimSpace(string(b))
	if strings.Contains(what, "Accept error") { // there are no descriptors left, mostly
		l.s.cfg.Log.Warn().Msg(what)
	} else {
		l.s.cfg.Log.Debug().Msg(what)
	}
	return len(b), nil
}
