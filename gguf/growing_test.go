package gguf

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// A download under way can be looked at: the file grows all the while that its header is read.
func TestOpenHeaderGrowing(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "gguf-neg", "ok_two_tensors_full.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "growing.gguf")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(data); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := file.Write([]byte{0}); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for range 1000 {
		f, err := OpenHeader(path)
		if err != nil {
			t.Error(err)
			break
		}
		if len(f.Tensors()) != 2 {
			t.Errorf("%d tensors", len(f.Tensors()))
		}
		f.Close()
	}
	close(stop)
	writer.Wait()
}
