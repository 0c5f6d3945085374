//go:build unix

package tuning

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// A pipe in the file's place is refused: opening it would wait for somebody to write to it.
func TestFIFO(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(testID.Path(dir), 0o600); err != nil {
		t.Skip(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := Load(dir, testID)
		result <- err
	}()
	select {
	case err := <-result:
		if err == nil || !strings.Contains(err.Error(), testID.Path(dir)+" is no regular file") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Load waits for a writer")
	}
}
