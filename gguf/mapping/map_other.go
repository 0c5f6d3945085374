//go:build !unix

package mapping

import (
	"io"
	"os"
	"time"
)

// mapped tells that bytes are a copy here, which no change of the file reaches.
const mapped = false

// mapFile reads the first size bytes of f: there is no mapping here.
func mapFile(f *os.File, size int) ([]byte, error) {
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	return data, nil
}

// stat is f's size and time of modification.
func stat(f *os.File) (int64, time.Time, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, time.Time{}, err
	}
	return info.Size(), info.ModTime(), nil
}

func unmap([]byte) error { return nil }

// WillNeed does nothing: the bytes are in memory.
func WillNeed([]byte) {}

func forget([]byte) {}
