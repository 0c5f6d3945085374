package prefix

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// maxFiles bounds how many names of a folder are looked at.
const maxFiles = 1 << 16

// An FS is what the cache does with files. The cache uses it from several goroutines.
type FS interface {
	MkdirAll(dir string) error
	// List describes what is in a folder, at most maxFiles of it.
	List(dir string) ([]fs.FileInfo, error)
	// Open opens a regular file to read. It follows no link.
	Open(name string) (File, error)
	// Create makes a file that must not exist, and locks it as long as it is open.
	Create(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// SyncDir makes the names in a folder durable.
	SyncDir(dir string) error
	// Touch sets a file's time to now.
	Touch(name string) error
	// Abandoned reports whether a file that somebody created is not open any more.
	Abandoned(info fs.FileInfo, name string) bool
}

// A File is an open file.
type File interface {
	io.Reader
	io.Writer
	io.Closer
	Sync() error
	Stat() (fs.FileInfo, error)
}

// osFS is the operating system's files.
type osFS struct{}

func (osFS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o700) }

func (osFS) List(dir string) ([]fs.FileInfo, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(maxFiles)
	if err != nil && err != io.EOF {
		return nil, err
	}
	var infos []fs.FileInfo
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

func (osFS) Open(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (osFS) Create(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	lock(f)
	return f, nil
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) SyncDir(dir string) error { return syncDir(dir) }

func (osFS) Touch(name string) error {
	now := time.Now()
	return os.Chtimes(name, now, now)
}

func (osFS) Abandoned(info fs.FileInfo, name string) bool { return abandoned(info, name) }
