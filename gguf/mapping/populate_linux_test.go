package mapping

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"unsafe"
)

// resident is how many bytes of a mapping count as the process's, by /proc/self/smaps.
func resident(t *testing.T, m *Mapping) int {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	_, rest, found := bytes.Cut(smaps, fmt.Appendf(nil, "\n%x-", uintptr(unsafe.Pointer(&m.data[0]))))
	_, rest, ok := bytes.Cut(rest, []byte("\nRss:"))
	if !found || !ok {
		t.Skip("the mapping is not listed by itself")
	}
	f := bytes.Fields(rest[:bytes.IndexByte(rest, '\n')])
	kb, err := strconv.Atoi(string(f[0]))
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// Populate brings pages in, and Forget gives back those that lie in its range as a whole.
func TestResident(t *testing.T) {
	m := open(t, write(t, 64*pageSize))
	if n := Populate(context.Background(), m.Bytes()); n == 0 {
		t.Skip("this kernel cannot populate mappings")
	}
	if n := resident(t, m); n != 64*pageSize {
		t.Errorf("%d pages after populating 64", n/pageSize)
	}
	Forget(m.Bytes()[pageSize-1 : 41*pageSize+1])
	if n := resident(t, m); n != 24*pageSize {
		t.Errorf("%d pages after forgetting 40 of 64", n/pageSize)
	}
}

func TestAvailable(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
	}{
		{"MemTotal: 8 kB\nMemFree:  1 kB\nMemAvailable:   24000 kB\nBuffers: 1 kB\n", 24000 << 10},
		{"MemTotal: 8 kB\n", -1},
		{"", -1},
		{"MemAvailable: x kB\n", -1},
		{"MemAvailable: 5\n", -1},
		{"MemAvailable: 99999999999999999999 kB\n", -1},
		{"MemAvailable: -5 kB\n", -1},
	} {
		if got := memory([]byte(c.text), "MemAvailable:"); got != c.want {
			t.Errorf("%q: %d, want %d", c.text, got, c.want)
		}
	}
	if n := Available(); n < 1<<20 {
		t.Errorf("%d bytes are available here", n)
	}
}
