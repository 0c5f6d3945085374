//go:build unix

package gguf

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapRead maps the first size bytes of f, size > 0, for reading only.
func mapRead(f *os.File, size int) ([]byte, func() error, error) {
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return data, func() error { return unix.Munmap(data) }, nil
}
