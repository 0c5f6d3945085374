package quantize

import (
	"fmt"
	"path/filepath"
)

// checkSpace reports whether a file of so many bytes fits on the disk of path.
// A file that it replaces stays until it is complete, so that frees nothing.
func checkSpace(path string, size int64) error {
	dir := filepath.Dir(path)
	free, ok := freeBytes(dir)
	if ok && uint64(size) > free {
		return fmt.Errorf("%s needs %d bytes, but the disk of %s has %d free", path, size, dir, free)
	}
	return nil
}
