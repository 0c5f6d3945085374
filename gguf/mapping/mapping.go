// Package mapping maps model files for reading in such a way that a file which changes under the mapping is an
// error and not the end of the process.
//
// The operating system answers a read of a mapped page that the file no longer has, because it was truncated or
// its disk failed, with the signal SIGBUS, on whatever thread the read happened: Go code, a driver's worker, a
// copy inside the C library. Go cannot recover from it on threads that are not its own. So the package installs a
// handler for SIGBUS that knows the mapped ranges: it puts zeros where the bytes were lost and lets the reader go
// on, and the range is marked as damaged. Whoever computed with the bytes asks [Mapping.Check] before the
// result is used. Faults at any other address go to the handler that was there before, which is Go's.
//
// Without cgo there is no such handler: Check still finds files that were changed, but a read of lost pages is
// fatal, as in any other Go program.
package mapping

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"
)

// ErrChanged is in the chain of the error for a file that was changed since it was mapped.
var ErrChanged = errors.New("changed while in use")

// A Mapping is a file mapped for reading.
type Mapping struct {
	name   string
	file   *os.File // kept open: its metadata tell whether the bytes are still those that were mapped
	data   []byte
	size   int64
	time   time.Time // of the last modification
	guard  guard
	broken atomic.Pointer[error] // the first error of Check
}

// Open maps the regular file at path. An empty file has no bytes and needs no mapping.
func Open(path string) (_ *Mapping, err error) {
	// Look before opening: opening a pipe would wait for its writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	m := &Mapping{name: path, file: f}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	if m.size, m.time, err = stat(f); err != nil {
		return nil, err
	}
	if m.size == 0 {
		return m, nil
	}
	if m.size != int64(int(m.size)) {
		return nil, fmt.Errorf("%s: %d bytes are too many for this machine's address space", path, m.size)
	}
	if m.data, err = mapFile(f, int(m.size)); err != nil {
		return nil, fmt.Errorf("%s: map: %w", path, err)
	}
	if m.guard, err = watch(m.data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Bytes returns the file's bytes. Writing to them is a fault. They must not be used after Close.
func (m *Mapping) Bytes() []byte { return m.data }

// Pages returns the whole pages that hold the file: its bytes, and zeros to the end of the last page. It is nil
// where the bytes are a copy and no mapping.
func (m *Mapping) Pages() []byte {
	if !mapped || len(m.data) == 0 {
		return nil
	}
	page := os.Getpagesize()
	return unsafe.Slice(unsafe.SliceData(m.data), (len(m.data)+page-1)/page*page)
}

// Check returns an error that wraps [ErrChanged] when the file is no longer what was mapped: it lost bytes that
// were read, or has another size or another time of modification than when it was opened. Once it has failed it
// goes on failing with the same error. A file that was removed, or had another one renamed over it, keeps its
// bytes for as long as it is mapped and is no error. Check costs about a microsecond and may be called from
// several goroutines.
func (m *Mapping) Check() error {
	if !mapped || m.file == nil {
		return nil
	}
	if e := m.broken.Load(); e != nil {
		return *e
	}
	if err := m.check(); err != nil {
		first := err // not err itself, which would be allocated without an error too
		m.broken.CompareAndSwap(nil, &first)
		return *m.broken.Load()
	}
	return nil
}

func (m *Mapping) check() error {
	size, modified, err := stat(m.file)
	what := ""
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", m.name, err)
	case size < m.size:
		what = fmt.Sprintf("truncated from %d to %d bytes", m.size, size)
	case size > m.size:
		what = fmt.Sprintf("grew from %d to %d bytes", m.size, size)
	case !modified.Equal(m.time):
		what = "written to at " + modified.Format(time.RFC3339)
	case m.guard.damaged():
		what = "some of its bytes could not be read"
	default:
		return nil
	}
	return fmt.Errorf("%s: %w (%s); what was read since is not to be relied on, open it again", m.name, ErrChanged, what)
}

// Close unmaps the file. It may be called twice.
func (m *Mapping) Close() error {
	if m.file == nil {
		return nil
	}
	var errs []error
	if m.data != nil {
		// End the watch first: as soon as the range is unmapped its addresses may be somebody else's.
		m.guard.drop()
		errs = append(errs, unmap(m.data))
	}
	errs = append(errs, m.file.Close())
	m.data, m.file = nil, nil
	return errors.Join(errs...)
}
