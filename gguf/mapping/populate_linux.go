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
	return inContainer(memory(info, "MemAvailable:"))
}

// Total returns the bytes of memory that Available is a part of, or -1 when it cannot tell.
func Total() int64 {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return -1
	}
	return inContainer(memory(info, "MemTotal:"))
}

// inContainer bounds n, if it is known, by the container's limit.
func inContainer(n int64) int64 {
	if limit, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil && n >= 0 {
		if most, err := strconv.ParseInt(string(bytes.TrimSpace(limit)), 10, 64); err == nil {
			return min(n, most)
		}
	}
	return n
}

// memory finds a value, in kB, in the text of /proc/meminfo.
func memory(meminfo []byte, name string) int64 {
	for line := range bytes.Lines(meminfo) {
		rest, ok := bytes.CutPrefix(line, []byte(name))
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
