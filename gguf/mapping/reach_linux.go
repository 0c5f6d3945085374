//go:build cgo

package mapping

/*
#include "guard.h"
*/
import "C"

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ReachThreads lets SIGBUS through to threads of the process that block it, and returns to how many. A lost page that
// is read by a thread which blocks the signal ends the process, whatever handlers there are. Mesa's threads, those
// of its software driver among them, block every signal but SIGSEGV and SIGSYS; so SIGSYS is what they are called
// by, once they exist: after a device was made, and again after work was given to it that may have made more.
// It does nothing before the first file is mapped. It takes a fraction of a millisecond.
func ReachThreads() int {
	dir, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	var deaf []C.int
	for _, e := range dir {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		status, err := os.ReadFile("/proc/self/task/" + e.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		if b := blocked(status); b&bit(unix.SIGBUS) != 0 && b&bit(unix.SIGSYS) == 0 {
			deaf = append(deaf, C.int(id))
		}
	}
	if len(deaf) == 0 {
		return 0
	}
	return int(C.guard_reach(&deaf[0], C.int(len(deaf))))
}

func bit(s unix.Signal) uint64 { return 1 << (s - 1) }

// blocked finds the signals that a thread blocks in the text of its status file, none when that does not tell.
func blocked(status []byte) uint64 {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("SigBlk:")); ok {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(rest)), 16, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}
