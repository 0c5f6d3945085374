package weights

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/vk"
)

// Modes of residency that a user can ask for.
const (
	Auto   = "auto"   // import where the device computes in the host's memory, copy elsewhere
	Import = "import" // import wherever the driver can
	Copy   = "copy"   // never import
)

// A Residency is where an item lives.
type Residency int

const (
	Imported Residency = iota // the file's pages, read by the device in place
	Copied                    // device memory that the host writes to
	Uploaded                  // device memory behind a transfer
	HostOnly                  // host memory: no kernel reads it
)

// String returns the residency's name.
func (r Residency) String() string {
	if r < 0 || int(r) >= len(residencies) {
		return fmt.Sprintf("residency %d", int(r))
	}
	return residencies[r]
}

var residencies = []string{"imported", "copied", "uploaded", "host"}

// Caps is what deciding has to know of a device.
type Caps struct {
	NoImport string // why nothing can be imported; empty when it can
	Unified  bool   // copies are plain writes
	Align    int64  // of an imported range's address and length
	Window   int64  // most bytes of one import
	Binding  int64  // most bytes of one binding
}

// maxWindow keeps imports below 1 GiB: no device that can import refuses that, and SwiftShader refuses 1 GiB
// (vulkan-platform.md 4 and 8).
const maxWindow = 1<<30 - 1<<16

// CapsOf returns the capabilities of a device in a mode.
func CapsOf(info vk.DeviceInfo, p vk.Profile, mode string) Caps {
	l := info.Limits
	c := Caps{
		Unified: p.Unified,
		Align:   max(l.MinHostPointerAlignment, 1),
		Window:  min(maxWindow, l.MaxAllocation, l.MaxBufferSize),
		Binding: p.MaxBinding,
	}
	switch {
	case mode == Copy:
		c.NoImport = "copies were asked for"
	case !p.Features.HostImport:
		c.NoImport = "the driver cannot import host memory"
	case mode == Auto && !p.Unified:
		// Reading every weight of every token through the bus costs more than one copy.
		c.NoImport = "the device has memory of its own"
	}
	return c
}

// A Fallback is why items were copied that might have been imported.
type Fallback struct {
	Reason string `json:"reason"`
	Items  int    `json:"items"`
	Bytes  int64  `json:"bytes"`
	First  string `json:"first"` // the first of them
}

// A window is a range of a file's pages to be imported at once, and what lies in it.
type window struct {
	part     int
	from, to int64 // bytes of the file, at page boundaries
	binds    []scheduler.Bind
}

// A Decision says where each item of a list goes.
type Decision struct {
	Residency []Residency // by item
	Fallbacks []Fallback  // in the order of the items
	windows   []window
	copied    Residency // of what is not imported
	binding   int64     // most bytes that kernels may bind
}

// Decide says where each item will live. It depends on nothing but its arguments and touches no weight.
func Decide(f *gguf.File, items []Item, c Caps) Decision {
	d := Decision{Residency: make([]Residency, len(items)), copied: Copied, binding: c.Binding}
	if !c.Unified {
		d.copied = Uploaded
	}
	var in []int // items to import
	for i, it := range items {
		reason := c.NoImport
		switch {
		case it.HostOnly:
			d.Residency[i] = HostOnly
			continue
		case reason != "":
		case it.Tensor == nil:
			reason = "put together at load"
		case len(f.Pages(it.Tensor.Part)) == 0:
			reason = "the model is not a mapped file"
		case it.Tensor.Offset%4 != 0:
			reason = "not at a whole word of the file"
		case !inside(f.Pages(it.Tensor.Part), it, c.Align):
			reason = "at the edge of the file's pages"
		default:
			d.Residency[i] = Imported
			in = append(in, i)
			continue
		}
		d.Residency[i] = d.copied
		d.fallback(it, reason)
	}
	slices.SortStableFunc(in, func(a, b int) int {
		s, t := items[a].Tensor, items[b].Tensor
		return cmp.Or(cmp.Compare(s.Part, t.Part), cmp.Compare(s.Offset, t.Offset))
	})
	d.cut(f, items, in, c)
	return d
}

// fallback notes why an item is copied.
func (d *Decision) fallback(it Item, reason string) {
	i := slices.IndexFunc(d.Fallbacks, func(f Fallback) bool { return f.Reason == reason })
	if i < 0 {
		i = len(d.Fallbacks)
		d.Fallbacks = append(d.Fallbacks, Fallback{Reason: reason, First: it.Buf.Name})
	}
	d.Fallbacks[i].Items++
	d.Fallbacks[i].Bytes += it.Buf.Size
}

// aligned widens bytes [from, to) of a mapping so that they begin and end at addresses that are multiples of
// align.
func aligned(pages []byte, from, to, align int64) (int64, int64) {
	base := int64(uintptr(unsafe.Pointer(unsafe.SliceData(pages))) % uintptr(align))
	return (from+base)/align*align - base, (to+base+align-1)/align*align - base
}

// inside reports whether an item's bytes can be widened without leaving the pages.
func inside(pages []byte, it Item, align int64) bool {
	from, to := aligned(pages, it.Tensor.Offset, it.Tensor.Offset+it.Buf.Size, align)
	return from >= 0 && to <= int64(len(pages))
}

// cut makes windows for the items in, which are in the order of the file. A window begins at the page of an item and
// takes the items after it that fit, so each item lies in one window. An item that is larger than a window has
// windows of its own, which overlap by what kernels bind at most.
func (d *Decision) cut(f *gguf.File, items []Item, in []int, c Caps) {
	for _, i := range in {
		it := items[i]
		t, pages := it.Tensor, f.Pages(it.Tensor.Part)
		_, to := aligned(pages, t.Offset, t.Offset+it.Buf.Size, c.Align)
		if n := len(d.windows); n > 0 && d.windows[n-1].part == t.Part && to-d.windows[n-1].from <= c.Window {
			w := &d.windows[n-1]
			w.to = max(w.to, to)
			w.binds = append(w.binds, scheduler.Bind{Buf: it.Buf, N: it.Buf.Size, Off: t.Offset - w.from})
			continue
		}
		var spans []scheduler.Span
		spans, d.binding = scheduler.Spans(it.Buf.Size, c.Window-2*c.Align, d.binding)
		for _, s := range spans {
			at := t.Offset + s.From
			from, to := aligned(pages, at, at+s.N, c.Align)
			d.windows = append(d.windows, window{t.Part, from, to, []scheduler.Bind{{Buf: it.Buf, From: s.From, N: s.N, Off: at - from}}})
		}
	}
}

// Binding is the most bytes that kernels may bind at once when the weights lie so.
func (d *Decision) Binding() int64 { return d.binding }

// Windows is the number of ranges to import.
func (d *Decision) Windows() int { return len(d.windows) }

// bytes sums the items of a residency.
func (d *Decision) bytes(items []Item, r Residency) (n int64) {
	for i, it := range items {
		if d.Residency[i] == r {
			n += it.Buf.Size
		}
	}
	return n
}
