//go:build linux || darwin

package quantize

import "golang.org/x/sys/unix"

// freeBytes returns the bytes that a user may still write to the file system of
// a folder.
func freeBytes(dir string) (uint64, bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return s.Bavail * uint64(s.Bsize), true
}
