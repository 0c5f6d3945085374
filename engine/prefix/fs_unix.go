//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package prefix

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// noFollow makes opening a link an error, and opening a pipe return at once.
const noFollow = unix.O_NOFOLLOW | unix.O_NONBLOCK

// lock locks a file until it is closed or the process ends, in whatever way. A file system without locks does without.
func lock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// abandoned reports whether nobody holds the lock of a file.
func abandoned(_ fs.FileInfo, name string) bool {
	f, err := os.OpenFile(name, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
