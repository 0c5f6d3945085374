package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// machine is what the measurements were made on.
type machine struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel,omitempty"`
	CPU    string `json:"cpu,omitempty"`
	CPUs   int    `json:"cpus"`
	Memory string `json:"memory,omitempty"`
	// NVIDIA is what nvidia-smi says, a line a GPU, where there is one.
	NVIDIA []string `json:"nvidia,omitempty"`
}

func thisMachine(ctx context.Context) machine {
	return machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(),
		Kernel: first(lines(ctx, "uname", "-r")),
		CPU:    field("/proc/cpuinfo", "model name"),
		Memory: field("/proc/meminfo", "MemTotal"),
		NVIDIA: lines(ctx, "nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit", "--format=csv,noheader"),
	}
}

// lines returns the lines that a program prints, nil when it fails or is not there.
func lines(ctx context.Context, name string, args ...string) []string {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	b, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

func first(of []string) string {
	if len(of) == 0 {
		return ""
	}
	return of[0]
}

// field returns the value of the first line "key : value" of a file, empty when there is none.
func field(path, key string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
