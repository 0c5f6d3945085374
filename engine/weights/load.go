package weights

import (
	"fmt"
	"slices"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/mapping"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// A Target is a device that takes weights.
type Target interface {
	// Allocate gives a buffer memory.
	Allocate(b *shaders.Buffer, zero bool) error
	// Import binds buffers to pages of the host; an error changes nothing.
	Import(mem []byte, binds []scheduler.Bind) error
	// Free takes back what Allocate or Import gave a buffer.
	Free(b *shaders.Buffer)
	// LimitBinding makes kernels bind no more than n bytes at once.
	LimitBinding(n int64)
	// Stream queues bytes to be written; it has read them when it returns.
	Stream(v shaders.View, data []byte) error
	// Settle returns when everything streamed has arrived.
	Settle() error
}

// A Report says where weights went, in bytes.
type Report struct {
	Imported int64 `json:"imported"` // read by the device from the file's pages
	Copied   int64 `json:"copied"`   // written to memory that host and device share
	Uploaded int64 `json:"uploaded"` // transferred to memory of the device
	Host     int64 `json:"host"`     // kept by the host alone
	Windows  int   `json:"windows"`  // imported ranges
	// Fallbacks say why items were copied or uploaded instead of imported.
	Fallbacks []Fallback `json:"fallbacks"`
}

// Add is the report of what went to two devices.
func (r Report) Add(s Report) Report {
	return Report{r.Imported + s.Imported, r.Copied + s.Copied, r.Uploaded + s.Uploaded, r.Host + s.Host, r.Windows + s.Windows, append(slices.Clip(r.Fallbacks), s.Fallbacks...)}
}

// piece is how much is read and written between two looks at what comes next: the unit of readahead and of
// progress.
const piece = 32 << 20

// Load brings the items to a device as decided. A range that cannot be imported is copied, and the report says
// why. Progress, if set, is told how many bytes are in place so far.
func Load(f *gguf.File, items []Item, d Decision, t Target, progress func(done int64)) (Report, error) {
	l := loader{file: f, target: t, progress: progress}
	d.Fallbacks = slices.Clone(d.Fallbacks)
	d.Residency = slices.Clone(d.Residency)
	refused := l.importWindows(&d)
	var rest []Item
	for i, it := range items {
		switch d.Residency[i] {
		case Imported:
			if err := refused[it.Buf]; err != nil {
				d.Residency[i] = d.copied
				d.fallback(it, err.Error())
				rest = append(rest, it)
				continue
			}
			l.add(it.Buf.Size)
		case HostOnly:
			l.add(it.Buf.Size)
		default:
			rest = append(rest, it)
		}
	}
	if err := l.copyItems(rest); err != nil {
		return Report{}, err
	}
	return Report{
		Imported: d.bytes(items, Imported), Copied: d.bytes(items, Copied), Uploaded: d.bytes(items, Uploaded), Host: d.bytes(items, HostOnly),
		Windows: l.windows, Fallbacks: d.Fallbacks,
	}, nil
}

type loader struct {
	file     *gguf.File
	target   Target
	progress func(done int64)
	done     int64
	windows  int
}

// add counts bytes that are in place.
func (l *loader) add(n int64) {
	l.done += n
	if l.progress != nil {
		l.progress(l.done)
	}
}

// importWindows imports what can be, and returns why for each buffer that cannot. A buffer with several windows
// has all of them or none.
func (l *loader) importWindows(d *Decision) map[*shaders.Buffer]error {
	refused := map[*shaders.Buffer]error{}
	pieces := map[*shaders.Buffer]int{} // windows that hold a part of a buffer only
	for _, w := range d.windows {
		binds := slices.DeleteFunc(slices.Clone(w.binds), func(b scheduler.Bind) bool { return refused[b.Buf] != nil })
		if len(binds) == 0 {
			continue
		}
		err := l.target.Import(l.file.Pages(w.part)[w.from:w.to], binds)
		if err == nil {
			l.windows++
			for _, b := range binds {
				if b.N < b.Buf.Size {
					pieces[b.Buf]++
				}
			}
			continue
		}
		for _, b := range binds {
			if n := pieces[b.Buf]; n > 0 {
				// The windows before this one were its own.
				l.target.Free(b.Buf)
				l.windows -= n
			}
			refused[b.Buf] = err
		}
	}
	l.target.LimitBinding(d.binding)
	return refused
}

// copyItems writes items to memory of the device. Of items that are the file's own bytes the next piece is read
// from the disk while one is being written.
func (l *loader) copyItems(items []Item) error {
	for i, it := range items {
		data, err := it.content()
		if err != nil {
			return err
		}
		if err := l.target.Allocate(it.Buf, false); err != nil {
			return err
		}
		for off := 0; off < len(data); off += piece {
			end := min(off+piece, len(data))
			mapping.WillNeed(l.mapped(it, end, min(end+piece, len(data))))
			if end == len(data) && i+1 < len(items) {
				mapping.WillNeed(l.mapped(items[i+1], 0, piece))
			}
			if err := l.target.Stream(it.Buf.View().Slice(int64(off), int64(end-off)), data[off:end]); err != nil {
				return fmt.Errorf("weights %s: %w", it.Buf.Name, err)
			}
			mapping.Forget(l.mapped(it, off, end))
			if end < len(data) {
				l.add(int64(end - off))
			} else {
				l.add(it.Buf.Size - int64(off))
			}
		}
	}
	return l.target.Settle()
}

// mapped returns bytes [from, to) of an item's tensor in the mapping of its file, as far as the tensor goes; nil for
// an item that is not there.
func (l *loader) mapped(it Item, from, to int) []byte {
	t := it.Tensor
	if t == nil || l.file == nil {
		return nil
	}
	pages := l.file.Pages(t.Part)
	if pages == nil {
		return nil
	}
	return pages[t.Offset+int64(from) : t.Offset+min(int64(to), t.Size)]
}
