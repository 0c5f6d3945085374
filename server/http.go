package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"github.com/calderaml/caldera/server/page"
)

// A route is what answers at a path.
type route struct {
	paths  []string
	method string
	serve  func(s *Server, w http.ResponseWriter, r *http.Request) error
	public bool // no key is needed
}

// routeTable is every route. The first path names the route in metrics.
func (s *Server) routeTable() []route {
	return []route{
		{paths: []string{"/health", "/v1/health"}, method: "GET", serve: (*Server).health, public: true},
		{paths: []string{"/v1/models", "/models"}, method: "GET", serve: (*Server).models},
		{paths: []string{"/v1/models/{name...}"}, method: "GET", serve: (*Server).oneModel},
		{paths: []string{"/v1/chat/completions", "/chat/completions"}, method: "POST", serve: (*Server).chatCompletions},
		{paths: []string{"/v1/completions", "/completions"}, method: "POST", serve: (*Server).completions},
		{paths: []string{"/v1/embeddings", "/embeddings"}, method: "POST", serve: (*Server).embeddings},
		{paths: []string{"/completion"}, method: "POST", serve: (*Server).llamaCompletion},
		{paths: []string{"/tokenize"}, method: "POST", serve: (*Server).tokenize},
		{paths: []string{"/detokenize"}, method: "POST", serve: (*Server).detokenize},
		{paths: []string{"/apply-template"}, method: "POST", serve: (*Server).applyTemplate},
		{paths: []string{"/v1/chat/completions/input_tokens"}, method: "POST", serve: (*Server).chatTokens},
		{paths: []string{"/v1/responses", "/responses"}, method: "POST", serve: (*Server).responses},
		{paths: []string{"/v1/responses/input_tokens"}, method: "POST", serve: (*Server).responseTokens},
		{paths: []string{"/props"}, method: "GET", serve: (*Server).props},
		{paths: []string{"/slots"}, method: "GET", serve: (*Server).slots},
		{paths: []string{"/v1/messages"}, method: "POST", serve: (*Server).messages},
		{paths: []string{"/v1/messages/count_tokens"}, method: "POST", serve: (*Server).countTokens},
		{paths: []string{"/api/version"}, method: "GET", serve: (*Server).ollamaVersions},
		{paths: []string{"/api/tags"}, method: "GET", serve: (*Server).ollamaTags},
		{paths: []string{"/api/ps"}, method: "GET", serve: (*Server).ollamaRunning},
		{paths: []string{"/api/show"}, method: "POST", serve: (*Server).ollamaShow},
		{paths: []string{"/api/chat"}, method: "POST", serve: (*Server).ollamaChat},
		{paths: []string{"/api/generate"}, method: "POST", serve: (*Server).ollamaGenerate},
		{paths: []string{"/metrics"}, method: "GET", serve: (*Server).serveMetrics},
	}
}

// notBuilt are paths of other servers that answer 501.
var notBuilt = []string{
	"/embedding", "/infill", "/lora-adapters", "/v1/rerank", "/rerank", "/reranking", "/v1/audio/", "/v1/images/",
	"/v1/moderations", "/v1/files", "/v1/files/", "/v1/batches", "/v1/batches/", "/v1/fine_tuning/", "/v1/assistants", "/v1/threads", "/models/load", "/models/unload", "/slots/",
	"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/", "/api/embed", "/api/embeddings",
}

// routes puts the routes together. A path that is known by another method is answered so; what is not known is not found.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for _, r := range s.routeTable() {
		for _, path := range r.paths {
			mux.Handle(r.method+" "+path, s.at(r))
			methods[path] = append(methods[path], r.method)
		}
	}
	for path, have := range methods {
		if slices.Contains(have, "GET") {
			have = append(have, "HEAD")
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			allow := strings.Join(have, ", ")
			w.Header().Set("Allow", allow)
			e := invalid("", "%s cannot be asked with %s; use %s", r.URL.Path, r.Method, allow)
			e.Status = http.StatusMethodNotAllowed
			s.fail(w, r, e)
		})
	}
	for _, path := range []string{"/{$}", "/favicon.ico"} {
		files := page.Handler()
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			infoOf(r).route = "/"
			files.ServeHTTP(w, r)
		})
	}
	for _, path := range notBuilt {
		if _, there := methods[path]; there {
			continue
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			s.fail(w, r, notSupported(http.StatusNotImplemented, "", "%s is not built in this server", r.URL.Path))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, &apiError{Status: http.StatusNotFound, Type: typeNotFound, Message: "there is nothing at " + quote(r.URL.Path)})
	})
	return mux
}

// info is what is known of a request while it is answered.
type info struct {
	id     string
	route  string
	conn   *http.ResponseController
	header http.Header // of the answer
	unread bool        // the request has a body that was not read
	status int
	err    error
	// For the log.
	prompt, cached, tokens int
	text                   string // of the prompt, where it shall be logged
}

type infoKey struct{}

// infoOf returns the info of a request that came through guard.
func infoOf(r *http.Request) *info {
	if i, ok := r.Context().Value(infoKey{}).(*info); ok {
		return i
	}
	return &info{}
}

// recorder notes the status that is sent.
type recorder struct {
	http.ResponseWriter
	info *info
	sent bool
}

func (r *recorder) WriteHeader(status int) {
	if !r.sent {
		r.sent, r.info.status = true, status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if !r.sent {
		r.sent, r.info.status = true, http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// guard stands before all routes: it gives requests their ids, keeps out what may not come in, and logs and counts.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		i := &info{id: requestID(r.Header.Get("X-Request-Id")), route: "other", conn: http.NewResponseController(w)}
		// A server's end ends its requests; a client's too, which is why the request's context is the base.
		ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), infoKey{}, i))
		defer cancel(nil)
		defer context.AfterFunc(s.running, func() { cancel(context.Cause(s.running)) })()
		r = r.WithContext(ctx)
		rec := &recorder{ResponseWriter: w, info: i}
		w = rec
		h := w.Header()
		i.header = h
		h.Set("X-Request-Id", i.id)
		h.Set("X-Content-Type-Options", "nosniff")
		if r.ContentLength != 0 {
			// Who answers without reading the body closes the connection: the rest of it may never come.
			i.unread = true
			h.Set("Connection", "close")
		}
		r.Body = http.MaxBytesReader(w, r.Body, s.cfg.MaxBody)
		defer func() {
			p := recover()
			if p != nil && p != http.ErrAbortHandler {
				s.cfg.Log.Error().Str("id", i.id).Str("panic", fmt.Sprint(p)).Bytes("stack", debug.Stack()).Msg("a request ran into a fault of the program")
				if !rec.sent {
					s.fail(w, r, &apiError{Status: http.StatusInternalServerError, Type: typeServer})
				}
				i.status = http.StatusInternalServerError
			}
			s.log(r, i, time.Since(start))
			s.metrics.answered(i.route, i.status, time.Since(start))
			if i.unread {
				_ = i.conn.SetReadDeadline(time.Now().Add(time.Second)) // net/http reads on for a while
			}
			if p == http.ErrAbortHandler {
				panic(p)
			}
		}()
		if err := s.admit(w, r); err != nil {
			s.fail(w, r, err)
			return
		}
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// at answers at a route.
func (s *Server) at(x route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := infoOf(r)
		i.route = x.paths[0]
		err := error(nil)
		if !x.public {
			err = s.authorize(r)
		}
		if err == nil {
			err = x.serve(s, w, r)
		}
		if err != nil {
			s.fail(w, r, err)
		}
	})
}

// admit checks a request's Host and Origin.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) error {
	if strings.Contains(r.URL.Path, "//") {
		return &apiError{Status: http.StatusNotFound, Type: typeNotFound, Message: "there is nothing at " + quote(r.URL.Path)}
	}
	if r.ContentLength > s.cfg.MaxBody {
		return &http.MaxBytesError{Limit: s.cfg.MaxBody}
	}
	if s.cfg.CheckHost && !s.knownHost(r.Host) {
		return &apiError{Status: http.StatusForbidden, Type: typePermission, Message: "the request names the host " + quote(r.Host) + ", which this server does not go by; see --allow-host"}
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil
	}
	if u, err := url.Parse(origin); err == nil && u.Host == r.Host {
		return nil // the server's own page
	}
	if !slices.Contains(s.cfg.Origins, origin) && !slices.Contains(s.cfg.Origins, "*") {
		return &apiError{Status: http.StatusForbidden, Type: typePermission, Message: "pages of " + quote(origin) + " may not use this server; see --cors-origin"}
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Allow-Origin", origin)
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked) // client libraries send many of their own
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")
	return nil
}

// knownHost reports whether a Host is this machine's loopback or was configured.
func (s *Server) knownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if name == "localhost" || slices.Contains(s.cfg.Hosts, name) {
		return true
	}
	ip := net.ParseIP(name)
	return ip != nil && ip.IsLoopback()
}

// authorize checks the key of a request, and how often it comes.
func (s *Server) authorize(r *http.Request) error {
	key := r.Header.Get("X-Api-Key")
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		key = strings.TrimSpace(token)
	}
	sum := sha256.Sum256([]byte(key))
	if len(s.keys) > 0 {
		found := 0
		for i := range s.keys { // all of them, so that the time tells nothing
			found |= subtle.ConstantTimeCompare(sum[:], s.keys[i][:])
		}
		if found == 0 {
			what := "the request has no API key; send Authorization: Bearer and the key"
			if key != "" {
				what = "the API key is not one of this server's"
			}
			return &apiError{Status: http.StatusUnauthorized, Type: typeAuth, Code: "invalid_api_key", Message: what}
		}
	} else {
		sum = [sha256.Size]byte{}
	}
	if r.Method != http.MethodPost {
		return nil
	}
	if wait := s.limits.wait(sum); wait > 0 {
		e := busy("too many requests; wait before the next")
		e.Retry = wait
		return e
	}
	return nil
}

// limiters bound the requests of each key.
type limiters struct {
	rate float64 // a second, 0 for no bound
	mu   sync.Mutex
	of   map[[sha256.Size]byte]*rate.Limiter // of keys that are known, so no more than are configured
}

// wait takes a request into account, and returns how long it should have waited.
func (l *limiters) wait(key [sha256.Size]byte) time.Duration {
	if l.rate <= 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[[sha256.Size]byte]*rate.Limiter{}
	}
	if l.of[key] == nil {
		l.of[key] = rate.NewLimiter(rate.Limit(l.rate), max(1, int(2*l.rate)))
	}
	r := l.of[key].Reserve()
	if d := r.Delay(); d > 0 {
		r.Cancel()
		return d
	}
	return 0
}

// requestID is the id of a request: the client's if that is harmless, else a new one.
func requestID(given string) string {
	if given != "" && len(given) <= 64 && !strings.ContainsFunc(given, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("-_.:", r)
	}) {
		return given
	}
	return newID("req_")
}

// log writes a line about a request.
func (s *Server) log(r *http.Request, i *info, took time.Duration) {
	level := zerolog.InfoLevel
	if i.status >= 500 && i.status != http.StatusNotImplemented && i.status != http.StatusServiceUnavailable {
		level = zerolog.ErrorLevel
	}
	ev := s.cfg.Log.WithLevel(level).Str("id", i.id).Str("method", r.Method).Str("route", i.route).Int("status", i.status).Float64("ms", float64(took)/1e6)
	if i.prompt > 0 {
		ev = ev.Int("prompt_tokens", i.prompt).Int("cached_tokens", i.cached).Int("completion_tokens", i.tokens)
	}
	if i.text != "" {
		ev = ev.Str("prompt", i.text)
	}
	if i.err != nil {
		ev = ev.Str("error", i.err.Error())
		if e := asError(i.err); e.cause != nil {
			ev = ev.Str("cause", e.cause.Error())
		}
	}
	ev.Msg("request")
}

// quote quotes the beginning of a text from outside.
func quote(s string) string {
	if len(s) > 80 {
		s = s[:80]
		for !utf8.ValidString(s) && len(s) > 76 {
			s = s[:len(s)-1]
		}
		s += "…"
	}
	return fmt.Sprintf("%q", s)
}

// plural is a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// trimmed is a number with at most one digit after the point.
func trimmed(x float64) string { return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0") }
