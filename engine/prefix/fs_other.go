//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package prefix

import (
	"io/fs"
	"os"
	"time"
)

const noFollow = 0

// lock does nothing: an open file cannot be deleted here, or there are no locks.
func lock(*os.File) {}

// abandoned takes a file that has not been written for an hour for one that nobody writes.
func abandoned(info fs.FileInfo, _ string) bool { return time.Since(info.ModTime()) > time.Hour }

// syncDir does nothing: folders cannot be synced.
func syncDir(string) error { return nil }
