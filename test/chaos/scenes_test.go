//go:build linux

package main

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

// planting is something wrong in evidence that was good, and what the checker
// says of it.
type planting struct {
	name, want string
	plant      func(f *findings)
}

// scene is what a short run leaves behind in which nothing is wrong, what of the
// checks it is good for, and what is planted into it.
type scene struct {
	name     string
	good     func() *findings
	judge    func(f *findings)
	planting []planting
}

func scenes() []scene {
	return []scene{
		{"fleet", good, judgeFleet, plantedInFleet()},
		{"bounds", frugal, judgeBounds, excesses()},
		{"humans", toldOften, (*findings).checkHumans, plantedInCalls()},
		{"traffic", traffic, judgeTraffic, plantedInTraffic()},
		{"clients", clients, judgeClients, plantedInClients()},
		{"gaps", killed, (*findings).checkGaps, plantedInGaps()},
		{"pools", toiling, (*findings).checkPools, plantedInPools()},
	}
}

// verdict is what the checker says, a line for each violation.
func verdict(f *findings, judge func(f *findings)) string {
	judge(f)
	var s strings.Builder
	for _, v := range f.found {
		s.WriteString(v.String() + "\n")
	}
	return s.String()
}

// TestCheckerFinds plants into the evidence what no bug in the program makes
// easily.
func TestCheckerFinds(t *testing.T) {
	t.Parallel()
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			if found := verdict(s.good(), s.judge); found != "" {
				t.Fatalf("in good evidence:\n%s", found)
			}
			for _, p := range s.planting {
				t.Run(p.name, func(t *testing.T) {
					t.Parallel()
					f := s.good()
					p.plant(f)
					if found := verdict(f, s.judge); !strings.Contains(found, p.want) {
						t.Errorf("no %q in:\n%s", p.want, found)
					}
				})
			}
		})
	}
}

// site is a place in the checker that names a violation.
type site struct {
	at, invariant string
	says          *regexp.Regexp // nil: what it says is put together elsewhere
}

var verb = regexp.MustCompile(`%[-+#. 0-9]*[a-z]`)

// sites are all of them. What is measured while the processes run (wrong) cannot
// be planted into evidence: a bug must be seen to be called so.
func sites(t *testing.T) (all []site) {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		add := func(n ast.Node, args []ast.Expr, invariant, format int) {
			s := site{at: files.Position(n.Pos()).String(), invariant: "25 resources"} // see excess
			if invariant >= 0 {
				if s.invariant = text(args[invariant]); s.invariant == "" {
					return // handed on
				}
			}
			if format >= 0 {
				parts := verb.Split(text(args[format]), -1)
				for i := range parts {
					parts[i] = regexp.QuoteMeta(parts[i])
				}
				s.says = regexp.MustCompile("(?s)^" + strings.Join(parts, ".*") + "$")
			}
			all = append(all, s)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if named(n.Type, "violation") && len(n.Elts) == 3 {
					add(n, n.Elts, 0, -1)
				}
			case *ast.CallExpr:
				s, method := n.Fun.(*ast.SelectorExpr)
				switch {
				case method && s.Sel.Name == "fault":
					add(n, n.Args, 0, 2)
				case method && s.Sel.Name == "judge", named(n.Fun, "wrong"):
					add(n, n.Args, 0, -1)
				case named(n.Fun, "fault"):
					add(n, n.Args, -1, 1)
				}
			}
			return true
		})
	}
	return all
}

func named(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// text is what a literal says, "" for anything else.
func text(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		if s, err := strconv.Unquote(lit.Value); err == nil {
			return s
		}
	}
	return ""
}

// TestEveryFaultIsSeen: whatever the checker can say of evidence it is seen to
// say, every invariant is seen to be violated, and what a bug is wanted to be
// called is what the checker says of that invariant.
func TestEveryFaultIsSeen(t *testing.T) {
	t.Parallel()
	var seen []violation
	for _, s := range scenes() {
		for _, p := range s.planting {
			f := s.good()
			p.plant(f)
			s.judge(f)
			seen = append(seen, f.found...)
		}
	}
	all := sites(t)
	if len(all) < 80 {
		t.Fatalf("the sources are not read any more: %d places", len(all))
	}
	for _, s := range all {
		is := func(v violation) bool {
			return v.invariant == s.invariant && (s.says == nil || s.says.MatchString(v.what))
		}
		wanted := s.says == nil && slices.ContainsFunc(bugs, func(b bug) bool { return b.invariant == s.invariant })
		if !wanted && !slices.ContainsFunc(seen, is) {
			t.Errorf("%s: nothing is seen to violate %s: %v", s.at, s.invariant, s.says)
		}
	}
	for _, b := range bugs {
		if b.invariant == "23 liveness" {
			continue
		}
		if !slices.ContainsFunc(seen, func(v violation) bool { return b.found("VIOLATION " + v.String()) }) {
			t.Errorf("%s is to be called %q, of %q, which nothing is", b.name, b.want, b.invariant)
		}
	}
}
