// Command shaders compiles Caldera's kernels to SPIR-V with glslc, those whose sources changed since the
// manifest was written, and validates them. With -check it only reports what is out of date.
//
// Modules with cooperative matrices need a newer compiler than Debian 12 has, which the third rig brings (make rig). Without it
// their SPIR-V and its line in the manifest stay as they are, and the command says so and fails in the end.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/calderaml/caldera/shaders"
)

func main() {
	dir := flag.String("dir", "shaders", "the folder of the shader sources")
	check := flag.Bool("check", false, "report modules whose SPIR-V does not belong to its source; compile nothing")
	only := flag.String("only", "", "compile only modules whose name begins so, whether changed or not")
	glslc := flag.String("glslc", "glslc", "the compiler")
	rig := flag.String("rig", "scripts/with-rig", "what runs the glslc and spirv-val of modules with cooperative matrices; empty if the ones of this machine can compile them")
	flag.Parse()
	if err := run(*dir, *glslc, *rig, *only, *check); err != nil {
		fmt.Fprintln(os.Stderr, "shaders:", err)
		os.Exit(1)
	}
}

// tools are a compiler and a validator, with what runs them.
type tools struct {
	glslc, val []string
	version    string // of the compiler
}

// plainTools are those of this machine, of which the validator may be missing.
func plainTools(glslc string) (t tools, err error) {
	t.glslc = []string{glslc}
	if val, err := exec.LookPath("spirv-val"); err == nil {
		t.val = []string{val}
	}
	return t, t.find()
}

// rigTools are those that a program runs.
func rigTools(rig string) (t tools, err error) {
	if rig, err = filepath.Abs(rig); err != nil {
		return t, err
	}
	t.glslc, t.val = []string{rig, "glslc"}, []string{rig, "spirv-val"}
	return t, t.find()
}

// find asks the compiler for its version.
func (t *tools) find() error {
	b, err := command(t.glslc, "--version").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return fmt.Errorf("%s: %w", strings.Join(t.glslc, " "), err)
	}
	t.version, _, _ = strings.Cut(string(b), "\n")
	return nil
}

func command(words []string, args ...string) *exec.Cmd {
	return exec.Command(words[0], append(slices.Clone(words[1:]), args...)...)
}

func run(dir, glslc, rig, only string, check bool) error {
	src := os.DirFS(dir)
	out := filepath.Join(dir, "spirv")
	man, err := shaders.ReadManifest(os.DirFS(out))
	if err != nil {
		return err
	}
	var plain tools
	if !check {
		if plain, err = plainTools(glslc); err != nil {
			return fmt.Errorf("%w; install glslc (Debian: apt-get install glslc)", err)
		}
	}
	newer := plain
	var noRig error // why there are none for cooperative matrices
	if rig != "" && !check {
		newer, noRig = rigTools(rig)
	}
	var left []string
	next := shaders.Manifest{}
	stale := 0
	var todo []work
	for _, m := range shaders.Modules() {
		h, err := shaders.SourceHash(src, m)
		if err != nil {
			return err
		}
		old, known := man[m.Name]
		file := filepath.Join(out, m.Name+".spv")
		_, statErr := os.Stat(file)
		fresh := known && old.Source == h && statErr == nil
		if only != "" && strings.HasPrefix(m.Name, only) {
			fresh = false
		}
		if fresh {
			next[m.Name] = old
			continue
		}
		stale++
		if check {
			fmt.Println(m.Name)
			continue
		}
		w := work{m, h, file, plain}
		if m.Matrices {
			w.tools = newer
			if noRig != nil {
				left = append(left, m.Name)
				if known {
					next[m.Name] = old
				}
				continue
			}
		}
		todo = append(todo, w)
	}
	if check {
		if stale > 0 {
			return fmt.Errorf("%d modules are out of date; run make shaders", stale)
		}
		return nil
	}
	if err := compileAll(dir, todo, func(w work) error {
		spv, err := os.ReadFile(w.file)
		if err != nil {
			return err
		}
		next[w.module.Name] = shaders.ManifestEntry{Source: w.hash, SPIRV: shaders.Digest(spv), Flags: strings.Join(shaders.GLSLCFlags(w.module), " "), Compiler: w.tools.version}
		fmt.Println("compiled", w.module.Name)
		return nil
	}); err != nil {
		return err
	}
	// Modules that no longer exist take their SPIR-V with them.
	files, err := filepath.Glob(filepath.Join(out, "*.spv"))
	if err != nil {
		return err
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".spv")
		if _, ok := next[name]; !ok && !slices.Contains(left, name) {
			if err := os.Remove(f); err != nil {
				return err
			}
			fmt.Println("removed", filepath.Base(f))
		}
	}
	b, err := json.MarshalIndent(next, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "manifest.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%d modules with cooperative matrices were left as they are, as nothing here compiles them (make rig fetches what does): %s\n%w",
			len(left), strings.Join(left, ", "), noRig)
	}
	return nil
}

// work is a module to compile, the digest of its source and the file to write.
type work struct {
	module shaders.Module
	hash   string
	file   string
	tools  tools
}

// compileAll compiles modules, as many at a time as there are processors, and calls done for one after the other.
func compileAll(dir string, todo []work, done func(work) error) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	next := 0
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				mu.Lock()
				if failed != nil || next == len(todo) {
					mu.Unlock()
					return
				}
				w := todo[next]
				next++
				mu.Unlock()
				err := compile(dir, w.tools, w.module, w.file)
				mu.Lock()
				if err == nil {
					err = done(w)
				}
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

func compile(dir string, with tools, m shaders.Module, file string) error {
	args := append([]string{}, shaders.GLSLCFlags(m)...)
	args = append(args, "-o", file, m.Source)
	abs, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	args[len(args)-2] = abs
	cmd := command(with.glslc, args...)
	cmd.Dir = dir
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", m.Name, err, msg)
	}
	if with.val != nil {
		if msg, err := command(with.val, "--target-env", m.Target(), file).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: spirv-val: %w\n%s", m.Name, err, msg)
		}
	}
	return nil
}
