package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
)

// What makes no sense is said in one line before anything is loaded or a port opened.
func TestServeUsage(t *testing.T) {
	dir := t.TempDir()
	empty, commas, short, pem := filepath.Join(dir, "empty"), filepath.Join(dir, "commas"), filepath.Join(dir, "short"), filepath.Join(dir, "x.pem")
	write(t, empty, "\n\n")
	write(t, commas, " , ,\n")
	write(t, short, "secret\n")
	write(t, pem, "no certificate")
	for _, c := range []struct{ args, key, want string }{
		{"--port 99999", "", "--port is 99999; use 1 to 65535"},
		{"--port -1", "", "--port is -1"},
		{"--tls-cert x.pem", "", "--tls-cert and --tls-key go together"},
		{"--tls-key x.pem", "", "--tls-cert and --tls-key go together"},
		{"--tls-cert " + pem + " --tls-key " + pem, "", "TLS certificate " + pem},
		{"--api-key-file " + empty, "", empty + " has no key"},
		{"--api-key-file " + commas, "", commas + " has no key"}, // with no key at all the server would be open
		{"", ",", "CALDERA_API_KEY is set and has no key"},
		{"", "secret", "at least 8 characters"},
		{"--api-key-file " + short, "", "at least 8 characters"},
		{"--api-key-file " + filepath.Join(dir, "nosuch"), "", "nosuch"},
		{"--metrics-compat vllm,tgi", "", `there is no "tgi"; use vllm or llamacpp`},
		{"--grace 30", "", "with its unit"},
		{"--max-body 16", "", "without a unit"},
		{"--key-rate -1", "", "--key-rate"},
		{"--slots 65", "", "--slots is 65; use at most 64"},
		{"--temp 5", "", "temperature is 5"},
		{"--reasoning-format deepseek", "", "use auto, none"},
		{"model.gguf", "", "takes no argument"},
	} {
		t.Setenv("CALDERA_API_KEY", c.key)
		isolate(t)
		// A server that starts all the same would serve until its time is over.
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		var out, errw bytes.Buffer
		code := execute(ctx, append([]string{"serve", "--backend", "reference", "--port", "0"}, strings.Fields(c.args)...), nil, &out, &errw)
		cancel()
		r := result{code, out.String(), errw.String()}
		if r.code != exitUsage || r.out != "" || strings.Count(r.err, "\n") != 1 || !strings.HasPrefix(r.err, "caldera: ") || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: %+v, want %q", c.args, r, c.want)
		}
		if strings.Contains(r.err, "secret") {
			t.Errorf("%s: a key is shown: %s", c.args, r.err)
		}
	}
	t.Setenv("CALDERA_API_KEY", "")
	if r := command(t, "", "serve", "-m", filepath.Join(dir, "nosuch.gguf"), "--port", "0"); r.code != exitModel || strings.Count(r.err, "\n") != 1 {
		t.Errorf("no model: %+v", r)
	}
}

// Keys are no setting: they are shown nowhere.
func TestServeKeysAreNoSetting(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	write(t, file, "secret-of-the-file\n")
	t.Setenv("CALDERA_API_KEY", "secret-of-the-environment")
	t.Setenv("CALDERA_SERVE_API_KEY_FILE", file)
	for _, args := range [][]string{{"config", "show"}, {"config", "show", "--json"}} {
		if r := command(t, "", args...); strings.Contains(r.out+r.err, "secret") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
