//go:build unix

package mapping

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// mapped tells that bytes are the file's own and not a copy.
const mapped = true

// mapFile maps the first size bytes of f, size > 0.
func mapFile(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
}

// stat is f's size and time of modification. It is called between any two tokens, and File.Stat takes half as long again and allocates.
func stat(f *os.File) (int64, time.Time, error) {
	var s unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &s)
	runtime.KeepAlive(f)
	return s.Size, time.Unix(s.Mtim.Unix()), err
}

func unmap(data []byte) error { return unix.Munmap(data) }

// WillNeed asks the system to begin reading the pages of mem, which lies in a mapping, from the disk. It does not
// wait, and failing is no loss.
func WillNeed(mem []byte) {
	if mem = wholePages(mem); mem != nil {
		_ = unix.Madvise(mem, unix.MADV_WILLNEED)
	}
}

func forget(pages []byte) { _ = unix.Madvise(pages, unix.MADV_DONTNEED) }
