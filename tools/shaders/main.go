// Command shaders compiles Caldera's kernels to SPIR-V with glslc, those whose sources changed since the
// manifest was written, and validates them. With -check it only reports what is out of date.
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
	"strings"
	"sync"

	"github.com/calderaml/caldera/shaders"
)

func main() {
	dir := flag.String("dir", "shaders", "the folder of the shader sources")
	check := flag.Bool("check", false, "report modules whose SPIR-V does not belong to its source; compile nothing")
	only := flag.String("only", "", "compile only modules whose name begins so, whether changed or not")
	glslc := flag.String("glslc", "glslc", "the compiler")
	flag.Parse()
	if err := run(*dir, *glslc, *only, *check); err != nil {
		fmt.Fprintln(os.Stderr, "shaders:", err)
		os.Exit(1)
	}
}

func run(dir, glslc, only string, check bool) error {
	src := os.DirFS(dir)
	out := filepath.Join(dir, "spirv")
	man, err := shaders.ReadManifest(os.DirFS(out))
	if err != nil {
		return err
	}
	version := ""
	if !check {
		b, err := exec.Command(glslc, "--version").Output()
		if err != nil {
			return fmt.Errorf("%s: %w; install glslc (Debian: apt-get install glslc)", glslc, err)
		}
		version, _, _ = strings.Cut(string(b), "\n")
	}
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
		todo = append(todo, work{m, h, file})
	}
	if check {
		if stale > 0 {
			return fmt.Errorf("%d modules are out of date; run make shaders", stale)
		}
		return nil
	}
	if err := compileAll(dir, glslc, todo, func(w work) error {
		spv, err := os.ReadFile(w.file)
		if err != nil {
			return err
		}
		next[w.module.Name] = shaders.ManifestEntry{Source: w.hash, SPIRV: shaders.Digest(spv), Flags: strings.Join(shaders.GLSLCFlags(w.module), " "), Compiler: version}
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
		if _, ok := next[strings.TrimSuffix(filepath.Base(f), ".spv")]; !ok {
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
	return os.WriteFile(filepath.Join(out, "manifest.json"), append(b, '\n'), 0o644)
}

// work is a module to compile, the digest of its source and the file to write.
type work struct {
	module shaders.Module
	hash   string
	file   string
}

// compileAll compiles modules, as many at a time as there are processors, and calls done for one after the other.
func compileAll(dir, glslc string, todo []work, done func(work) error) error {
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
				err := compile(dir, glslc, w.module, w.file)
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

func compile(dir, glslc string, m shaders.Module, file string) error {
	args := append([]string{}, shaders.GLSLCFlags(m)...)
	args = append(args, "-o", file, m.Source)
	abs, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	args[len(args)-2] = abs
	cmd := exec.Command(glslc, args...)
	cmd.Dir = dir
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", m.Name, err, msg)
	}
	if _, err := exec.LookPath("spirv-val"); err == nil {
		if msg, err := exec.Command("spirv-val", "--target-env", m.Target(), file).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: spirv-val: %w\n%s", m.Name, err, msg)
		}
	}
	return nil
}
