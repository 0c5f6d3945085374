package mapping

import (
	"context"
	"os"
	"unsafe"
)

// populatePiece is how much Populate reads between two looks at its context.
const populatePiece = 16 << 20

// Populate brings the pages of mem, which lies in a mapping, into memory and into the process's page table, so
// that their first use does not wait for them one by one. It stops early when ctx ends or where the system
// cannot do it, and returns how many bytes it brought in.
func Populate(ctx context.Context, mem []byte) int64 {
	mem = wholePages(mem)
	done := int64(0)
	for len(mem) > 0 && ctx.Err() == nil {
		n := min(len(mem), populatePiece)
		if populate(mem[:n]) != nil {
			break
		}
		mem, done = mem[n:], done+int64(n)
	}
	return done
}

// wholePages widens mem, which lies in a mapping, to whole pages.
func wholePages(mem []byte) []byte {
	if len(mem) == 0 {
		return nil
	}
	page := uintptr(os.Getpagesize())
	before := uintptr(unsafe.Pointer(&mem[0])) % page
	n := (before + uintptr(len(mem)) + page - 1) / page * page
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&mem[0]), -int(before))), n)
}

// Forget gives the pages of mem, which lies in a mapping, back to the system's cache: what was copied elsewhere
// need not count as memory of the process. Reading them again is no error. Pages that hold other bytes too stay.
func Forget(mem []byte) {
	page := os.Getpagesize()
	if len(mem) < page {
		return
	}
	before := -int(uintptr(unsafe.Pointer(&mem[0]))) & (page - 1)
	if n := (len(mem) - before) / page * page; n > 0 {
		forget(mem[before : before+n])
	}
}
