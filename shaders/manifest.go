package shaders

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// A ManifestEntry ties a compiled module to what it was compiled from.
type ManifestEntry struct {
	Source   string `json:"source"` // digest of the source, its includes and the flags
	SPIRV    string `json:"spirv"`  // digest of the compiled file
	Flags    string `json:"flags"`
	Compiler string `json:"compiler"`
}

// A Manifest maps module names to entries; it is spirv/manifest.json.
type Manifest map[string]ManifestEntry

// ReadManifest reads manifest.json from the folder of compiled modules; a missing file is an empty manifest.
func ReadManifest(dir fs.FS) (Manifest, error) {
	b, err := fs.ReadFile(dir, "manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return Manifest{}, nil
	}
	if err != nil {
		return nil, err
	}
	m := Manifest{}
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("spirv/manifest.json: %w", err)
	}
	return m, nil
}

// Digest returns the hexadecimal SHA-256 of b.
func Digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// Fingerprint tells sets of compiled kernels apart.
func Fingerprint() string {
	b, err := spirvFiles.ReadFile("spirv/manifest.json")
	if err != nil {
		return "" // TestManifest
	}
	return Digest(b)
}

// GLSLCFlags returns the compiler flags of a module, relative to the folder of the sources.
func GLSLCFlags(m Module) []string {
	flags := []string{"-O", "--target-env=" + m.Target(), "-Werror", "-Icommon", "-Icommon/dequant"}
	for _, d := range m.Include {
		flags = append(flags, "-I"+d)
	}
	for _, d := range m.Defines {
		flags = append(flags, "-D"+d)
	}
	return flags
}

var includeLine = regexp.MustCompile(`(?m)^#include "([^"]+)"`)

// SourceHash digests everything a module is compiled from: its source, every file it includes, its flags.
func SourceHash(src fs.FS, m Module) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, strings.Join(GLSLCFlags(m), " "))
	dirs := append([]string{".", "common", "common/dequant"}, m.Include...)
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		b, err := fs.ReadFile(src, name)
		if err != nil {
			return fmt.Errorf("module %s: %w", m.Name, err)
		}
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
		for _, inc := range includeLine.FindAllSubmatch(b, -1) {
			found := ""
			for _, d := range dirs {
				p := path.Join(d, string(inc[1]))
				if _, err := fs.Stat(src, p); err == nil {
					found = p
					break
				}
			}
			if found == "" {
				return fmt.Errorf("module %s: %s includes %q, which is in none of %v", m.Name, name, inc[1], dirs)
			}
			if err := add(found); err != nil {
				return err
			}
		}
		return nil
	}
	if err := add(m.Source); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
