package gguf

import "os"

// WriteHole writes a file at path that has everything but the tensors' bytes: it is as long as it would be, and the
// data section is a hole, which takes no room on most file systems and reads as zeros. Like [Writer.WriteFile] it writes
// the file whole or not at all. The callbacks of [Writer.AddTensorFunc] are not called.
func (w *Writer) WriteHole(path string) error {
	header, _, err := w.header()
	if err != nil {
		return err
	}
	size, err := w.Size()
	if err != nil {
		return err
	}
	return writeFile(path, func(f *os.File) error {
		if _, err := f.Write(header); err != nil {
			return err
		}
		return f.Truncate(size)
	}, os.Rename)
}
