//go:build !unix

package gguf

import (
	"io"
	"os"
)

// mapRead reads the first size bytes of f: there is no mapping here.
func mapRead(f *os.File, size int) ([]byte, func() error, error) {
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, nil, err
	}
	return data, func() error { return nil }, nil
}
