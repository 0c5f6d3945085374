package gguf

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
)

// The keys of the parts of a split model (weights.md 1.4).
const (
	keySplitNo      = "split.no"            // 0-based
	keySplitCount   = "split.count"         // parts
	keySplitTensors = "split.tensors.count" // of all parts together
)

// A split is what a part says of its place. A file that is not split is part 0
// of 1.
type split struct {
	no, count uint64
	tensors   uint64 // 0 if the key is absent
}

func (p *part) split() (split, error) {
	s := split{count: 1}
	for _, field := range []struct {
		key string
		to  *uint64
	}{{keySplitNo, &s.no}, {keySplitCount, &s.count}, {keySplitTensors, &s.tensors}} {
		v, ok := p.value(field.key)
		if !ok {
			continue
		}
		n, err := scalarInteger[uint64](v)
		if err != nil {
			return s, fmt.Errorf("gguf: %s: %q %w", p.name, field.key, err)
		}
		*field.to = n
	}
	if s.count == 0 {
		s.count = 1
	}
	if s.no >= s.count {
		return s, fmt.Errorf("gguf: %s: %q is %d, but the model has %d parts", p.name, keySplitNo, s.no, s.count)
	}
	return s, nil
}

// partName matches PREFIX-00001-of-00003.gguf.
var partName = regexp.MustCompile(`^(.*)-([0-9]{5})-of-([0-9]{5})\.gguf$`)

// siblings returns the path of part i of the split model that path is part no
// of. Only the directory and prefix of the path are used: no key of the file
// names another.
func siblings(path string, s split) (func(i uint64) string, error) {
	dir, base := filepath.Split(path)
	m := partName.FindStringSubmatch(base)
	if m == nil {
		return nil, fmt.Errorf("gguf: %s: is part %d of %d, but its name does not end in -%05d-of-%05d.gguf: give the parts their names back",
			path, s.no+1, s.count, s.no+1, s.count)
	}
	no, _ := strconv.ParseUint(m[2], 10, 64)
	count, _ := strconv.ParseUint(m[3], 10, 64)
	if no != s.no+1 || count != s.count {
		return nil, fmt.Errorf("gguf: %s: is part %d of %d by its name, but %d of %d by its metadata",
			path, no, count, s.no+1, s.count)
	}
	return func(i uint64) string {
		return fmt.Sprintf("%s%s-%05d-of-%05d.gguf", dir, m[1], i+1, s.count)
	}, nil
}

// open opens the file at path and, if it is one part of a split model, all the
// others. Part 0 comes first, whichever was named.
func open(path string, lenient bool) (_ *File, err error) {
	named, err := openPart(path, lenient)
	if err != nil {
		return nil, err
	}
	f := newFile(path, named)
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	s, err := named.split()
	if err != nil {
		return nil, err
	}
	if s.count > 1 {
		if err := f.openSplit(s, lenient); err != nil {
			return nil, err
		}
	}
	return f.finish(lenient)
}

// openSplit replaces the one part of f by all parts of its model. A lenient
// open goes on without those that are not there, as long as the first is.
func (f *File) openSplit(s split, lenient bool) error {
	named := f.parts[0]
	pathOf, err := siblings(f.name, s)
	if err != nil {
		if lenient {
			f.missing = append(f.missing, err)
			return nil
		}
		return err
	}
	f.parts = nil
	taken := false // named is in f.parts, and closed with them
	defer func() {
		if !taken {
			named.close()
		}
	}()
	for i := range s.count {
		p := named
		if i != s.no {
			if p, err = openPart(pathOf(i), lenient); errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w: part %d of %d: %w", err, i+1, s.count, ErrTruncated)
				if lenient && i > 0 {
					f.missing = append(f.missing, err)
					continue
				}
			}
			if err != nil {
				return err
			}
		}
		f.parts = append(f.parts, p)
		taken = taken || p == named
		q, err := p.split()
		if err != nil {
			return err
		}
		if q.no != i || q.count != s.count {
			return fmt.Errorf("gguf: %s: says it is part %d of %d, want part %d of %d", p.name, q.no+1, q.count, i+1, s.count)
		}
	}
	return f.checkTotal()
}

// checkTotal compares the tensors of all parts with the number that the first
// one announces.
func (f *File) checkTotal() error {
	first := f.parts[0]
	s, err := first.split()
	if err != nil || len(f.missing) > 0 {
		return err
	}
	if _, ok := first.value(keySplitTensors); !ok {
		return nil
	}
	total := uint64(0)
	for _, p := range f.parts {
		total += uint64(len(p.tensors))
	}
	if total != s.tensors {
		return fmt.Errorf("gguf: %s: the %d parts hold %d tensors, but %q is %d", first.name, len(f.parts), total, keySplitTensors, s.tensors)
	}
	return nil
}
