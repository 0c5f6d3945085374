package mapping

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// populate reads pages in (Linux 5.14 and later; an error before). Lost pages of a truncated file are an error and
// no signal.
func populate(pages []byte) error { return unix.Madvise(pages, unix.MADV_POPULATE_READ) }

// Available returns how many bytes of memory can be used before the system begins to swap or to give up cached
// files that are in use, or -1 when it cannot tell. In a container it is no more than the container's limit.
func Available() int64 {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return -1
	}
	n := available(info)
	if limit, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil && n >= 0 {
		if max, err := strconv.ParseInt(string(bytes.TrimSpace(limit)), 10, 64); err == nil {
			n = min(n, max)
		}
	}
	return n
}

// available finds MemAvailable, in kB, in the text of /proc/meminfo.
func available(meminfo []byte) int64 {
	for line := range bytes.Lines(meminfo) {
		rest, ok := bytes.CutPrefix(line, []byte("MemAvailable:"))
		if !ok {
			continue
		}
		f := bytes.Fields(rest)
		if len(f) != 2 || string(f[1]) != "kB" {
			return -1
		}
		n, err := strconv.ParseInt(string(f[0]), 10, 64)
		if err != nil || n < 0 || n > 1<<52 {
			return -1
		}
		return n << 10
	}
	return -1
}
