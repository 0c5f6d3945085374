package hub

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	commitA = "aaaa0000000000000000000000000000000000aa"
	commitB = "bbbb0000000000000000000000000000000000bb"
)

// put writes a small file, with the folders it needs.
func put(t testing.TB, path string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// A cache is a Hugging Face cache of a test.
type cache struct {
	t    testing.TB
	root string
}

func newCache(t testing.TB) cache { return cache{t, t.TempDir()} }

func (c cache) places() Places { return Places{Caches: []string{c.root}} }

// add puts files of a repository into a snapshot: links to blobs, as huggingface_hub makes them.
func (c cache) add(repo, commit string, files ...string) {
	c.t.Helper()
	dir := filepath.Join(c.root, folderOf(repo))
	for _, f := range files {
		blob := put(c.t, filepath.Join(dir, "blobs", strings.ReplaceAll(commit+f, "/", "_")))
		link := filepath.Join(dir, "snapshots", commit, f)
		if err := os.MkdirAll(filepath.Dir(link), 0o777); err != nil {
			c.t.Fatal(err)
		}
		target, err := filepath.Rel(filepath.Dir(link), blob)
		if err != nil {
			c.t.Fatal(err)
		}
		if err := os.Symlink(target, link); err != nil {
			c.t.Skip(err) // no right to make links
		}
	}
}

func (c cache) ref(repo, name, commit string) {
	c.t.Helper()
	path := put(c.t, filepath.Join(c.root, folderOf(repo), "refs", name))
	if err := os.WriteFile(path, []byte(commit), 0o666); err != nil {
		c.t.Fatal(err)
	}
}

// age sets when a snapshot was made, in hours ago.
func (c cache) age(repo, commit string, hours int) {
	c.t.Helper()
	then := time.Now().Add(-time.Duration(hours) * time.Hour)
	if err := os.Chtimes(filepath.Join(c.root, folderOf(repo), "snapshots", commit), then, then); err != nil {
		c.t.Fatal(err)
	}
}

// parts are the names of a split set's files.
func parts(stem string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("%s-%05d-of-%05d.gguf", stem, i+1, n))
	}
	return out
}

// full is a cache with the repositories that the tests ask for.
func full(t testing.TB) cache {
	c := newCache(t)
	files := []string{"README.md", "mmproj-F16.gguf", "imatrix_unsloth.gguf", "mtp-Q-35B-Q8_0.gguf",
		"Q-35B-Q4_K_M.gguf", "Q-35B-Q8_0.gguf", "Q-35B-UD-Q2_K_XL.gguf", "Q-35B-MXFP4_MOE.gguf", "Q-35B-IQ4_XS.gguf", "Q-35B-UD-IQ4_XS.gguf"}
	files = append(files, parts("UD-Q4_K_XL/Q-35B-UD-Q4_K_XL", 3)...)
	files = append(files, parts("BF16/Q-35B-BF16", 2)...)
	c.add("unsloth/Q-35B-GGUF", commitA, files...)
	c.ref("unsloth/Q-35B-GGUF", "main", commitA+"\n")
	c.add("bart/one", commitA, "one-smol-IQ2_KS.gguf", "config.json")
	c.ref("bart/one", "main", commitA)
	c.add("bart/none", commitA, "config.json", "mmproj-F32.gguf")
	c.ref("bart/none", "main", commitA)
	c.add("bart/eight", commitA, "e-Q6_K.gguf", "e.q8_0.gguf", "e-BF16.gguf")
	c.ref("bart/eight", "main", commitA)
	c.add("bart/others", commitA, "o-Q6_K.gguf", "o-Q5_K_M.gguf")
	c.ref("bart/others", "main", commitA)
	c.add("bart/twins", commitA, "a-Q4_K_M.gguf", "b-Q4_K_M.gguf")
	c.ref("bart/twins", "main", commitA)
	c.add("bart/short", commitA, parts("s-Q4_K_M", 4)[:2]...)
	c.ref("bart/short", "main", commitA)
	return c
}

func TestFindRepo(t *testing.T) {
	c := full(t)
	t.Chdir(t.TempDir())
	const q = "unsloth/Q-35B-GGUF"
	tests := []struct {
		name string
		want string // file below the snapshot
		tag  string
	}{
		{q, "Q-35B-Q4_K_M.gguf", "Q4_K_M"},
		{q + ":latest", "Q-35B-Q4_K_M.gguf", "Q4_K_M"},
		{q + ":q8_0", "Q-35B-Q8_0.gguf", "Q8_0"},
		{q + ":Q2_K_XL", "Q-35B-UD-Q2_K_XL.gguf", "UD-Q2_K_XL"},
		{q + ":ud-q2_k_xl", "Q-35B-UD-Q2_K_XL.gguf", "UD-Q2_K_XL"},
		{q + ":UD-Q4_K_XL", "UD-Q4_K_XL/Q-35B-UD-Q4_K_XL-00001-of-00003.gguf", "UD-Q4_K_XL"},
		{q + ":iq4_xs", "Q-35B-IQ4_XS.gguf", "IQ4_XS"},
		{q + ":BF16", "BF16/Q-35B-BF16-00001-of-00002.gguf", "BF16"},
		{q + ":bf16/q-35b-bf16-00002-of-00002.gguf", "BF16/Q-35B-BF16-00001-of-00002.gguf", "BF16"},
		{q + ":mxfp4_moe", "Q-35B-MXFP4_MOE.gguf", "MXFP4_MOE"},
		{q + ":mmproj-F16.gguf", "mmproj-F16.gguf", "F16"},
		{q + "@main:Q8_0", "Q-35B-Q8_0.gguf", "Q8_0"},
		{q + "@" + commitA[:6], "Q-35B-Q4_K_M.gguf", "Q4_K_M"},
		{"hf.co/" + q + ":Q8_0", "Q-35B-Q8_0.gguf", "Q8_0"},
		{"https://huggingface.co/" + q + "/", "Q-35B-Q4_K_M.gguf", "Q4_K_M"},
		{"hf://" + q, "Q-35B-Q4_K_M.gguf", "Q4_K_M"},
		{"Unsloth/q-35b-gguf", "Q-35B-Q4_K_M.gguf", "Q4_K_M"},
		{"bart/one", "one-smol-IQ2_KS.gguf", "IQ2_KS"},
		{"bart/one:smol-iq2_ks", "one-smol-IQ2_KS.gguf", "IQ2_KS"},
		{"bart/eight", "e.q8_0.gguf", "Q8_0"},
		{"bart/twins:b-Q4_K_M.gguf", "b-Q4_K_M.gguf", "Q4_K_M"},
		{"bart/twins:a-Q4_K_M", "a-Q4_K_M.gguf", "Q4_K_M"},
	}
	for _, tt := range tests {
		m, err := c.places().Find(tt.name)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		rel, _ := filepath.Rel(c.root, m.Path)
		_, file, _ := strings.Cut(filepath.ToSlash(rel), "/snapshots/"+commitA+"/")
		if file != tt.want || m.Quant != tt.tag || m.Commit != commitA || len(m.Notes) > 0 {
			t.Errorf("%s: %s of %s, %q, notes %q", tt.name, rel, m.Commit, m.Quant, m.Notes)
		}
		if _, err := os.ReadFile(m.Path); err != nil {
			t.Error(err)
		}
	}
	m, err := c.places().Find("bart/others")
	if err != nil || filepath.Base(m.Path) != "o-Q5_K_M.gguf" || len(m.Notes) != 1 || !strings.Contains(m.Notes[0], "the others are Q6_K") {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestFindErrors(t *testing.T) {
	c := full(t)
	dir := t.TempDir()
	t.Chdir(dir)
	put(t, filepath.Join(dir, "model.gguf"))
	put(t, filepath.Join(c.root, folderOf("bart/short"), "blobs", "1234.incomplete"))
	tests := []struct {
		name string
		want []string // in the message
	}{
		{"", []string{"empty"}},
		{"a\x00b", []string{"NUL"}},
		{"modle.gguf", []string{"modle.gguf: no such file", "did you mean model.gguf?"}},
		{"models/absent.gguf", []string{"models/absent.gguf: no such file"}},
		{"nothing", []string{"nothing: no such file or folder"}},
		{"model.gguf/x/y/z", []string{"no such file"}},
		{"/no/such/model.gguf", []string{"no such file"}},
		{"unsloth/Q-35B-GGUF:Q3_K_M", []string{"unsloth/Q-35B-GGUF:Q3_K_M", "BF16, IQ4_XS, MXFP4_MOE, Q4_K_M, Q8_0, UD-IQ4_XS, UD-Q2_K_XL, UD-Q4_K_XL",
			"downloads nothing", "hf download unsloth/Q-35B-GGUF --include '*Q3_K_M*'"}},
		{"unsloth/Q-35B-GGUF:mmproj", []string{"Q4_K_M"}},
		{"unsloth/Q-35B-GGUF:none.gguf", []string{"hf download unsloth/Q-35B-GGUF none.gguf"}},
		{"unsloth/Q-35B-GGUF:K_M", []string{"is not in"}},
		{"unsloth/Q-35B-GGUF@v2", []string{"revision v2", commitA}},
		{"unsloth/Q-35B", []string{"no file or folder", c.root, "which has unsloth/Q-35B-GGUF;", "hf download unsloth/Q-35B"}},
		{"unslot/Q-35B-GUF", []string{"which has unsloth/Q-35B-GGUF;"}},
		{"someone/else", []string{"which has bart/eight, bart/none, bart/one"}},
		{"bart/none", []string{"no model file"}},
		{"bart/twins", []string{"a-Q4_K_M.gguf, b-Q4_K_M.gguf", "after the colon"}},
		{"bart/short", []string{"2 of 4 parts", "s-Q4_K_M-00003-of-00004.gguf, s-Q4_K_M-00004-of-00004.gguf", "1 unfinished download"}},
		{"a/..", []string{"neither a file nor the name"}},
		{"../b:Q4", []string{"no such file"}},
		{"hf.co/../b", []string{"neither"}},
		{"hf.co/a", []string{"neither"}},
		{`a\b/c`, []string{`'\\'`}},
		{"a/b c", []string{"' '"}},
		{"a--b/c", []string{`"--"`}},
		{"-a/c", []string{"begins or ends"}},
		{"a/b:", []string{"nothing follows the colon"}},
		{"a/b:../../x", []string{"may not leave"}},
		{"a/b:/x", []string{"may not leave"}},
		{`a/b:x\y`, []string{`'\\'`}},
		{"a/b:x:y", []string{"':'"}},
		{"a/b@../../../x", []string{"may not leave"}},
		{"a/b@", []string{"may not leave"}},
		{"a/" + strings.Repeat("b", 300), []string{"the limit is 255"}},
	}
	for _, tt := range tests {
		m, err := c.places().Find(tt.name)
		if err == nil {
			t.Errorf("%q: %+v", tt.name, m)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v; want %q in it", tt.name, err, want)
			}
		}
	}
	if _, err := (Places{Caches: []string{filepath.Join(dir, "absent")}}).Find("a/b"); err == nil || !strings.Contains(err.Error(), "no cache to look in ("+filepath.Join(dir, "absent")) {
		t.Errorf("without a cache: %v", err)
	}
	if _, err := (Places{}).Find("a/b"); err == nil || !strings.Contains(err.Error(), "no cache to look in") {
		t.Errorf("without places: %v", err)
	}
}

// What exists as a path is not looked for in the cache.
func TestPathWins(t *testing.T) {
	c := full(t)
	t.Chdir(t.TempDir())
	put(t, "bart/one")
	if m, err := c.places().Find("bart/one"); err != nil || m.Path != "bart/one" || m.Repo != "" {
		t.Errorf("file: %+v, %v", m, err)
	}
	put(t, "bart/eight/mine.gguf")
	if m, err := c.places().Find("bart/eight"); err != nil || m.Path != filepath.Join("bart", "eight", "mine.gguf") {
		t.Errorf("folder: %+v, %v", m, err)
	}
}

func TestSnapshots(t *testing.T) {
	const repo = "u/r"
	find := func(t *testing.T, c cache, name string) (string, []string) {
		t.Helper()
		m, err := c.places().Find(name)
		if err != nil {
			return err.Error(), nil
		}
		return m.Commit[:1] + " " + filepath.Base(m.Path), m.Notes
	}
	c := newCache(t)
	c.add(repo, commitA, "m-Q8_0.gguf", "m-Q6_K.gguf")
	c.add(repo, commitB, "m-Q8_0.gguf")
	c.age(repo, commitA, 1)
	c.age(repo, commitB, 2)
	got, notes := find(t, c, repo)
	if got != "a m-Q8_0.gguf" || len(notes) != 1 || !strings.Contains(notes[0], "newest") {
		t.Errorf("without refs: %s, %q", got, notes)
	}
	c.ref(repo, "main", commitB)
	if got, notes := find(t, c, repo); got != "b m-Q8_0.gguf" || notes != nil {
		t.Errorf("refs/main: %s, %q", got, notes)
	}
	if got, notes := find(t, c, repo+":Q6_K"); got != "a m-Q6_K.gguf" || len(notes) != 1 || !strings.Contains(notes[0], "older aaaa") {
		t.Errorf("only an older snapshot has it: %s, %q", got, notes)
	}
	if got, _ := find(t, c, repo+"@main:Q6_K"); !strings.Contains(got, "which has Q8_0") {
		t.Errorf("asked for a revision: %s", got)
	}
	if got, _ := find(t, c, repo+"@aaaa"); got != "a m-Q8_0.gguf" {
		t.Errorf("beginning of a commit: %s", got)
	}
	c.ref(repo, "pr/1", commitA)
	if got, _ := find(t, c, repo+"@pr/1"); got != "a m-Q8_0.gguf" {
		t.Errorf("refs/pr/1: %s", got)
	}
	// The file may be damaged, or say what it likes.
	for _, text := range []string{"", "cccc", "../../../..", "/", strings.Repeat("a", 5000)} {
		c.ref(repo, "main", text)
		if got, _ := find(t, c, repo); got != "a m-Q8_0.gguf" {
			t.Errorf("refs/main %.20q: %s", text, got)
		}
	}
	// A split set that is whole only in an older snapshot.
	c.ref(repo, "main", commitB)
	c.add(repo, commitA, parts("m-Q4_K_M", 2)...)
	c.add(repo, commitB, parts("m-Q4_K_M", 2)[:1]...)
	if got, notes := find(t, c, repo+":Q4_K_M"); got != "a m-Q4_K_M-00001-of-00002.gguf" || len(notes) != 1 {
		t.Errorf("whole in the older: %s, %q", got, notes)
	}
}

// A link whose blob is gone, or still being downloaded, is named.
func TestBrokenLinks(t *testing.T) {
	c := newCache(t)
	t.Chdir(t.TempDir())
	c.add("u/r", commitA, append(parts("m-Q4_K_M", 2), "m-Q8_0.gguf")...)
	c.ref("u/r", "main", commitA)
	blobs := filepath.Join(c.root, folderOf("u/r"), "blobs")
	for _, name := range []string{"m-Q8_0.gguf", "m-Q4_K_M-00002-of-00002.gguf"} {
		blob := filepath.Join(blobs, commitA+name)
		if err := os.Remove(blob); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(c.root, folderOf("u/r"), "snapshots", commitA, name)
		for _, x := range []string{"u/r:" + name, link} {
			if _, err := c.places().Find(x); err == nil || !strings.Contains(err.Error(), name+" is a link to "+blob+", which is not there; download") {
				t.Errorf("%s: %v", x, err)
			}
		}
		put(t, blob+".0f3a.incomplete")
		if _, err := c.places().Find("u/r:" + name); err == nil || !strings.Contains(err.Error(), "unfinished ("+blob+".0f3a.incomplete)") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFindFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, f := range []string{
		"one/model.gguf", "one/mmproj-model-f16.gguf", "one/MTP-model.GGUF", "one/notes.txt", "one/model.imatrix.gguf",
		"deep/.cache/huggingface/download/x.gguf", "deep/README.md",
		"two/a-Q4_K_M.gguf", "two/b-Q8_0.gguf", "side/mmproj-F16.gguf", "empty/README.md", "short/s-00001-of-00002.gguf",
		"both/top.gguf", "both/sub/other.gguf", "odd/x-00003-of-00002.gguf",
	} {
		put(t, f)
	}
	for _, f := range slices.Concat(parts("set/UD/s-UD-Q4_K_XL", 2), parts("deep/Q8_0/d-Q8_0", 3), parts("two/c-BF16", 2)) {
		put(t, f)
	}
	for name, want := range map[string]string{
		"one": "one/model.gguf", "one/": "one/model.gguf", "./one": "one/model.gguf",
		"set": "set/UD/s-UD-Q4_K_XL-00001-of-00002.gguf", "set/UD": "set/UD/s-UD-Q4_K_XL-00001-of-00002.gguf",
		"deep": "deep/Q8_0/d-Q8_0-00001-of-00003.gguf", "two:q8_0": "two/b-Q8_0.gguf", "two:c-BF16": "two/c-BF16-00001-of-00002.gguf",
		"both": "both/top.gguf", "odd": "odd/x-00003-of-00002.gguf",
		"two":      "!two holds 3 models: a-Q4_K_M.gguf, b-Q8_0.gguf, c-BF16 (2 parts); name one of them, or add its quantisation: two:Q4_K_M",
		"two:Q6_K": "!two has nothing that is called Q6_K, only a-Q4_K_M.gguf", "side": "!only what goes with one: mmproj-F16.gguf",
		"empty": "!empty holds no GGUF file", "short": "!1 of 2 parts are missing from short: s-00002-of-00002.gguf", "two:..": "!may not leave",
		".": "!models", "two:": "!nothing follows the colon",
	} {
		m, err := Places{}.Find(name)
		message, fails := strings.CutPrefix(want, "!")
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), message)):
			t.Errorf("%s: %+v, %v; want %q", name, m, err, message)
		case !fails && (err != nil || filepath.ToSlash(m.Path) != want):
			t.Errorf("%s: %+v, %v; want %s", name, m, err, want)
		}
	}
	// A loop of links ends.
	if err := os.Symlink("..", "deep/Q8_0/up"); err == nil {
		if m, err := (Places{}).Find("empty/../deep/Q8_0"); err != nil {
			t.Errorf("%+v, %v", m, err)
		}
	}
}

// The folder of a repository in a cache is a name of it.
func TestFindRepoFolder(t *testing.T) {
	c := full(t)
	m, err := Places{}.Find(filepath.Join(c.root, "models--unsloth--Q-35B-GGUF") + ":q8_0")
	if err != nil || m.Repo != "unsloth/Q-35B-GGUF" || filepath.Base(m.Path) != "Q-35B-Q8_0.gguf" {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestFlat(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(t.TempDir())
	p := Places{Caches: []string{filepath.Join(dir, "absent")}, Flat: []string{dir}}
	for _, f := range slices.Concat(
		[]string{"org_Q-GGUF_Q-Q4_K_M.gguf", "org_Q-GGUF_Q-Q8_0.gguf", "org_Q-GGUF_mmproj-Q.gguf", "org_Q_Q-Q5_0.gguf",
			"manifest=org=Q-GGUF=latest.json", "org_Q-GGUF_Q-BF16.gguf.downloadInProgress", "org_Half_h-Q4_K_M-00001-of-00002.gguf"},
		parts("org_Q-GGUF_UD-Q2_K_XL_Q-UD-Q2_K_XL", 2)) {
		put(t, filepath.Join(dir, f))
	}
	for name, want := range map[string]string{
		"org/Q-GGUF": "org_Q-GGUF_Q-Q4_K_M.gguf", "org/q-gguf:q8_0": "org_Q-GGUF_Q-Q8_0.gguf", "org/Q": "org_Q_Q-Q5_0.gguf",
		"org/Q-GGUF:Q2_K_XL": "org_Q-GGUF_UD-Q2_K_XL_Q-UD-Q2_K_XL-00001-of-00002.gguf",
		"org/Q-GGUF:BF16":    "!which has Q4_K_M, Q8_0, UD-Q2_K_XL", "org/Half": "!org_Half_h-Q4_K_M-00002-of-00002.gguf", "org/None": "!no file or folder",
		"org/Q-GGUF@main": "!no file or folder",
	} {
		m, err := p.Find(name)
		message, fails := strings.CutPrefix(want, "!")
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), message)):
			t.Errorf("%s: %+v, %v; want %q", name, m, err, message)
		case !fails && (err != nil || m.Path != filepath.Join(dir, want)):
			t.Errorf("%s: %+v, %v; want %s", name, m, err, want)
		}
	}
}

func TestDefault(t *testing.T) {
	home := t.TempDir()
	vars := []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "LLAMA_CACHE"}
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	for _, tt := range []struct {
		env  map[string]string
		want string
	}{
		{nil, filepath.Join(home, ".cache", "huggingface", "hub")},
		{map[string]string{"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"},
		{map[string]string{"XDG_CACHE_HOME": "/x", "HF_HOME": "/h"}, "/h/hub"},
		{map[string]string{"HF_HOME": "~/h"}, filepath.Join(home, "h", "hub")},
		{map[string]string{"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"},
		{map[string]string{"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, "/new"},
	} {
		for _, v := range vars {
			t.Setenv(v, tt.env[v])
		}
		if p := Default(); len(p.Caches) != 1 || p.Caches[0] != filepath.FromSlash(tt.want) || len(p.Flat) != 1 {
			t.Errorf("%v: %+v, want %s", tt.env, p, tt.want)
		}
	}
	t.Setenv("LLAMA_CACHE", "/llama")
	if p := Default(); len(p.Caches) != 2 || p.Caches[1] != "/llama" || len(p.Flat) != 1 || p.Flat[0] != "/llama" {
		t.Errorf("%+v", p)
	}
}

func TestTagOf(t *testing.T) {
	for stem, want := range map[string]string{
		"Qwen3.5-35B-A3B-Q4_K_M": "Q4_K_M", "Qwen3.5-35B-A3B-UD-Q4_K_XL": "UD-Q4_K_XL", "qwen3-next.q8_0": "Q8_0", "m-IQ2_XXS": "IQ2_XXS",
		"m-MXFP4_MOE": "MXFP4_MOE", "m-NVFP4": "NVFP4", "m_F16": "F16", "m-bf16": "BF16", "BF16/m": "BF16", "Q8_0/m-Q4_0": "Q4_0", "m-TQ1_0": "TQ1_0",
		"Q4_K_M": "Q4_K_M", "m-Q4_K_M-imat": "Q4_K_M", "m-F16.Q6_K": "Q6_K", "m-F16-Q6_K": "Q6_K", "model": "", "Qwen3-30B": "", "FAQ4": "", "m-Q4_K_Mx y": "",
	} {
		if got := tagOf(stem); got != want {
			t.Errorf("%s: %q, want %q", stem, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"kitten", "sitting", 3}, {"ab", "ba", 2}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("%q and %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
