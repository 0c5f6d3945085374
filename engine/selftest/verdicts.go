package selftest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/calderaml/caldera/engine/tuning"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// An ID says what verdicts hold for: a device with its driver, under a profile, and the kernels of this program.
type ID struct{ tuning.ID }

// For is the ID of a device under a profile.
func For(info vk.DeviceInfo, p vk.Profile) ID { return ID{tuning.For(info, p)} }

// Path is the file of verdicts in a folder.
func (id ID) Path(dir string) string {
	// UUIDs tell devices apart, but two drivers may give a device the same.
	return filepath.Join(dir, fmt.Sprintf("selftest-%s-%.8s-%s.json", id.UUID, shaders.Digest([]byte(id.Driver)), id.Profile))
}

// Verdicts are what is known of variants: whether they were right, and if not how far they were off, relative to what their
// ops' largest values are. A number that JSON does not have is 0.
type Verdicts struct {
	Passed map[Variant]bool
	Failed map[Variant]float64
}

// NewVerdicts returns none.
func NewVerdicts() *Verdicts { return &Verdicts{map[Variant]bool{}, map[Variant]float64{}} }

// Add notes results. Of a variant that was wrong in the company of others nothing is known, unless all of them were right.
func (v *Verdicts) Add(rs []Result) {
	for _, r := range rs {
		delete(v.Passed, r.Variant)
		delete(v.Failed, r.Variant)
		if r.OK {
			v.Passed[r.Variant] = true
		}
	}
	for _, r := range rs {
		if !r.OK && !slices.ContainsFunc(r.With, func(x Variant) bool { return !v.Passed[x] }) {
			v.fail(r)
		}
	}
}

// AddSuspects notes that variants are wrong which were so in company, unless they have been found right in another.
func (v *Verdicts) AddSuspects(rs []Result) {
	for _, r := range rs {
		if !r.OK && !v.Passed[r.Variant] {
			v.fail(r)
		}
	}
}

func (v *Verdicts) fail(r Result) {
	v.Failed[r.Variant] = 0
	if r.Rel-r.Rel == 0 { // finite
		v.Failed[r.Variant] = r.Rel
	}
}

// merge adds what others have found.
func (v *Verdicts) merge(w *Verdicts) {
	for x := range w.Passed {
		delete(v.Failed, x)
		v.Passed[x] = true
	}
	for x, rel := range w.Failed {
		delete(v.Passed, x)
		v.Failed[x] = rel
	}
}

// version is the format of the files, and of what is checked: one that tests more begins anew.
const version = 1

// maxFile is the most bytes of a file that is read; a variant takes some 40.
const maxFile = 1 << 20

type file struct {
	Version int `json:"version"`
	tuning.ID
	Passed []string  `json:"passed"`
	Failed []failure `json:"failed"`
}

type failure struct {
	Variant string  `json:"variant"`
	Rel     float64 `json:"rel"`
}

// known is what this process has found, for engines without a folder and for those that come after the first.
var known = struct {
	sync.Mutex
	by map[ID]*Verdicts
}{by: map[ID]*Verdicts{}}

// Recall returns what is known of a device, by this process and by the folder's file, if dir is not "". There may be nothing,
// which is no error. A file that cannot be read, or that is of other kernels or another driver, counts as nothing: the check
// is made again.
func Recall(dir string, id ID) *Verdicts {
	v := NewVerdicts()
	if dir != "" {
		if f, err := load(id.Path(dir), id); err == nil {
			v.merge(f)
		}
	}
	known.Lock()
	defer known.Unlock()
	if k := known.by[id]; k != nil {
		v.merge(k)
	}
	return v
}

// Remember keeps verdicts beside those that are kept already, in this process and in the folder's file, if dir is not "". The file
// is replaced as a whole or not at all.
func Remember(dir string, id ID, v *Verdicts) error {
	known.Lock()
	if known.by[id] == nil {
		known.by[id] = NewVerdicts()
	}
	known.by[id].merge(v)
	known.Unlock()
	if dir == "" {
		return nil
	}
	all := NewVerdicts()
	if f, err := load(id.Path(dir), id); err == nil {
		all.merge(f)
	}
	all.merge(v)
	return save(dir, id, all)
}

// Forget removes what is known of a device. There need not be anything.
func Forget(dir string, id ID) error {
	known.Lock()
	delete(known.by, id)
	known.Unlock()
	if dir == "" {
		return nil
	}
	if err := os.Remove(id.Path(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func load(path string, id ID) (*Verdicts, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if info, err := r.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than any file of verdicts", path)
	}
	var f file
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if f.Version != version || f.ID != id.ID {
		return nil, fmt.Errorf("%s is of another version", path)
	}
	v := NewVerdicts()
	for _, s := range f.Passed {
		x, err := ParseVariant(s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		v.Passed[x] = true
	}
	for _, s := range f.Failed {
		x, err := ParseVariant(s.Variant)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		delete(v.Passed, x)
		v.Failed[x] = s.Rel
	}
	return v, nil
}

func save(dir string, id ID, v *Verdicts) error {
	f := file{Version: version, ID: id.ID, Passed: []string{}, Failed: []failure{}}
	for x := range v.Passed {
		f.Passed = append(f.Passed, x.String())
	}
	for x, rel := range v.Failed {
		f.Failed = append(f.Failed, failure{x.String(), rel})
	}
	slices.Sort(f.Passed)
	slices.SortFunc(f.Failed, func(a, b failure) int { return bytes.Compare([]byte(a.Variant), []byte(b.Variant)) })
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := id.Path(dir)
	tmp, err := os.CreateTemp(dir, ".selftest-*")
	if err != nil {
		return err
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
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
