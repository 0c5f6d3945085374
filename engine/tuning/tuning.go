// Package tuning keeps what was found by measuring a device: how its weight kernels are fastest.
//
// A device has one file for each profile it is used under. It holds for one version of the driver and one of the kernels,
// as both decide what is fast; anything else in it is not used.
package tuning

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// version is the format of the files.
const version = 1

// maxFile is the most bytes of a file that is read; a use takes some 150.
const maxFile = 1 << 20

// maxQuote is the most characters that an error quotes of what is in a file.
const maxQuote = 80

// ErrStale reports a file that was made with other kernels or another driver.
var ErrStale = errors.New("the tuning is of another version; run caldera tune again")

// An ID says what a tuning holds for.
type ID struct {
	Device  string `json:"device"` // its name, for readers
	UUID    string `json:"uuid"`
	Driver  string `json:"driver"`
	Profile string `json:"profile"`
	Kernels string `json:"kernels"`
}

// For is the ID of a device under a profile, with the kernels of this program.
func For(info vk.DeviceInfo, p vk.Profile) ID {
	driver := fmt.Sprintf("%s %s %08x", info.DriverName, info.DriverInfo, info.DriverVersion)
	return ID{info.Name, info.UUID, strings.TrimSpace(driver), p.Name, shaders.Fingerprint()}
}

// Path is the file of a tuning in a folder.
func (id ID) Path(dir string) string {
	// UUIDs tell devices apart, but two drivers may give a device the same.
	return filepath.Join(dir, fmt.Sprintf("tuning-%s-%.8s-%s.json", id.UUID, shaders.Digest([]byte(id.Driver)), id.Profile))
}

// file is what a file holds.
type file struct {
	Version int `json:"version"`
	ID
	Ways []entry `json:"ways"`
}

type entry struct {
	Kernel string `json:"kernel"`
	Type   string `json:"type"`
	In     int    `json:"in"`
	Packed bool   `json:"packed,omitempty"`
	Scheme string `json:"scheme"`
	Group  int    `json:"group"`
	Tokens []int  `json:"tokens"`
}

// Load reads the tuning of a device from a folder. There may be none, which is no error: the map is nil. The ways are not
// checked against the device.
func Load(dir string, id ID) (map[shaders.Use]shaders.Way, error) {
	path := id.Path(dir)
	// Look before opening: opening a pipe would wait for its writer.
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than any tuning", path)
	}
	ways, err := parse(b, id)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return ways, nil
}

func parse(b []byte, id ID) (map[shaders.Use]shaders.Way, error) {
	var f file
	if err := json.Unmarshal(b, &f); err != nil {
		var value *json.UnmarshalTypeError
		if errors.As(err, &value) {
			value.Value = fmt.Sprintf("%.*s", maxQuote, value.Value)
		}
		return nil, err
	}
	if f.Version != version || f.ID != id {
		return nil, ErrStale
	}
	ways := map[shaders.Use]shaders.Way{}
	for i, x := range f.Ways {
		t, err := quant.ParseType(x.Type)
		if err != nil {
			return nil, fmt.Errorf("way %d: %w", i, err)
		}
		if len(x.Kernel) > maxQuote || len(x.Scheme) > maxQuote || len(x.Tokens) > maxQuote {
			return nil, fmt.Errorf("way %d: kernel %.*q with scheme %.*q and %d numbers of tokens: there is no such way", i, maxQuote, x.Kernel, maxQuote, x.Scheme, len(x.Tokens))
		}
		ways[shaders.Use{Kernel: x.Kernel, Type: t, In: x.In, Packed: x.Packed}] = shaders.Way{Scheme: shaders.Scheme(x.Scheme), Group: x.Group, Tokens: x.Tokens}
	}
	return ways, nil
}

// Save writes the tuning of a device to a folder, which is made if need be, and returns the file's path. The file is
// replaced as a whole or not at all.
func Save(dir string, id ID, ways map[shaders.Use]shaders.Way) (path string, err error) {
	f := file{Version: version, ID: id, Ways: []entry{}}
	for _, u := range slices.SortedFunc(maps.Keys(ways), func(a, b shaders.Use) int { return strings.Compare(a.String(), b.String()) }) {
		w := ways[u]
		f.Ways = append(f.Ways, entry{u.Kernel, u.Type.String(), u.In, u.Packed, string(w.Scheme), w.Group, w.Tokens})
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path = id.Path(dir)
	tmp, err := os.CreateTemp(dir, ".tuning-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name()) // fails once it has its name
	_, err = tmp.Write(append(b, '\n'))
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return "", fmt.Errorf("writing %s: %w", path, err)
	}
	return path, nil
}

// Remove deletes the tuning of a device; there need not be one.
func Remove(dir string, id ID) error {
	if err := os.Remove(id.Path(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
