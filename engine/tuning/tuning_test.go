package tuning

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

var (
	testID   = For(vk.DeviceInfo{Name: "a device", UUID: "00ff", DriverName: "driver", DriverVersion: 7}, vk.Profile{Name: "auto"})
	testWays = map[shaders.Use]shaders.Way{
		{Kernel: "matmul", Type: quant.Q8_0, In: 256}:      {Scheme: "row", Group: 8, Tokens: []int{1, 2, 4}},
		{Kernel: "expert_down", Type: quant.Q4_K, In: 512}: {Scheme: "lanes", Group: 64, Tokens: []int{1}},
	}
)

func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	if ways, err := Load(dir, testID); ways != nil || err != nil {
		t.Fatalf("without a file: %v, %v", ways, err)
	}
	for _, want := range []map[shaders.Use]shaders.Way{testWays, {}} { // the second takes the place of the first
		path, err := Save(dir, testID, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Load(dir, testID)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v; want %v", path, got, err, want)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files: %v", left)
	}
	for range 2 {
		if err := Remove(dir, testID); err != nil {
			t.Error(err)
		}
	}
	if ways, err := Load(dir, testID); ways != nil || err != nil {
		t.Errorf("after Remove: %v, %v", ways, err)
	}
}

// Whatever the file does not hold for is not used.
func TestOthers(t *testing.T) {
	dir := t.TempDir()
	path, err := Save(dir, testID, testWays)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*ID){
		"device":  func(id *ID) { id.UUID = "00fe" },
		"driver":  func(id *ID) { id.Driver = "driver 00000008" },
		"profile": func(id *ID) { id.Profile = "floor" },
	} {
		id := testID
		if change(&id); id.Path(dir) == path {
			t.Errorf("another %s has the same file", name)
		}
	}
	id := testID
	id.Kernels = "other"
	if _, err := Load(dir, id); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), path) {
		t.Errorf("other kernels: %v", err)
	}
}

func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	path, err := Save(dir, testID, testWays)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"empty":             "",
		"cut off":           string(whole[:len(whole)/2]),
		"type":              strings.Replace(string(whole), "Q8_0", "Q8_9", 1),
		"a number":          strings.Replace(string(whole), "256", "1e99", 1),
		"version":           strings.Replace(string(whole), `"version": 1`, `"version": 2`, 1),
		"something follows": string(whole) + "}",
		"a long type":       strings.Replace(string(whole), "Q8_0", strings.Repeat("Q", 5000), 1),
		"a long kernel":     strings.Replace(string(whole), `"matmul"`, `"`+strings.Repeat("m", 5000)+`"`, 1),
		"a long scheme":     strings.Replace(string(whole), `"row"`, `"`+strings.Repeat("r", 5000)+`"`, 1),
		"a long number":     strings.Replace(string(whole), "256", "1"+strings.Repeat("0", 5000), 1),
		"too large":         string(whole) + strings.Repeat(" ", maxFile),
	} {
		if err := os.WriteFile(path, []byte(data), 0o666); err != nil {
			t.Fatal(err)
		}
		if ways, err := Load(dir, testID); err == nil || !strings.Contains(err.Error(), path) || len(err.Error()) > len(path)+400 {
			t.Errorf("%s: %v, %v", name, ways, err)
		}
	}
	os.Remove(path)
	if err := os.Mkdir(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, testID); err == nil {
		t.Error("a folder is read")
	}
	if _, err := Save(dir, testID, testWays); err == nil {
		t.Error("a folder is replaced")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files after a failed Save: %v", left)
	}
}
