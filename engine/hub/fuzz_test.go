package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzFind looks any name up in a cache whose refs say anything and that has links of any name. Nothing outside the
// cache is ever found by a repository's name, and a message fits a screen.
func FuzzFind(f *testing.F) {
	for _, name := range []string{
		"u/r", "u/r:Q4_K_M", "u/r@main:latest", "u/r:m-Q4_K_M.gguf", "U/R:q8_0", "hf.co/u/r:UD-Q2_K_XL", "https://huggingface.co/u/r/",
		"../secret", "u/../secret", "u/r:../../../secret.gguf", "u/r@../../../x", `u\r`, "u/r\x00", "/u/r", "u//r", "u/r:", "u/r@:", "u--r/x", "~/u", "a:b:c",
	} {
		for _, main := range []string{commitA, commitB, "", "../../..", "/", "..\\x"} {
			f.Add(name, main, "m-Q4_K_M.gguf")
		}
	}
	f.Add("u/r:x", commitA, "x-00001-of-99999.gguf")
	f.Add("u/r:x", commitA, "x-00000-of-00001.gguf")
	f.Add("u/r:x.gguf", commitA, "x-00002-of-00001.gguf")
	base := f.TempDir()
	root := filepath.Join(base, "hub")
	put(f, filepath.Join(base, "secret.gguf"))
	put(f, filepath.Join(base, "x", "snapshots", commitB, "secret.gguf"))
	c := cache{f, root}
	c.add("u/r", commitA, "m-Q4_K_M.gguf", "sub/m-UD-Q2_K_XL.gguf", "mmproj-F16.gguf")
	c.add("u/r", commitB, "m-Q8_0.gguf")
	f.Fuzz(func(t *testing.T, name, main, file string) {
		if len(name) > 1000 || len(main) > 1000 || len(file) > 200 {
			return
		}
		c := cache{t, root}
		c.ref("u/r", "main", main)
		if !strings.ContainsAny(file, "/\\\x00") && file != "" && file != "." && file != ".." {
			link := filepath.Join(root, folderOf("u/r"), "snapshots", commitA, file)
			if os.Symlink("nowhere", link) == nil {
				defer os.Remove(link)
			}
		}
		r, ok, err := parseRef(name)
		if err != nil || !ok {
			if r != (ref{}) {
				t.Fatalf("%q: refused, but %+v", name, r)
			}
			return
		}
		if again, ok, err := parseRef(r.String()); !ok || err != nil || again != r {
			t.Fatalf("%q is %+v, and written again %+v, %v, %v", name, r, again, ok, err)
		}
		m, err := c.places().findRepo(r)
		if err != nil {
			if n := len(err.Error()); n > 2000+2*maxListed*len(file) {
				t.Fatalf("%q: a message of %d bytes: %v", name, n, err)
			}
			return
		}
		path, err := filepath.EvalSymlinks(m.Path)
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		inside, err := filepath.EvalSymlinks(root)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(path, inside+string(filepath.Separator)) || !isGGUF(m.Path) {
			t.Fatalf("%q: found %s", name, path)
		}
	})
}

// FuzzGroup sorts any names into models: each name into one of them, and every model into what the name of a
// quantisation, a file or a word of it finds.
func FuzzGroup(f *testing.F) {
	f.Add("a-Q4_K_M.gguf\nb/c-UD-Q2_K_XL-00001-of-00002.gguf\nb/c-UD-Q2_K_XL-00002-of-00002.gguf", "q2_k_xl")
	f.Add("x-00001-of-00003.gguf\nx-00001-of-00004.gguf\nx.gguf\nx.GGUF", "x.gguf")
	f.Add("-00001-of-00001.gguf\nmmproj.gguf\n..gguf", "mmproj.gguf")
	f.Fuzz(func(t *testing.T, lines, want string) {
		var paths []string
		seen := map[string]bool{}
		for line := range strings.SplitSeq(lines, "\n") {
			if isGGUF(line) && !seen[line] {
				paths = append(paths, line)
				seen[line] = true
			}
		}
		n := 0
		for _, v := range group(paths) {
			for no, part := range v.parts {
				if !seen[part] || no < 1 || no > v.count || v.count > 99999 {
					t.Fatalf("%q: part %d of %d is %q", paths, no, v.count, part)
				}
				if v.fit(part) != fitExact {
					t.Fatalf("%q does not name itself", part)
				}
				n++
			}
			if v.tag != "" && v.fit(v.tag) != fitExact {
				t.Fatalf("%q does not fit its own tag %q", v.stem, v.tag)
			}
		}
		if n != len(paths) {
			t.Fatalf("%d of %d paths of %q", n, len(paths), paths)
		}
		choose(group(paths), want)
	})
}
