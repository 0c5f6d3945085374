package hub

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	maxEntries = 20000 // files and folders that are looked at for one name
	maxDepth   = 4     // levels of folders
	maxListed  = 12    // names in one message
)

// A variant is one model of a folder: a file, or a split set.
type variant struct {
	stem  string         // path below the folder, with slashes, without the numbers of parts and .gguf
	tag   string         // quantisation, see tagOf
	count int            // parts that there should be
	parts map[int]string // path below the folder by number of the part, from 1
	side  bool           // not a model but something beside one
}

// name is what a message calls the variant.
func (v *variant) name() string {
	if v.count > 1 {
		return fmt.Sprintf("%s (%d parts)", v.stem, v.count)
	}
	return v.parts[1]
}

// splitName matches the name of a part of a split model without .gguf (weights.md 1.4).
var splitName = regexp.MustCompile(`^(.+)-([0-9]{5})-of-([0-9]{5})$`)

// sideNames are files that belong to a model and are none: the vision part, calibration data, draft heads.
var (
	sidePrefixes = []string{"mtp-", "eagle3-", "dflash-", "dspark-"}
	sideWords    = []string{"mmproj", "imatrix"}
)

func isSide(path string) bool {
	base := strings.ToLower(path[strings.LastIndexByte(path, '/')+1:])
	return slices.ContainsFunc(sidePrefixes, func(s string) bool { return strings.HasPrefix(base, s) }) ||
		slices.ContainsFunc(sideWords, func(s string) bool { return strings.Contains(base, s) })
}

// group makes variants of paths, sorted by name.
func group(paths []string) []*variant {
	byKey := map[string]*variant{}
	var all []*variant
	for _, path := range paths {
		stem, no, count := path[:len(path)-len(".gguf")], 1, 1
		key := path
		if m := splitName.FindStringSubmatch(stem); m != nil {
			n, _ := strconv.Atoi(m[2])
			of, _ := strconv.Atoi(m[3])
			if n >= 1 && n <= of {
				stem, no, count = m[1], n, of
				key = stem + "\x00" + m[3]
			}
		}
		v := byKey[key]
		if v == nil {
			v = &variant{stem: stem, tag: tagOf(stem), count: count, parts: map[int]string{}, side: isSide(path)}
			byKey[key] = v
			all = append(all, v)
		}
		v.parts[no] = path
	}
	slices.SortFunc(all, func(a, b *variant) int { return strings.Compare(a.stem, b.stem) })
	return all
}

// scan lists the model files of a folder, down to a depth, with slashes. Hidden folders are left out: partial
// downloads lie there.
func scan(root string, depth int) ([]string, error) {
	var paths []string
	left := maxEntries
	var walk func(dir, prefix string, depth int) error
	walk = func(dir, prefix string, depth int) error {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		if left -= len(entries); left < 0 {
			return fmt.Errorf("%s has more than %d files; name the model file itself", root, maxEntries)
		}
		for _, e := range entries {
			name := e.Name()
			folder := e.IsDir()
			if e.Type()&fs.ModeSymlink != 0 {
				info, err := os.Stat(filepath.Join(dir, name))
				folder = err == nil && info.IsDir()
			}
			switch {
			case folder && depth > 1 && !strings.HasPrefix(name, "."):
				// A folder that cannot be read may hold nothing of interest.
				if err := walk(filepath.Join(dir, name), prefix+name+"/", depth-1); err != nil && left < 0 {
					return err
				}
			case !folder && isGGUF(name):
				paths = append(paths, prefix+name)
			}
		}
		return nil
	}
	err := walk(root, "", depth)
	return paths, err
}

// findInFolder picks the model of a folder the user named. The folder itself comes first, what is below it only
// where it has no model.
func findInFolder(dir, quant string) (*Model, error) {
	if info, err := os.Stat(filepath.Join(dir, "snapshots")); err == nil && info.IsDir() {
		if repo, ok := repoOf(filepath.Base(absolute(dir))); ok {
			return findSnapshot(dir, ref{repo: repo, quant: quant})
		}
	}
	var all []*variant
	for _, depth := range []int{1, maxDepth} {
		paths, err := scan(dir, depth)
		if err != nil {
			return nil, err
		}
		all = group(paths)
		if slices.ContainsFunc(all, func(v *variant) bool { return !v.side }) {
			break
		}
	}
	models := models(all)
	if quant == "" && len(models) > 1 {
		hint := fmt.Sprintf("name one of them, or add its quantisation: %s", dir+":"+orElse(models[0].tag, "Q4_K_M"))
		return nil, fmt.Errorf("%s holds %d models: %s; %s", dir, len(models), names(models), hint)
	}
	v, _, err := choose(all, quant)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", dir, err)
	case v == nil && len(models) > 0:
		return nil, fmt.Errorf("%s has nothing that is called %s, only %s", dir, quant, names(models))
	case v == nil && len(all) > 0:
		return nil, fmt.Errorf("%s holds no model, only what goes with one: %s", dir, names(all))
	case v == nil:
		return nil, fmt.Errorf("%s holds no GGUF file", dir)
	}
	path, err := v.whole(dir)
	if err != nil {
		return nil, err
	}
	return &Model{Path: path, Quant: v.tag}, nil
}

// defaults are the quantisations that are taken when none is asked for, as llama.cpp takes them.
var defaults = []string{"Q4_K_M", "Q8_0"}

// choose picks the variant that fits what is wanted, or the default one; nil when none does. The note says what else
// could have been meant. It is an error if several fit equally well.
func choose(all []*variant, quant string) (v *variant, note string, err error) {
	models := models(all)
	if quant != "" {
		if isGGUF(quant) {
			models = all // a file may be named whatever it is
		}
		v, err = best(models, quant)
		return v, "", err
	}
	if len(models) == 1 {
		return models[0], "", nil
	}
	for _, quant := range defaults {
		if v, err = best(models, quant); v != nil || err != nil {
			return v, "", err
		}
	}
	if len(models) == 0 {
		return nil, "", nil
	}
	return models[0], fmt.Sprintf("took %s of %d models; the others are %s", models[0].label(), len(models), labels(models[1:])), nil
}

// best returns the variant that fits best, nil for none.
func best(models []*variant, quant string) (*variant, error) {
	least := fitNone
	var found []*variant
	for _, v := range models {
		switch f := v.fit(quant); {
		case f < least:
			least, found = f, []*variant{v}
		case f == least && f < fitNone:
			found = append(found, v)
		}
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%s could be %s; put the name of one of the files after the colon", quant, names(found))
}

// whole returns the path of the file to open, once all parts are there.
func (v *variant) whole(dir string) (string, error) {
	var missing []string
	for i := 1; i <= v.count; i++ {
		part, ok := v.parts[i]
		if !ok {
			missing = append(missing, fmt.Sprintf("%s-%05d-of-%05d.gguf", v.stem, i, v.count))
			continue
		}
		path := filepath.Join(dir, filepath.FromSlash(part))
		if _, err := os.Stat(path); err == nil {
			continue
		} else if !isAbsent(err) {
			return "", err
		} else if err := brokenLink(path); err != nil {
			return "", err
		}
		missing = append(missing, part) // gone since it was listed
	}
	if n := len(missing); n > 0 {
		return "", fmt.Errorf("%s: %d of %d parts are missing from %s: %s; download them", v.stem, n, v.count, dir, list(missing))
	}
	return filepath.Join(dir, filepath.FromSlash(v.parts[1])), nil
}

func models(all []*variant) []*variant {
	return slices.DeleteFunc(slices.Clone(all), func(v *variant) bool { return v.side })
}

// label is a variant's quantisation, or its name where it has none.
func (v *variant) label() string { return orElse(v.tag, v.name()) }

func names(vs []*variant) string { return list(each(vs, (*variant).name)) }

func labels(vs []*variant) string {
	tags := each(vs, (*variant).label)
	slices.Sort(tags)
	return list(slices.Compact(tags))
}

func each(vs []*variant, f func(*variant) string) []string {
	out := make([]string, len(vs))
	for i, v := range vs {
		out[i] = f(v)
	}
	return out
}

// list joins names, and cuts a long list short.
func list(s []string) string {
	if n := len(s); n > maxListed {
		return fmt.Sprintf("%s and %d more", strings.Join(s[:maxListed], ", "), n-maxListed)
	}
	return strings.Join(s, ", ")
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// absolute is the absolute form of a path, or the path itself where there is none.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
