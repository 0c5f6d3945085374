package hub

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// repoPrefix begins the folder of a model repository in a cache.
const repoPrefix = "models--"

// errNotHere says that a folder has nothing of what is looked for, which may be elsewhere.
var errNotHere = errors.New("not here")

// folderOf is the name of a repository's folder.
func folderOf(repo string) string { return repoPrefix + strings.ReplaceAll(repo, "/", "--") }

// repoOf is the repository of a folder, if it is one of a model.
func repoOf(folder string) (string, bool) {
	name, ok := strings.CutPrefix(folder, repoPrefix)
	user, base, two := strings.Cut(name, "--")
	if !ok || !two || checkRepoPart(user) != nil || checkRepoPart(base) != nil {
		return "", false
	}
	return user + "/" + base, true
}

// findRepo looks a repository up in every place.
func (p Places) findRepo(r ref) (*Model, error) {
	var firstErr error
	for _, root := range p.Caches {
		dir, ok := repoFolder(root, r.repo)
		if !ok {
			continue
		}
		m, err := findSnapshot(dir, r)
		if err == nil {
			return m, nil
		}
		if firstErr == nil {
			firstErr = err
		}
	}
	if r.revision == "" { // the flat layout knows none
		for _, dir := range p.Flat {
			m, err := findFlat(dir, r)
			if err == nil {
				return m, nil
			}
			if firstErr == nil && !errors.Is(err, errNotHere) {
				firstErr = err
			}
		}
	}
	if firstErr != nil {
		return nil, firstErr
	}
	return nil, p.notFound(r)
}

// repoFolder is the folder of a repository below a cache. Names differ only in case on Hugging Face by mistake, so
// another spelling does where the exact one is absent.
func repoFolder(root, repo string) (string, bool) {
	dir := filepath.Join(root, folderOf(repo))
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return dir, true
	}
	for _, other := range repos(root) {
		if strings.EqualFold(other, repo) {
			return filepath.Join(root, folderOf(other)), true
		}
	}
	return "", false
}

// repos lists the repositories of a cache.
func repos(root string) []string {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries[:min(len(entries), maxEntries)] {
		if repo, ok := repoOf(e.Name()); ok {
			names = append(names, repo)
		}
	}
	return names
}

// findSnapshot picks a model from a repository's folder. A snapshot has the files of one revision that were asked for
// while it was the newest, so what the newest one lacks an older one may have.
func findSnapshot(dir string, r ref) (*Model, error) {
	commits, note, err := snapshots(dir, r)
	if err != nil {
		return nil, err
	}
	var firstErr error
	var there []*variant
	for i, commit := range commits {
		root := filepath.Join(dir, "snapshots", commit)
		paths, err := scan(root, maxDepth)
		if err != nil {
			return nil, err
		}
		all := group(paths)
		there = append(there, models(all)...)
		v, choice, err := choose(all, r.quant)
		path := ""
		if err == nil && v != nil {
			path, err = v.whole(root)
		}
		if err != nil {
			if firstErr == nil {
				firstErr = fmt.Errorf("%s: %w%s", r.repo, err, unfinishedIn(dir))
			}
			continue
		}
		if v == nil {
			continue
		}
		m := &Model{Path: path, Repo: r.repo, Commit: commit, Quant: v.tag}
		if i > 0 {
			note = fmt.Sprintf("%s: the current revision in the cache lacks it, so it is from the older %.12s", r, commit)
		}
		for _, n := range []string{note, choice} {
			if n != "" {
				m.Notes = append(m.Notes, n)
			}
		}
		return m, nil
	}
	switch {
	case firstErr != nil:
		return nil, firstErr
	case len(there) > 0:
		return nil, fmt.Errorf("%s is not in %s, which has %s%s; %s", r, dir, labels(there), unfinishedIn(dir), howToGet(r))
	}
	return nil, fmt.Errorf("%s has no model file of %s%s; %s", dir, r.repo, unfinishedIn(dir), howToGet(r))
}

// snapshots lists the snapshots to look in, by commit, the right one first. The note says why that was not the one that
// refs/main names.
func snapshots(dir string, r ref) (commits []string, note string, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	if err != nil && !isAbsent(err) {
		return nil, "", err
	}
	age := map[string]int64{}
	for _, e := range entries[:min(len(entries), maxEntries)] {
		path := filepath.Join(dir, "snapshots", e.Name())
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			commits = append(commits, e.Name())
			age[e.Name()] = info.ModTime().UnixNano()
		}
	}
	if len(commits) == 0 {
		return nil, "", fmt.Errorf("%s has no snapshot of %s%s; %s", dir, r.repo, unfinishedIn(dir), howToGet(r))
	}
	slices.SortFunc(commits, func(a, b string) int {
		if age[a] != age[b] {
			return int(max(min(age[b]-age[a], 1), -1))
		}
		return strings.Compare(a, b)
	})
	if r.revision != "" {
		commit, err := revision(dir, r.revision, commits)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", r, err)
		}
		return []string{commit}, "", nil
	}
	main := readRef(dir, "main")
	i := slices.Index(commits, main)
	switch {
	case i >= 0:
		commits = slices.Insert(slices.Delete(commits, i, i+1), 0, main)
	case len(commits) > 1 && main == "":
		note = fmt.Sprintf("%s: the cache does not say which of %d snapshots is current; took the newest, %.12s", r.repo, len(commits), commits[0])
	case main != "":
		note = fmt.Sprintf("%s: the current revision %.12s is not in the cache; took the snapshot %.12s", r.repo, main, commits[0])
	}
	return commits, note, nil
}

// revision finds the snapshot of a branch, a tag, a commit, or the unambiguous beginning of one.
func revision(dir, name string, commits []string) (string, error) {
	if commit := readRef(dir, name); slices.Contains(commits, commit) {
		return commit, nil
	}
	if slices.Contains(commits, name) {
		return name, nil
	}
	found := ""
	if len(name) >= 4 {
		for _, c := range commits {
			if !strings.HasPrefix(c, name) {
				continue
			}
			if found != "" {
				return "", fmt.Errorf("several snapshots begin with %s", name)
			}
			found = c
		}
	}
	if found == "" {
		return "", fmt.Errorf("the revision %s is not in %s, which has %s", name, dir, list(commits))
	}
	return found, nil
}

// readRef is the commit that a ref of a repository names, empty when there is none. The name has been checked.
func readRef(dir, name string) string {
	path := filepath.Join(dir, "refs", filepath.FromSlash(name))
	// Opening a pipe would wait for somebody to write to it.
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxName))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// findFlat picks a model from llama.cpp's earlier cache, where the file FILE of USER/REPO is USER_REPO_FILE.
func findFlat(dir string, r ref) (*Model, error) {
	paths, err := scan(dir, 1)
	if err != nil {
		if isAbsent(err) {
			return nil, errNotHere
		}
		return nil, err
	}
	prefix := strings.ReplaceAll(r.repo, "/", "_") + "_"
	var mine []string
	for _, path := range paths {
		if len(path) > len(prefix)+len(".gguf") && strings.EqualFold(path[:len(prefix)], prefix) {
			prefix = path[:len(prefix)] // the folder's spelling
			mine = append(mine, path[len(prefix):])
		}
	}
	all := group(mine)
	v, note, err := choose(all, r.quant)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", r.repo, err)
	case v == nil && len(models(all)) > 0:
		return nil, fmt.Errorf("%s is not in %s, which has %s; %s", r, dir, labels(models(all)), howToGet(r))
	case v == nil:
		return nil, errNotHere
	}
	for i := range v.parts {
		v.parts[i] = prefix + v.parts[i]
	}
	v.stem = prefix + v.stem
	path, err := v.whole(dir)
	if err != nil {
		return nil, err
	}
	m := &Model{Path: path, Repo: r.repo, Quant: v.tag}
	if note != "" {
		m.Notes = []string{note}
	}
	return m, nil
}

// notFound is the error for a repository that is in no cache.
func (p Places) notFound(r ref) error {
	var known []string
	for _, root := range p.Caches {
		known = append(known, repos(root)...)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	hint := "which has no model"
	if near := nearest(r.repo, known, 5); len(near) > 0 {
		hint = "which has " + list(near)
	} else if len(known) > 0 {
		hint = "which has " + list(known)
	}
	all := slices.Compact(slices.Concat(p.Caches, p.Flat))
	there := slices.DeleteFunc(slices.Clone(all), func(dir string) bool {
		info, err := os.Stat(dir)
		return err != nil || !info.IsDir()
	})
	where := fmt.Sprintf("it is not in the cache (%s), %s", strings.Join(there, ", "), hint)
	if len(there) == 0 {
		where = fmt.Sprintf("there is no cache to look in (%s)", strings.Join(all, ", "))
	}
	return fmt.Errorf("%s is no file or folder, and as a Hugging Face repository %s; %s", r, where, howToGet(r))
}

// howToGet says how a model comes into the cache.
func howToGet(r ref) string {
	s := "hf download " + r.repo
	if r.revision != "" {
		s += " --revision " + r.revision
	}
	switch {
	case isGGUF(r.quant):
		s += " " + r.quant
	case r.quant != "":
		s += fmt.Sprintf(" --include '*%s*'", r.quant)
	}
	return fmt.Sprintf("Caldera downloads nothing yet, so get it with: %s", s)
}
