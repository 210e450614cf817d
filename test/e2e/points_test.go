package e2e_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sourcePoints lists the names of all crash points in the sources. A name that
// ends in a record's kind stands for one name per kind.
func sourcePoints(tb testing.TB) []string {
	tb.Helper()
	const root = "../.."
	kinds := sourceKinds(tb, filepath.Join(root, "subjects/fleet/event.go"))
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "test"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !isPoint(call.Fun) || len(call.Args) != 1 {
				return true
			}
			found, ok := pointNames(call.Args[0], kinds)
			if !ok {
				tb.Errorf("%s: the sweep cannot tell which names this crash point has", set.Position(call.Pos()))
			}
			names = append(names, found...)
			return true
		})
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// isPoint reports whether fn is crash.Point.
func isPoint(fn ast.Expr) bool {
	s, ok := fn.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Point" {
		return false
	}
	pkg, ok := s.X.(*ast.Ident)
	return ok && pkg.Name == "crash"
}

// pointNames reads "name", or "prefix_" + record.Kind.
func pointNames(arg ast.Expr, kinds []string) ([]string, bool) {
	switch arg := arg.(type) {
	case *ast.BasicLit:
		name, err := strconv.Unquote(arg.Value)
		return []string{name}, err == nil
	case *ast.BinaryExpr:
		prefix, ok := pointNames(arg.X, nil)
		kind, isKind := arg.Y.(*ast.SelectorExpr)
		if !ok || arg.Op != token.ADD || !isKind || kind.Sel.Name != "Kind" {
			return nil, false
		}
		var names []string
		for _, k := range kinds {
			names = append(names, prefix[0]+k)
		}
		return names, true
	}
	return nil, false
}

// sourceKinds lists the values of the constants Kind… .
func sourceKinds(tb testing.TB, path string) (kinds []string) {
	tb.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		tb.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(v.Names[0].Name, "Kind") {
			return true
		}
		lit, ok := v.Values[0].(*ast.BasicLit)
		if !ok {
			return true
		}
		kind, err := strconv.Unquote(lit.Value)
		if err != nil {
			tb.Fatal(err)
		}
		kinds = append(kinds, kind)
		return true
	})
	if len(kinds) == 0 {
		tb.Fatalf("%s declares no kinds of records", path)
	}
	return kinds
}
