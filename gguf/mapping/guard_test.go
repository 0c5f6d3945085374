//go:build unix && cgo

package mapping

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watching tells that lost pages read as zeros.
const watching = true

// A fault elsewhere stays Go's: with SetPanicOnFault it is a panic that can be recovered from, and the process
// goes on.
func TestForeignFault(t *testing.T) {
	m := open(t, write(t, pageSize)) // the handler is in place
	path := write(t, 2*pageSize)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	foreign, err := unix.Mmap(int(f.Fd()), 0, 2*pageSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(foreign)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		func() {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer func() {
				fault, ok := recover().(interface{ Addr() uintptr })
				if !ok || fault.Addr() != uintptr(unsafe.Pointer(&foreign[pageSize])) {
					t.Errorf("recovered %v", fault)
				}
			}()
			t.Errorf("a page that is gone holds %d", foreign[pageSize])
		}()
	}
	if m.Check() != nil || sum(m.Bytes()) != pageSize {
		t.Errorf("the watched mapping: %v", m.Check())
	}
}

// More mappings than the table has room for are refused, and nothing is lost.
func TestFullTable(t *testing.T) {
	data := open(t, write(t, pageSize)).Bytes()
	var all []guard
	defer func() {
		for _, g := range all {
			g.drop()
		}
	}()
	for len(all) < 2000 {
		g, err := watch(data)
		if err != nil {
			if len(all) < 1000 || !strings.Contains(err.Error(), "too many") {
				t.Errorf("after %d: %v", len(all), err)
			}
			return
		}
		all = append(all, g)
	}
	t.Error("the table has no end")
}
