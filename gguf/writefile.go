package gguf

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// WriteFile writes the file at path, whole or not at all: the bytes go to a
// temporary file beside it, reach the disk, and only then take its name. A file
// of that name is replaced; a mapping of the old one stays as it was.
func (w *Writer) WriteFile(path string) error { return writeFile(path, w.write, os.Rename) }

// WriteNew is WriteFile for a name that must be free, also once the bytes are there: an [fs.ErrExist] leaves
// alone what has it.
func (w *Writer) WriteNew(path string) error { return writeFile(path, w.write, nameNew) }

func (w *Writer) write(out *os.File) error {
	_, err := w.WriteTo(out)
	return err
}

// nameNew renames a file unless the new name is taken. A second name and the removal of the first do so in
// one step; where there are no second names, there is a moment between looking and renaming.
func nameNew(old, path string) error {
	err := os.Link(old, path)
	if err == nil {
		return os.Remove(old)
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: it appeared in the meantime", fs.ErrExist)
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%w: it appeared in the meantime", fs.ErrExist)
	}
	return os.Rename(old, path)
}

func writeFile(path string, write func(*os.File) error, rename func(old, path string) error) (err error) {
	// Not os.CreateTemp, whose files are readable by their owner only: this
	// one keeps the permissions that the user's umask gives.
	dir, base := filepath.Split(path)
	temp := filepath.Join(dir, fmt.Sprintf(".%s.%016x.tmp", base, rand.Uint64()))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close() // a second Close does no harm
			os.Remove(temp)
			err = fmt.Errorf("%s was not written: %w", path, err)
		}
	}()
	if err = write(f); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = rename(temp, path); err != nil {
		return err
	}
	// The new name must reach the disk too. Not every file system can sync a
	// directory, and the file is complete without.
	if d, derr := os.Open(filepath.Dir(path)); derr == nil {
		d.Sync()
		d.Close()
	}
	return nil
}
