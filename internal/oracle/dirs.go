package oracle

import (
	"os"
	"path/filepath"
	"testing"
)

// Root is the folder that holds the repository's go.mod, found by walking up from the working directory (that of
// a package under test lies inside the repository). Without one it is the working directory.
func Root() string {
	wd, err := os.Getwd()
	if err != nil {
		return "."
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if exists(filepath.Join(dir, "go.mod")) {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return wd
		}
	}
}

// Dir is the folder of the oracle cases: $CALDERA_ORACLE when that is set, else ../shared/oracle next to the
// repository when it exists, else the repository's own testdata/oracle.
func Dir() string {
	if d := os.Getenv("CALDERA_ORACLE"); d != "" {
		return d
	}
	if d := beside("oracle"); exists(d) {
		return d
	}
	return filepath.Join(Root(), "testdata", "oracle")
}

// DemoDir is the folder of the demo model's files and reference results: $CALDERA_DEMO when that is set, else ../shared/demo next
// to the repository when it exists, else testdata/demo, which holds the results of the q8_0 file but no model. Ask for
// single files with [DemoFile].
func DemoDir() string {
	if d := os.Getenv("CALDERA_DEMO"); d != "" {
		return d
	}
	if d := beside("demo"); exists(d) {
		return d
	}
	return filepath.Join(Root(), "testdata", "demo")
}

// DemoFile is the path of one of the demo model's files, such as "demo-q8_0.gguf", "demo.json" or "val_tokens.u16". It is looked
// for in [DemoDir], in testdata/demo and in engine/demo, where the embedded model lies. The test is skipped when it is in none of them:
// the other quantisations of the model are not part of the repository.
func DemoFile(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{
		DemoDir(),
		filepath.Join(Root(), "testdata", "demo"),
		filepath.Join(Root(), "engine", "demo"),
	} {
		if p := filepath.Join(dir, name); exists(p) {
			return p
		}
	}
	t.Skipf("no %s here; CALDERA_DEMO names a folder that has it", name)
	return ""
}

func beside(name string) string { return filepath.Join(Root(), "..", "shared", name) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
