//go:build cgo

package mapping

import (
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setMask sets the calling thread's blocked signals.
func setMask(t *testing.T, mask uint64) {
	t.Helper()
	s := unix.Sigset_t{}
	*(*uint64)(unsafe.Pointer(&s.Val[0])) = mask
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &s, nil); err != nil {
		t.Error(err)
	}
}

// A thread that blocks SIGBUS the way Mesa's do can read lost pages after it was reached; without that, the process
// would end here.
func TestReachThreads(t *testing.T) {
	m := open(t, write(t, 4*pageSize))
	ready, lost, done := make(chan int), make(chan struct{}), make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		setMask(t, ^(bit(unix.SIGSEGV) | bit(unix.SIGSYS) | bit(unix.SIGURG)))
		ready <- unix.Gettid()
		<-lost
		done <- sum(m.Bytes())
	}()
	<-ready
	if n := ReachThreads(); n != 1 {
		t.Fatalf("%d threads were reached", n)
	}
	if n := ReachThreads(); n != 0 {
		t.Errorf("%d threads were reached again", n)
	}
	if err := os.Truncate(m.name, 0); err != nil {
		t.Fatal(err)
	}
	close(lost)
	if n := <-done; n != 0 || m.Check() == nil {
		t.Errorf("the thread read %d, %v", n, m.Check())
	}
}

func TestBlocked(t *testing.T) {
	for _, c := range []struct {
		text string
		want uint64
	}{
		{"Name:\tx\nSigBlk:\tfffffffe3ffbfaff\nSigIgn:\t0\n", 0xfffffffe3ffbfaff},
		{"SigBlk:\t0000000000000000\n", 0},
		{"SigBlk:\tx\n", 0},
		{"", 0},
	} {
		if got := blocked([]byte(c.text)); got != c.want {
			t.Errorf("%q: %#x", c.text, got)
		}
	}
	if bit(unix.SIGBUS)&0xfffffffe3ffbfaff == 0 || bit(unix.SIGSYS)&0xfffffffe3ffbfaff != 0 {
		t.Error("a thread of Mesa's would not be found, or not be reached")
	}
}
