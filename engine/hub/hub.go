// Package hub finds where a named model lies on this machine. A name is the path of a file, the path of a folder
// with one model in it, or the name of a Hugging Face repository whose files are in the local cache. Files are
// read where they are: nothing is copied, and nothing is downloaded.
package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// A Model is where a name led.
type Model struct {
	Path   string   // file to open; of a split model the first part
	Repo   string   // "user/repo", empty for a path
	Commit string   // snapshot of the repository, empty outside of a Hugging Face cache
	Quant  string   // quantisation by the file's name, such as "UD-Q4_K_XL"; empty for a path and where there is none
	Notes  []string // choices that were made and that the user may want to make differently
}

// Places are the folders that are searched for repositories. One that does not exist is passed over.
type Places struct {
	Caches []string // in the layout of the Hugging Face cache: models--USER--REPO/snapshots/COMMIT/FILE
	Flat   []string // in llama.cpp's earlier layout: USER_REPO_FILE
}

// Default returns the places that the environment names, by the rules of the programs that fill them: the first
// of HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub and
// ~/.cache/huggingface/hub, then LLAMA_CACHE or llama.cpp's folder in the user's cache.
func Default() Places {
	var p Places
	home, _ := os.UserHomeDir()
	for _, c := range []struct{ base, sub string }{
		{os.Getenv("HF_HUB_CACHE"), ""},
		{os.Getenv("HUGGINGFACE_HUB_CACHE"), ""},
		{os.Getenv("HF_HOME"), "hub"},
		{os.Getenv("XDG_CACHE_HOME"), "huggingface/hub"},
		{home, ".cache/huggingface/hub"},
	} {
		if c.base != "" {
			p.Caches = append(p.Caches, filepath.Join(expandHome(c.base, home), filepath.FromSlash(c.sub)))
			break
		}
	}
	if dir := os.Getenv("LLAMA_CACHE"); dir != "" {
		// llama.cpp has used this folder with both layouts.
		p.Caches = append(p.Caches, dir)
		p.Flat = append(p.Flat, dir)
	} else if dir, err := os.UserCacheDir(); err == nil {
		p.Flat = append(p.Flat, filepath.Join(dir, "llama.cpp"))
	}
	return p
}

// expandHome replaces a leading ~, which a shell leaves alone in quotes and in configuration files.
func expandHome(path, home string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && home != "" && (rest == "" || os.IsPathSeparator(rest[0])) {
		return filepath.Join(home, rest)
	}
	return path
}

// Find returns the model of a name:
//
//   - the path of a file, which is taken as it is;
//   - the path of a folder, FOLDER[:QUANT], with one model in it or one that QUANT picks;
//   - USER/REPO[@REVISION][:QUANT], a repository in the local cache. QUANT is a quantisation as in the files' names,
//     in any case, or a file of the repository; without one it is Q4_K_M, else Q8_0, else the first by name.
//
// What exists as a path is a path. An error says what was looked for where, and what is there instead.
func (p Places) Find(name string) (*Model, error) {
	switch {
	case name == "":
		return nil, errors.New("the model's name is empty")
	case strings.ContainsRune(name, 0):
		return nil, fmt.Errorf("the model's name %q contains a NUL", name)
	}
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		return findInFolder(name, "")
	case err == nil:
		return &Model{Path: name}, nil
	case !isAbsent(err):
		return nil, err
	}
	if err := brokenLink(name); err != nil {
		return nil, err
	}
	if i := strings.LastIndexByte(name, ':'); i > 0 {
		if info, err := os.Stat(name[:i]); err == nil && info.IsDir() {
			quant, err := parseQuant(name[i+1:])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			return findInFolder(name[:i], quant)
		}
	}
	r, ok, err := parseRef(name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s: no such file or folder%s", name, nearFile(name))
	}
	return p.findRepo(r)
}

// isAbsent reports whether an error means that nothing has this name: also a name that goes through a file, and one
// that no file can have.
func isAbsent(err error) bool {
	const invalidName = syscall.Errno(123) // what Windows says of a name with a colon
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG) ||
		errors.Is(err, syscall.EINVAL) || runtime.GOOS == "windows" && errors.Is(err, invalidName)
}

// brokenLink is the error for a link to a file that is not there, nil for anything else.
func brokenLink(path string) error {
	target, err := os.Readlink(path)
	if err != nil {
		return nil
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	err = fmt.Errorf("%s is a link to %s, which is not there", path, target)
	if unfinished := unfinishedOf(target); unfinished != "" {
		return fmt.Errorf("%w: its download is unfinished (%s); download it again", err, unfinished)
	}
	return fmt.Errorf("%w; download it again", err)
}

// nearFile suggests a model file beside a path that does not exist.
func nearFile(path string) string {
	dir, base := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() || isGGUF(e.Name()) {
			names = append(names, e.Name())
		}
	}
	if near := nearest(base, names, 1); len(near) > 0 {
		return fmt.Sprintf("; did you mean %s?", near[0])
	}
	return ""
}
