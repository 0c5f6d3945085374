package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// show runs config show with some more flags of run, through a command that has them.
func show(t *testing.T, args ...string) map[string]configValue {
	t.Helper()
	var r configResult
	res := result{}
	var out, errw strings.Builder
	res.code = execute(t.Context(), append([]string{"config", "show", "--json"}, args...), nil, &out, &errw)
	if res.code != exitDone {
		t.Fatalf("config show: code %d, %s", res.code, errw.String())
	}
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		t.Fatal(err)
	}
	if r.Schema != "caldera.config/1" {
		t.Errorf("schema %q", r.Schema)
	}
	m := map[string]configValue{}
	for _, v := range r.Settings {
		m[v.Key] = v
	}
	return m
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// A flag beats the environment, that beats the file, and that beats the default.
func TestConfigOrder(t *testing.T) {
	isolate(t)
	check := func(want any, source string, args ...string) {
		t.Helper()
		if v := show(t, args...)["log-level"]; v.Value != want || v.Source != source {
			t.Errorf("log-level is %v from %s, want %v from %s", v.Value, v.Source, want, source)
		}
	}
	check("warn", "default")
	dir, err := os.UserConfigDir()
	if err != nil {
		t.Skip(err)
	}
	write(t, filepath.Join(dir, "caldera", "caldera.yaml"), "log-level: trace\n")
	check("trace", "file")
	write(t, "caldera.yaml", "log-level: debug\nrun:\n  predict: 7\ndevice: 0\nbench:\n  n-prompt: [64, 128]\n")
	check("debug", "file")
	if v := show(t)["run.predict"]; v.Value != 7.0 || v.Source != "file" || v.Env != "CALDERA_RUN_PREDICT" {
		t.Errorf("run.predict: %+v", v)
	}
	write(t, "other.toml", "log-level = \"info\"\n")
	check("info", "file", "--config", "other.toml")
	t.Setenv("CALDERA_CONFIG", "other.toml")
	check("info", "file")
	t.Setenv("CALDERA_LOG_LEVEL", "error")
	check("error", "env")
	check("disabled", "flag", "--log-level", "disabled")
}

// What a file or the environment says wrongly is wrong usage, with a hint.
func TestConfigErrors(t *testing.T) {
	tests := []struct {
		name, file, env, want string
	}{
		{"mistyped key", "modle: x\n", "", `did you mean "model"?`},
		{"unknown key", "zzyzx: x\n", "", "caldera config show"},
		{"unknown in a section", "run:\n  predictt: 1\n", "", `did you mean "run.predict"?`},
		{"a value for a section", "run: 5\n", "", `unknown setting "run"`},
		{"a section for a value", "model:\n  path: x\n", "", `unknown setting "model.path"`},
		{"no number", "batch: many\n", "", "batch"},
		{"no choice", "kv: q3\n", "", "kv in caldera.yaml is \"q3\""},
		{"no YAML", "a: [", "", "caldera.yaml"},
		{"environment", "", "CALDERA_BATCH=many", "batch"},
		{"environment choice", "", "CALDERA_KV=q3", "CALDERA_KV is \"q3\""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			isolate(t)
			if tt.file != "" {
				write(t, "caldera.yaml", tt.file)
			}
			if name, value, ok := strings.Cut(tt.env, "="); ok {
				t.Setenv(name, value)
			}
			var out, errw strings.Builder
			code := execute(t.Context(), []string{"config", "show"}, nil, &out, &errw)
			if code != exitUsage || !strings.Contains(errw.String(), tt.want) || strings.Count(errw.String(), "\n") != 1 {
				t.Errorf("code %d, stderr %q, want %q", code, errw.String(), tt.want)
			}
		})
	}
}

// The table and the struct name the same settings.
func TestConfigFields(t *testing.T) {
	fields := map[string]bool{}
	var walk func(typ reflect.Type, prefix string)
	walk = func(typ reflect.Type, prefix string) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			key := prefix + f.Tag.Get("mapstructure")
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, key+".")
				continue
			}
			fields[key] = true
		}
	}
	walk(reflect.TypeFor[Config](), "")
	for _, s := range table {
		if !fields[s.key] {
			t.Errorf("setting %s has no field", s.key)
		}
		delete(fields, s.key)
		if s.usage == "" {
			t.Errorf("setting %s has no description", s.key)
		}
	}
	for key := range fields {
		t.Errorf("field %s has no setting", key)
	}
}

// A configuration file that has no end, or is none, is refused and not read.
func TestConfigFileIsNone(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big.yaml")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 3<<30); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "folder.yaml")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	cases := map[string]string{big: "bytes", folder: "no regular file"}
	endless := filepath.Join(dir, "endless.yaml")
	if err := os.Symlink("/dev/zero", endless); err == nil { // else there is no right to make links
		cases[endless] = "no regular file"
	}
	for path, want := range cases {
		err := readable(path)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := readable(filepath.Join(dir, "none.yaml")); err != nil {
		t.Errorf("a file that does not exist: %v", err)
	}
}

// A variable that looks like a misspelt setting is spoken of; one that is read elsewhere, or is nothing of ours, is not.
func TestStrangeVariables(t *testing.T) {
	got := strangeVariables([]string{"CALDERA_SERVE_PROT=1", "CALDERA_SERVE_PORT=1", "CALDERA_API_KEY=k", "CALDERA_CONFIG=x", "PATH=/bin", "CALDERA_SOMETHING_ELSE=1"})
	if len(got) != 1 || !strings.Contains(got[0], "CALDERA_SERVE_PROT") || !strings.Contains(got[0], "CALDERA_SERVE_PORT?") {
		t.Errorf("%q", got)
	}
}
