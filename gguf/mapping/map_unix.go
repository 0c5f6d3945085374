//go:build unix

package mapping

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapped tells that bytes are the file's own and not a copy.
const mapped = true

// mapFile maps the first size bytes of f, size > 0.
func mapFile(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
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
