package hub

import (
	"fmt"
	"regexp"
	"strings"
)

// maxName bounds each part of a name in bytes; Hugging Face allows 96 for a repository.
const maxName = 255

// A ref is the name of a repository and what of it is wanted.
type ref struct {
	repo     string // USER/REPO
	revision string // branch, tag or commit; empty for the newest
	quant    string // quantisation or file; empty for the default
}

func (r ref) String() string {
	s := r.repo
	if r.revision != "" {
		s += "@" + r.revision
	}
	if r.quant != "" {
		s += ":" + r.quant
	}
	return s
}

// hosts are what may stand before a repository's name.
var hosts = regexp.MustCompile(`^(?:hf://|(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/)`)

// parseRef reads USER/REPO[@REVISION][:QUANT]. It reports false for what can only be a path, and an error for what is
// meant to be a repository but is no name of one: no part of a name may lead out of the cache.
func parseRef(name string) (r ref, ok bool, err error) {
	rest := name
	host := hosts.FindString(name)
	rest = strings.TrimSuffix(rest[len(host):], "/")
	left, quant, hasQuant := strings.Cut(rest, ":")
	repo, revision, hasRevision := strings.Cut(left, "@")
	path := strings.HasPrefix(name, ".") || strings.HasPrefix(name, "/") || strings.HasPrefix(name, "~") ||
		strings.Count(repo, "/") != 1 || (!hasQuant && isGGUF(name))
	if path && host == "" {
		return ref{}, false, nil
	}
	r = ref{repo: repo, revision: revision}
	user, base, _ := strings.Cut(repo, "/")
	for _, part := range []string{user, base} {
		if err := checkRepoPart(part); err != nil {
			return ref{}, true, fmt.Errorf("%q is neither a file nor the name of a repository (user/repo): %w", name, err)
		}
	}
	if hasRevision {
		if err := checkPath(revision); err != nil {
			return ref{}, true, fmt.Errorf("%q: the revision %q %w", name, revision, err)
		}
	}
	if hasQuant {
		if r.quant, err = parseQuant(quant); err != nil {
			return ref{}, true, fmt.Errorf("%q: %w", name, err)
		}
	}
	return r, true, nil
}

// parseQuant checks what follows the colon; "latest" is the same as nothing.
func parseQuant(s string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("nothing follows the colon; give a quantisation such as Q4_K_M, or a file's name")
	}
	if err := checkPath(s); err != nil {
		return "", fmt.Errorf("the quantisation %q %w", s, err)
	}
	if strings.EqualFold(s, "latest") {
		return "", nil
	}
	return s, nil
}

// checkRepoPart holds a user's or repository's name to the rules of Hugging Face, which also keep it a single plain
// folder name: letters, digits, '-', '_' and '.', no "--" or "..", no '-' or '.' at either end.
func checkRepoPart(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("a part of the name is empty")
	case len(s) > maxName:
		return fmt.Errorf("a part of the name has %d bytes, the limit is %d", len(s), maxName)
	case strings.Contains(s, "..") || strings.Contains(s, "--"):
		return fmt.Errorf("%q contains %q or %q", s, "..", "--")
	case strings.Trim(s, ".-") != s:
		return fmt.Errorf("%q begins or ends with a dot or a dash", s)
	}
	return checkLetters(s, "-_.")
}

// checkPath checks a path relative to a folder of the cache: slashes between plain names.
func checkPath(s string) error {
	if len(s) > maxName {
		return fmt.Errorf("has %d bytes, the limit is %d", len(s), maxName)
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == "" || part == "." || part == ".." {
			return fmt.Errorf("is not a plain name: it may not leave its folder")
		}
	}
	return checkLetters(s, "-_.+/")
}

func checkLetters(s, more string) error {
	for _, c := range s {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune(more, c) {
			return fmt.Errorf("has the character %q", c)
		}
	}
	return nil
}

// isGGUF reports whether a file has the name of a model file.
func isGGUF(name string) bool {
	return len(name) > 5 && strings.EqualFold(name[len(name)-5:], ".gguf")
}
