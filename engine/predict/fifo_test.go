//go:build unix

package predict

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A pipe is refused: opening it would wait for somebody to write to it.
func TestFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.json")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := ReadFile(path)
		result <- err
	}()
	select {
	case err := <-result:
		if err == nil || !strings.Contains(err.Error(), path+" is no regular file") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("ReadFile waits for a writer")
	}
}
