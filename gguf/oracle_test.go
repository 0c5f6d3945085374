package gguf

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// oracle returns the folder of the reference data, or "". It is $CALDERA_ORACLE
// or else shared/oracle beside the repository.
func oracle() string {
	root := os.Getenv("CALDERA_ORACLE")
	if root == "" {
		dir, err := os.Getwd()
		for err == nil {
			if _, e := os.Stat(filepath.Join(dir, "go.mod")); e == nil {
				root = filepath.Join(dir, "..", "shared", "oracle")
				break
			}
			if dir == filepath.Dir(dir) {
				return ""
			}
			dir = filepath.Dir(dir)
		}
	}
	if _, err := os.Stat(root); err != nil {
		return ""
	}
	return root
}

// corpusDirs returns the folders of the acceptance corpus: the committed copy,
// and the reference data where there is one.
func corpusDirs() []string {
	dirs := []string{"testdata/gguf-neg"}
	if root := oracle(); root != "" {
		if d := filepath.Join(root, "gguf-neg"); exists(filepath.Join(d, "index.json")) {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// A verdict is what index.json wants of a file: accept, reject, or data-reject,
// which is a sound header whose data is missing.
type verdict struct {
	Want        string `json:"want"`
	WantCaldera string `json:"want_caldera"`
	Why         string `json:"why"`
}

func readIndex(t testing.TB, dir string) map[string]verdict {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index struct{ Files map[string]verdict }
	if err := json.Unmarshal(data, &index); err != nil {
		t.Fatal(err)
	}
	return index.Files
}
