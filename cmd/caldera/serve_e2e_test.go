package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/vk"
)

// servedEnv makes the test binary the command, whose loading can be made to stand still: the variable is a stall as JSON.
// The command itself knows of no such thing.
const servedEnv = "SERVED_BY_TEST"

// A stall is where loading stands still.
type stall struct {
	Stage   string        // empty for nowhere
	Share   float64       // of the stage, from which on it does
	Release string        // a file; when it is there, loading goes on
	After   time.Duration // in place of stallAfter
	Lose    int           // the device is lost at this submission after loading, each time it is opened; 0 for never
}

// servedMain is main with a stall.
func servedMain(text string) int {
	os.Unsetenv(servedEnv)
	var x stall
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		panic(err)
	}
	a := newApp(os.Stdin, os.Stdout, os.Stderr)
	if x.After > 0 {
		a.stallAfter = x.After
	}
	a.atStage = func(stage string, done, total int64) {
		if stage != x.Stage || float64(done) < x.Share*float64(total) {
			return
		}
		x.Stage = ""
		a.log.Info().Int64("done", done).Int64("total", total).Msg("the test holds loading")
		for {
			if _, err := os.Stat(x.Release); err == nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	if x.Lose > 0 {
		a.opened = func(e *engine.Engine) { e.InjectFault("vkQueueSubmit", x.Lose, vk.ErrorDeviceLost) }
	}
	return a.execute(withSignals(context.Background()), os.Args[1:])
}

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// served is a server in a process of its own.
type served struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	http *http.Client
	done chan struct{} // closed when the process has ended

	mu    sync.Mutex
	more  *sync.Cond
	lines []string // of stderr
	ended bool     // stderr
}

// startServer runs serve on the reference backend, on a free port, unless args say otherwise.
func startServer(t *testing.T, x stall, env []string, args ...string) *served {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("no signals")
	}
	hook, _ := json.Marshal(x)
	s := &served{t: t, http: &http.Client{Transport: &http.Transport{}}, done: make(chan struct{})}
	s.more = sync.NewCond(&s.mu)
	s.cmd = exec.Command(os.Args[0], append([]string{"serve", "--port", "0", "--backend", "reference"}, args...)...)
	s.cmd.Dir = t.TempDir()
	s.cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+s.cmd.Dir, "CALDERA_API_KEY=", servedEnv+"="+string(hook))
	s.cmd.Env = append(s.cmd.Env, env...)
	r, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for sc := bufio.NewScanner(r); sc.Scan(); {
			s.mu.Lock()
			s.lines = append(s.lines, sc.Text())
			s.more.Broadcast()
			s.mu.Unlock()
		}
		_ = s.cmd.Wait()
		s.mu.Lock()
		s.ended = true
		s.more.Broadcast()
		s.mu.Unlock()
		close(s.done)
	}()
	t.Cleanup(func() {
		if t.Failed() { // the runtime tells where everybody is
			_ = s.cmd.Process.Signal(syscall.SIGQUIT)
			select {
			case <-s.done:
			case <-time.After(3 * time.Second):
			}
		}
		_ = s.cmd.Process.Kill()
		<-s.done
		s.http.CloseIdleConnections()
		if t.Failed() {
			t.Logf("stderr of the server:\n%s", s.stderr())
		}
	})
	return s
}

func (s *served) stderr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

// logged waits for a line of the log with a message, and of a stage if one is given, and returns it.
func (s *served) logged(message string, stage ...string) map[string]any {
	s.t.Helper()
	late := time.AfterFunc(patience, func() {
		s.mu.Lock()
		s.ended = true
		s.more.Broadcast()
		s.mu.Unlock()
	})
	defer late.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 0; ; i++ {
		for i == len(s.lines) && !s.ended {
			s.more.Wait()
		}
		if i == len(s.lines) {
			s.t.Fatalf("the log never says %q", message)
		}
		var x map[string]any
		if json.Unmarshal([]byte(s.lines[i]), &x) == nil && x["message"] == message && (stage == nil || x["stage"] == stage[0]) {
			return x
		}
	}
}

// listening waits until there is a URL.
func (s *served) listening() *served {
	s.t.Helper()
	s.url, _ = s.logged("listening")["url"].(string)
	return s
}

// ready waits until there is a model.
func (s *served) ready() *served {
	s.t.Helper()
	s.listening()
	s.logged("ready")
	return s
}

// call makes a request. Without a body it is a GET.
func (s *served) call(path, body string, header ...string) (int, string) {
	s.t.Helper()
	res, err := s.send(path, body, header...)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func (s *served) send(path, body string, header ...string) (*http.Response, error) {
	method := "GET"
	if body != "" {
		method = "POST"
	}
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return s.http.Do(r)
}

// question asks the demo something it knows.
const question = `{"messages":[{"role":"user","content":"What is 12+7?"}]}`

// ask checks that a question is answered.
func (s *served) ask(header ...string) {
	s.t.Helper()
	if status, body := s.call("/v1/chat/completions", question, header...); status != 200 || !strings.Contains(body, answer) {
		s.t.Errorf("the question is answered with %d, %s", status, body)
	}
}

// stream begins a long answer and returns its lines after the first.
func (s *served) stream(tokens int) *bufio.Scanner {
	s.t.Helper()
	res, err := s.send("/v1/completions", fmt.Sprintf(`{"prompt":"Once","max_tokens":%d,"ignore_eos":true,"stream":true}`, tokens))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { res.Body.Close() })
	sc := bufio.NewScanner(res.Body)
	if res.StatusCode != 200 || !sc.Scan() {
		s.t.Fatalf("status %d, %v", res.StatusCode, sc.Err())
	}
	return sc
}

// rest is what comes of a stream until its end.
func rest(t *testing.T, sc *bufio.Scanner) string {
	t.Helper()
	var b strings.Builder
	for sc.Scan() {
		b.WriteString(sc.Text() + "\n")
	}
	if sc.Err() != nil {
		t.Errorf("the stream breaks off: %v", sc.Err())
	}
	return b.String()
}

func (s *served) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// end waits for the end of the process, at most so long, and returns its exit code: -1 after a signal.
func (s *served) end(most time.Duration) int {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(most):
		s.t.Fatalf("the process still runs after %v", most)
	}
	return s.cmd.ProcessState.ExitCode()
}

// until waits for a condition.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for start := time.Now(); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// A server is there from the beginning, says what it does until it is ready, answers, and ends when it is told to.
func TestServe(t *testing.T) {
	release := filepath.Join(t.TempDir(), "release")
	s := startServer(t, stall{Stage: stageWarmUp, Release: release}, nil).listening()
	if !strings.HasPrefix(s.url, "http://127.0.0.1:") {
		t.Errorf("url %q", s.url)
	}
	s.logged("the test holds loading")
	if status, body := s.call("/health", ""); status != 503 || !strings.Contains(body, "the model is loading ("+stageWarmUp) {
		t.Errorf("while loading: %d, %s", status, body)
	}
	if status, body := s.call("/v1/chat/completions", question); status != 503 || !strings.Contains(body, "loading") {
		t.Errorf("a question while loading: %d, %s", status, body)
	}
	write(t, release, "")
	until(t, "the health is 200", func() bool { status, _ := s.call("/health", ""); return status == 200 })
	if x := s.logged("ready"); x["url"] != s.url || x["slots"] != float64(serveSlots) || x["model"] == "" || x["level"] != "info" {
		t.Errorf("%v", x)
	}
	for _, stage := range []string{stageFile, stageWarmUp} {
		if !strings.Contains(s.stderr(), stage) {
			t.Errorf("the log lacks the stage %s", stage)
		}
	}
	s.ask()
	for _, line := range strings.Split(s.stderr(), "\n") {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line of the log is no JSON: %s", line)
		}
	}
	s.signal(syscall.SIGTERM)
	if code := s.end(patience); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}

// What runs when the server is told to end is finished within the time of grace, and cut off with a word after it. Whoever
// cannot wait says so twice.
func TestServeGrace(t *testing.T) {
	const endless = 2000 // tokens: seconds, where a signal takes milliseconds
	for _, c := range []struct {
		name   string
		grace  string
		tokens int
		twice  bool
		code   int
		end    string // of the stream
	}{
		{"finishes", "60s", 30, false, exitDone, "data: [DONE]\n\n"},
		{"cut off", "1ms", endless, false, exitDone, ""},
		{"twice", "60s", endless, true, -1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startServer(t, stall{}, nil, "--grace", c.grace).ready()
			sc := s.stream(c.tokens)
			s.signal(syscall.SIGTERM)
			if c.twice {
				until(t, "the health tells of the first signal", func() bool {
					status, body := s.call("/health", "")
					return status == 503 && strings.Contains(body, "shutting down")
				})
				if status, body := s.call("/v1/chat/completions", question); status != 503 {
					t.Errorf("a question after the signal: %d, %s", status, body)
				}
				s.signal(syscall.SIGTERM)
				s.end(3 * time.Second)
				if !s.cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
					t.Errorf("exit code %d, want the signal", s.cmd.ProcessState.ExitCode())
				}
				return
			}
			text := rest(t, sc)
			if code := s.end(patience); code != c.code {
				t.Errorf("exit code %d", code)
			}
			if failed := strings.Contains(text, `data: {"error":{`) && strings.Contains(text, "shutting down"); failed != (c.end == "") || !strings.HasSuffix(text, c.end) {
				t.Errorf("the stream ends with %q", text[max(0, len(text)-300):])
			}
			if c.end == "" && strings.Contains(text, "[DONE]") {
				t.Error("an answer that was cut off looks complete")
			}
		})
	}
}

// llvmpipe returns flags for a device whose driver is quick to compile, or skips the test.
func llvmpipe(t *testing.T) []string {
	t.Helper()
	r := command(t, "", "devices", "--json")
	if r.code != exitDone {
		t.Skipf("no Vulkan device: %s", r.err)
	}
	for _, d := range decode[devicesResult](t, r).Devices {
		if strings.HasPrefix(d.Name, "llvmpipe") && d.Usable {
			return []string{"--backend", "vulkan", "--device", d.UUID}
		}
	}
	t.Skip("llvmpipe is not there")
	return nil
}

// c26.5: a server ends soon in whatever stage of loading it is told to, also while clients hold connections open on which they
// have said nothing; and what stands still has a name, in the log and in the health.
func TestCaseC26Stages(t *testing.T) {
	device := llvmpipe(t)
	for _, c := range []struct {
		stage string
		share float64
		args  []string
	}{
		{stageFile, 0, nil},
		{stageWeights, 0.5, append(device, "--residency", "copy")},
		{stagePipelines, 0.5, device},
		{stageWarmUp, 0, device},
	} {
		t.Run(c.stage, func(t *testing.T) {
			s := startServer(t, stall{Stage: c.stage, Share: c.share, After: 100 * time.Millisecond}, []string{"CALDERA_CACHE_DIR=off"}, c.args...).listening()
			at := s.logged("the test holds loading")
			if c.share > 0 && (at["done"].(float64) <= 0 || at["done"].(float64) >= at["total"].(float64)) {
				t.Errorf("held at %v of %v, not within the stage", at["done"], at["total"])
			}
			if x := s.logged("loading: no progress", c.stage); x["level"] != "warn" {
				t.Errorf("%v", x)
			}
			var body string
			until(t, "the health tells of the stall", func() bool {
				_, body = s.call("/health", "")
				return strings.Contains(body, "no progress for ")
			})
			if !strings.Contains(body, c.stage) {
				t.Errorf("the health is %s", body)
			}
			if c.stage == stageFile {
				conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			start := time.Now()
			s.signal(syscall.SIGTERM)
			if code := s.end(3 * time.Second); code != exitDone {
				t.Errorf("exit code %d", code)
			}
			t.Logf("ended after %v", time.Since(start).Round(time.Millisecond))
		})
	}
}

// A device that is lost once is opened again; lost twice within minutes it ends the process, with the exit code of that, once
// its stream has been told. The log names the ops that were under way.
func TestServeLost(t *testing.T) {
	s := startServer(t, stall{Lose: 12}, nil, llvmpipe(t)...).ready()
	for i := range 2 {
		text := rest(t, s.stream(200))
		if !strings.Contains(text, `data: {"error":{`) || !strings.Contains(text, "the device was lost") || strings.Contains(text, "[DONE]") {
			t.Errorf("stream %d ends with %q", i, text[max(0, len(text)-300):])
		}
		if i == 0 {
			until(t, "the model is there again", func() bool { status, _ := s.call("/health", ""); return status == 200 })
		}
	}
	if code := s.end(patience); code != exitLost {
		t.Errorf("exit code %d", code)
	}
	x := s.logged("the model cannot go on and is opened again")
	if why := fmt.Sprint(x["error"]); !strings.Contains(why, "VK_ERROR_DEVICE_LOST") || !strings.Contains(why, "from layer -1 token_embd") {
		t.Errorf("the log says %q", why)
	}
	if lines := strings.Split(s.stderr(), "\n"); !strings.Contains(lines[len(lines)-1], "for the 2. time within 10m0s") {
		t.Errorf("the last line is %q", lines[len(lines)-1])
	}
}

// c26.1 to 3: what was compiled is kept once the server is ready, even if it is killed, and is used by the next; a file that is
// damaged is put aside.
func TestCaseC26Cache(t *testing.T) {
	device := llvmpipe(t)
	dir := t.TempDir()
	var env []string
	if os.Getenv("CALDERA_LONG") == "1" { // else the driver's own cache may know everything: compiling takes long
		env = append(env, "MESA_SHADER_CACHE_DIR="+t.TempDir())
	}
	// Some drivers compile when they make a pipeline and some when they first run it: the time is that of both.
	start := func() (compiling time.Duration) {
		s := startServer(t, stall{}, append(env, "CALDERA_CACHE_DIR="+dir), device...).ready()
		begin, _ := s.logged("loading", stagePipelines)["after_s"].(float64)
		end, _ := s.logged("ready")["after_s"].(float64)
		s.ask()
		s.signal(syscall.SIGKILL)
		s.end(patience)
		return time.Duration((end - begin) * float64(time.Second)).Round(time.Millisecond)
	}
	read := func() (string, []byte) {
		files, _ := filepath.Glob(filepath.Join(dir, "*.bin"))
		if len(files) != 1 {
			t.Fatalf("the cache folder has %v", files)
		}
		b, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		return files[0], b
	}
	first := start()
	path, good := read()
	second := start()
	bad := bytes.Clone(good)
	for i := range 16 {
		bad[len(bad)-1-i*(len(bad)-1)/16] ^= 0xff
	}
	write(t, path, string(bad))
	third := start()
	if _, now := read(); bytes.Equal(now, bad) {
		t.Error("the damaged cache is still there")
	}
	t.Logf("compiling: start 1 in %v, start 2 in %v (%.0f %%), after damage in %v; the cache has %d bytes", first, second, 100*second.Seconds()/first.Seconds(), third, len(good))
}

// certificate writes a certificate of its own for this machine, and its key, and returns it.
func certificate(t *testing.T, serial int64, cert, key string) *x509.Certificate {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	x := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "caldera test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, x, x, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	write(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	if x, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return x
}

// With a certificate the server speaks HTTPS and HTTP/2, and takes another one without a restart, unless that is broken.
func TestServeTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool := x509.NewCertPool()
	pool.AddCert(certificate(t, 1, cert, key))
	s := startServer(t, stall{}, nil, "--tls-cert", cert, "--tls-key", key)
	s.http.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	s.ready()
	if !strings.HasPrefix(s.url, "https://127.0.0.1:") {
		t.Fatalf("url %q", s.url)
	}
	serial := func() int64 {
		t.Helper()
		s.http.CloseIdleConnections()
		res, err := s.send("/health", "")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.ProtoMajor != 2 || res.StatusCode != 200 {
			t.Errorf("%s, status %d", res.Proto, res.StatusCode)
		}
		return res.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	if n := serial(); n != 1 {
		t.Errorf("certificate %d", n)
	}
	s.ask()
	if text := rest(t, s.stream(3)); !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("a stream ends with %q", text)
	}
	pool.AddCert(certificate(t, 2, cert, key))
	s.signal(syscall.SIGHUP)
	s.logged("the certificate was read again")
	if n := serial(); n != 2 {
		t.Errorf("certificate %d after another came", n)
	}
	write(t, cert, "broken")
	s.signal(syscall.SIGHUP)
	if x := s.logged("the old certificate stays"); !strings.Contains(fmt.Sprint(x["error"]), cert) {
		t.Errorf("%v", x)
	}
	if n := serial(); n != 2 {
		t.Errorf("certificate %d after a broken one came", n)
	}
	s.signal(syscall.SIGTERM)
	if code := s.end(patience); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}

// The socket of a server that was killed is taken over, and that of one that lives is not.
func TestServeUnixSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	begin := func() *served {
		s := startServer(t, stall{}, nil, "--host", "unix:"+path)
		s.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
		return s
	}
	first := begin().ready()
	if first.url != "unix:"+path {
		t.Errorf("url %q", first.url)
	}
	first.url = "http://localhost"
	first.ask()
	second := begin()
	if code := second.end(patience); code != exitFailed || !strings.Contains(second.stderr(), "another server listens there") || strings.Count(second.stderr(), "\n") != 0 {
		t.Errorf("code %d: %s", code, second.stderr())
	}
	first.signal(syscall.SIGKILL)
	first.end(patience)
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("a killed server leaves no socket: %v", err)
	}
	third := begin().ready()
	third.url = "http://localhost"
	third.ask()
	third.signal(syscall.SIGTERM)
	if code := third.end(patience); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is still there")
	}
}

// Keys of either source open the server, and nothing else does; the log, talkative as it may be, has none of them.
func TestServeKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	write(t, file, "file-secret-1, file-secret-2\nfile-secret-3\n")
	s := startServer(t, stall{}, []string{"CALDERA_API_KEY=environment-secret"}, "--api-key-file", file, "--log-level", "trace", "--log-prompts").ready()
	for _, key := range []string{"environment-secret", "file-secret-1", "file-secret-2", "file-secret-3"} {
		if status, body := s.call("/v1/models", "", "Authorization", "Bearer "+key); status != 200 {
			t.Errorf("with %s: %d, %s", key, status, body)
		}
	}
	s.ask("Authorization", "Bearer file-secret-2")
	for _, key := range []string{"", "Bearer ", "Bearer file-secret", "Bearer wrong-secret", "Bearer file-secret-1, file-secret-2"} {
		if status, body := s.call("/v1/models", "", "Authorization", key); status != 401 || strings.Contains(body, "secret") {
			t.Errorf("with %q: %d, %s", key, status, body)
		}
	}
	s.signal(syscall.SIGTERM)
	if code := s.end(patience); code != exitDone || strings.Contains(s.stderr(), "secret") {
		t.Errorf("exit code %d", code)
	}
}

// A server that other machines reach without a key says so.
func TestServeOpenWarning(t *testing.T) {
	const warning = "other machines can use this server without an API key"
	for _, c := range []struct {
		host, key string
		warns     bool
	}{{"0.0.0.0", "", true}, {"0.0.0.0", "environment-secret", false}, {"127.0.0.1", "", false}} {
		s := startServer(t, stall{Stage: stageFile}, []string{"CALDERA_API_KEY=" + c.key}, "--host", c.host).listening()
		s.signal(syscall.SIGTERM)
		if code := s.end(patience); code != exitDone {
			t.Errorf("exit code %d", code)
		}
		if strings.Contains(s.stderr(), warning) != c.warns {
			t.Errorf("%s with key %q: %s", c.host, c.key, s.stderr())
		}
	}
}
