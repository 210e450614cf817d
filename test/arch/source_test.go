package arch_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// A file is one parsed Go source of the module.
type file struct {
	path  string // relative to the root of the module, with slashes
	fset  *token.FileSet
	ast   *ast.File
	lines int
}

// A tree is the sources of one module, and every go.mod at or below its root.
type tree struct {
	module string
	files  []*file
	mods   map[string]string // path to content
}

// A violation is one place that breaks a rule. Its key names it in the table
// of exceptions, and stays the same while lines move.
type violation struct {
	key, at, what string
}

// load parses all Go files of the module in fsys. It leaves out what the go
// command ignores, and nested modules, of which it keeps the go.mod.
func load(fsys fs.FS) (*tree, error) {
	t := &tree{mods: map[string]string{}}
	var nested []string
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && ignored(d.Name()):
			return fs.SkipDir
		case d.IsDir():
			if _, err := fs.Stat(fsys, path.Join(p, "go.mod")); err == nil && p != "." {
				nested = append(nested, p)
			}
			return nil
		case d.Name() == "go.mod":
			var b []byte
			b, err = fs.ReadFile(fsys, p)
			t.mods[p] = string(b)
			return err
		case path.Ext(p) != ".go" || ignored(d.Name()) || within(p, nested...):
			return nil
		}
		f, err := parse(fsys, p)
		t.files = append(t.files, f)
		return err
	})
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(t.mods["go.mod"]) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			t.module = strings.TrimSpace(name)
		}
	}
	if t.module == "" {
		return nil, errors.New("no module line in go.mod")
	}
	return t, nil
}

func parse(fsys fs.FS, p string) (*file, error) {
	src, err := fs.ReadFile(fsys, p)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, p, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	return &file{path: p, fset: fset, ast: parsed, lines: strings.Count(string(src), "\n")}, nil
}

// ignored reports whether the go command takes no notice of a file or folder
// of that name.
func ignored(name string) bool {
	return name == "testdata" || name == "vendor" || name == "node_modules" || name[0] == '.' || name[0] == '_'
}

// within reports whether p is one of dirs or below one of them.
func within(p string, dirs ...string) bool {
	for _, d := range dirs {
		if p == d || strings.HasPrefix(p, d+"/") {
			return true
		}
	}
	return false
}

func (f *file) dir() string  { return path.Dir(f.path) }
func (f *file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// testOnly reports whether f never becomes part of a program of the product:
// a test, something below test/, or a package of helpers such as bus/bustest.
func (f *file) testOnly() bool {
	return f.isTest() || within(f.path, "test") || strings.HasSuffix(f.dir(), "test")
}

func (f *file) violation(n ast.Node, format string, args ...any) violation {
	line := f.fset.Position(n.Pos()).Line
	return violation{key: f.path, at: f.path + ":" + strconv.Itoa(line), what: fmt.Sprintf(format, args...)}
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value // the parser has let through only what is quoted
	}
	return p
}

// A use is one mention of a name of an imported package.
type use struct {
	ast.Node
	name string
}

// uses finds where f mentions one of names from the package pkg: called or
// passed on, under the package's own name, a local one, or by a dot import.
func (f *file) uses(pkg string, names ...string) []use {
	wanted := map[string]bool{}
	for _, n := range names {
		wanted[n] = true
	}
	var found []use
	for _, spec := range f.ast.Imports {
		if importPath(spec) != pkg {
			continue
		}
		local := path.Base(pkg)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == local && wanted[n.Sel.Name] {
					found = append(found, use{n, path.Base(pkg) + "." + n.Sel.Name})
				}
			case *ast.Ident:
				if local == "." && wanted[n.Name] {
					found = append(found, use{n, path.Base(pkg) + "." + n.Name})
				}
			}
			return true
		})
	}
	return found
}
