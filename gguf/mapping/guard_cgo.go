//go:build unix && cgo

package mapping

/*
#cgo CFLAGS: -std=gnu11 -O2
#include "guard.h"
*/
import "C"

import (
	"errors"
	"sync/atomic"
	"unsafe"
)

// A guard is the watch over one mapping.
type guard struct {
	slot *C.guard_range // C memory that lasts for ever; nil when nothing is watched
}

// watch makes lost pages of a mapping read as zeros from now on.
func watch(data []byte) (guard, error) {
	var slot *C.guard_range
	switch errno := C.guard_add(unsafe.Pointer(&data[0]), C.size_t(len(data)), &slot); errno {
	case 0:
		return guard{slot}, nil
	case C.GUARD_FULL:
		return guard{}, errors.New("too many files are mapped at once (1024)")
	default:
		return guard{}, errors.New("the handler for lost pages cannot be installed")
	}
}

// damaged reports whether a page was lost.
func (g guard) damaged() bool {
	return g.slot != nil && atomic.LoadUint32((*uint32)(unsafe.Pointer(&g.slot.damaged))) != 0
}

// drop ends the watch. Nothing may read the range any more.
func (g guard) drop() {
	if g.slot != nil {
		C.guard_drop(g.slot)
	}
}
