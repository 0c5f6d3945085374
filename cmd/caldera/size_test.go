package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"": 0, "0": 0, "0M": 0, "268435456": 268435456, "256M": 256 << 20, "256MiB": 256 << 20, "256mib": 256 << 20, " 1.5G ": 3 << 29,
		"1.5 GiB": 3 << 29, "0.5g": 1 << 29, "2048K": 2 << 20, "2048KiB": 2 << 20, "1T": 1 << 40, "1048576B": 1 << 20, "1048576": 1 << 20, "1024T": 1 << 50,
	} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"8192": "without a unit", "1048575": "without a unit", "0.0001K": "less than 1 MiB", "4GB": "is not clear", "1MB": "is not clear",
		"x": "no size", "-1": "no size", "-5G": "no size", "1..5G": "no size", "G": "no size", ".": "no size", "1e9": "no size", "5P": "no size",
		"NaN": "no size", "Inf": "no size", "1025T": "more than", "99999999999999999999999": "more than", "1_000M": "no size", "0x10M": "no size",
	} {
		if got, err := parseSize(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d, %v, want an error with %q", in, got, err, want)
		}
	}
}

// Every size that is printed in full can be read back.
func TestParseSizeOfFormat(t *testing.T) {
	for _, n := range []int64{1 << 20, 3 << 29, 7 << 30, 1 << 40} {
		if got, err := parseSize(size(n)); err != nil || got != n {
			t.Errorf("%s is read as %d, %v", size(n), got, err)
		}
	}
}

func TestParseFolderSize(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	tests := []struct {
		in, dir string
		bytes   int64
		err     string
	}{
		{in: ""}, {in: "0"}, {in: "/a:0"},
		{in: "/var/cache:10G", dir: "/var/cache", bytes: 10 << 30},
		{in: "cache:256M", dir: "cache", bytes: 256 << 20},
		{in: `/with:colon:1G`, dir: "/with:colon", bytes: 1 << 30},
		{in: "~/c:1G", dir: filepath.Join(home, "c"), bytes: 1 << 30},
		{in: "~c:1G", dir: "~c", bytes: 1 << 30},
		{in: "10G", err: "lacks a folder or a size"},
		{in: ":10G", err: "lacks a folder or a size"},
		{in: "/a:", err: "lacks a folder or a size"},
		{in: "/a", err: "lacks a folder or a size"},
		{in: "/a:b", err: "after the last colon"},
		{in: "/a:10", err: "after the last colon"},
		{in: "/a:1G:b", err: "after the last colon"},
	}
	for _, tt := range tests {
		dir, n, err := parseFolderSize(tt.in)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: %v, want %q", tt.in, err, tt.err)
			}
		} else if err != nil || dir != tt.dir || n != tt.bytes {
			t.Errorf("%q: %q, %d, %v, want %q, %d", tt.in, dir, n, err, tt.dir, tt.bytes)
		}
	}
}

func TestParseLatency(t *testing.T) {
	for in, want := range map[string]time.Duration{"0": 0, "200ms": 200 * time.Millisecond, "1.5s": 1500 * time.Millisecond, " 1s ": time.Second} {
		if got, err := parseLatency(in); err != nil || got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "200", "fast", "-1s", "1e400s"} {
		if got, err := parseLatency(in); err == nil {
			t.Errorf("%q: %v", in, got)
		}
	}
}

// Settings that are text arrive in the engine's configuration from wherever they come, and mistakes name their source.
func TestEngineSettings(t *testing.T) {
	isolate(t)
	home := t.TempDir()
	write(t, "caldera.yaml", "memory-limit: 268435456\ncache-ram: 64M\ncache-every: 0\nkv: q4_0\nkv-sink: 0\n")
	t.Setenv("CALDERA_CACHE_DISK", home+":1.5G")
	var errw strings.Builder
	a := newApp(nil, &strings.Builder{}, &errw)
	root := a.rootCommand()
	root.SetArgs([]string{"run", "--kv-window", "100", "--slots", "3"})
	cmd, args, err := root.Find([]string{"run"})
	if err != nil || len(args) > 0 {
		t.Fatal(err, args)
	}
	if err := cmd.ParseFlags([]string{"--kv-window", "100", "--slots", "3"}); err != nil {
		t.Fatal(err)
	}
	if err := a.configure(cmd); err != nil {
		t.Fatal(err)
	}
	c := a.engineConfig(0)
	a.addCache(&c, false)
	if c.MemoryLimit != 256<<20 || c.CacheRAM != 64<<20 || c.CacheEvery != -1 || c.KV != "q4_0" || c.KVSink != 0 || c.KVWindow != 100 ||
		c.CacheDir != home || c.CacheDisk != 3<<29 || a.cfg.Slots != 3 {
		t.Errorf("%+v", c)
	}
	for source, want := range map[string]string{
		"file": "memory-limit in caldera.yaml: ", "env": "CALDERA_CACHE_RAM: ", "flag": "--cache-disk: ",
	} {
		isolate(t)
		args := []string{"run", "hello"}
		switch source {
		case "file":
			write(t, "caldera.yaml", "memory-limit: much\n")
		case "env":
			t.Setenv("CALDERA_CACHE_RAM", "4GB")
		case "flag":
			args = append(args, "--cache-disk", "10G")
		}
		errw.Reset()
		if code := execute(t.Context(), args, nil, &errw, &errw); code != exitUsage || !strings.HasPrefix(errw.String(), "caldera: "+want) {
			t.Errorf("%s: code %d, %s", source, code, errw.String())
		}
	}
}

// Unless told, a single prompt has no prefix cache and many requests have one that leaves room.
func TestAutoCache(t *testing.T) {
	isolate(t)
	a := newApp(nil, nil, nil)
	a.cfg.CacheRAM, a.cfg.MemoryLimit, a.cfg.CacheEvery = autoSize, "400M", 512
	c := a.engineConfig(0)
	if a.addCache(&c, false); c.CacheRAM != 0 || c.CacheEvery != 512 {
		t.Errorf("a single prompt: %d", c.CacheRAM)
	}
	if a.addCache(&c, true); c.CacheRAM > 100<<20 || c.CacheRAM == 0 {
		t.Errorf("many: %d of a limit of 400 MiB", c.CacheRAM)
	}
	a.cfg.Queue, a.cfg.MaxLatency = 3, "250ms"
	if c := a.parallelConfig(); c.CacheRAM == 0 || c.Slots != 16 || c.Queue != 19 || c.MaxLatency != 250*time.Millisecond {
		t.Errorf("with --parallel: %+v", c)
	}
	a.cfg.CacheRAM = "0"
	c.CacheRAM = 0
	if a.addCache(&c, true); c.CacheRAM != 0 {
		t.Errorf("off: %d", c.CacheRAM)
	}
}

func TestParseBudget(t *testing.T) {
	for s, want := range map[string]time.Duration{"auto": 0, "0": -1, "0s": -1, "200ms": 200 * time.Millisecond, " 1s ": time.Second} {
		if d, err := parseBudget(s); err != nil || d != want {
			t.Errorf("%q: %v, %v", s, d, err)
		}
	}
	for _, s := range []string{"", "12", "-1s", "soon"} {
		if err := checkBudget(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}
