package vk

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Names of functions in the sources that are none of a device.
var notOfDevices = map[string]string{
	"vkEnumeratePhysicalDevices": "called before there is a device",
}

// Calls lists what the sources name, and whatever the supplement calls that can
// fail is called where a fault can take its place.
func TestCalls(t *testing.T) {
	if !slices.IsSorted(calls) {
		t.Error("the calls are not in order")
	}
	set := token.NewFileSet()
	files := map[string]*ast.File{}
	for _, path := range must(filepath.Glob("*.go")) {
		if !strings.HasSuffix(path, "_test.go") && path != "calls.go" {
			files[path] = must(parser.ParseFile(set, path, nil, 0))
		}
	}
	name := regexp.MustCompile(`^vk[A-Z]\w+$`)
	named := map[string]bool{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if s, err := strconv.Unquote(l.Value); err == nil && name.MatchString(s) {
					named[s] = true
				}
			}
			return true
		})
	}
	for s := range named {
		if !slices.Contains(calls, s) && notOfDevices[s] == "" {
			t.Errorf("%s is not among the calls", s)
		}
	}
	for _, s := range calls {
		if !named[s] {
			t.Errorf("no source names %s", s)
		}
	}

	// Methods of rawDevice that return a Result.
	failing := map[string]bool{}
	for _, d := range files["supplement.go"].Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil || f.Type.Results == nil {
			continue
		}
		if id, ok := f.Recv.List[0].Type.(*ast.Ident); !ok || id.Name != "rawDevice" {
			continue
		}
		for _, r := range f.Type.Results.List {
			if id, ok := r.Type.(*ast.Ident); ok && id.Name == "Result" {
				failing[f.Name.Name] = true
			}
		}
	}
	if len(failing) < 30 {
		t.Fatalf("%d methods of rawDevice found", len(failing))
	}
	// These wait for what a failed call may have left, and no fault strikes them.
	exempt := []string{"teardown", "Quiesce"}
	for path, f := range files {
		if path == "supplement.go" {
			continue
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || slices.Contains(exempt, fn.Name.Name) {
				continue
			}
			// A call inside a function literal, or a method that is handed over, is made by Device.call.
			ast.Inspect(fn, func(n ast.Node) bool {
				switch x := n.(type) {
				case *ast.FuncLit:
					return false
				case *ast.CallExpr:
					if s, ok := x.Fun.(*ast.SelectorExpr); ok && failing[s.Sel.Name] {
						if in, ok := s.X.(*ast.SelectorExpr); ok && in.Sel.Name == "raw" {
							t.Errorf("%s calls %s where no fault can strike", set.Position(x.Pos()), s.Sel.Name)
						}
					}
				}
				return true
			})
		}
	}
}
