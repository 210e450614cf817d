package arch_test

import (
	"go/ast"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	maxFileLines = 500
	maxFuncLines = 80
)

// A rule finds the places that break it. Its name is also its key in the table
// of exceptions.
type rule struct {
	name  string
	why   string
	check func(*tree) []violation
}

var rules = []rule{
	{
		"floors", "imports point downwards, cmd → workers → bus → subjects, and workers never know each other, " +
			"so that each can be read, tested and replaced alone; cmd/parley/wire.go alone ties them together", checkFloors,
	},
	{
		"doors", "one package stands between us and each large dependency, so that its errors, limits and versions are handled once", checkDoors,
	},
	{
		"environment", "only cmd reads the environment; everything else is told its configuration, so that tests run in parallel " +
			"and `parley -h` lists every setting", checkEnvironment,
	},
	{
		"clock", "contract and policy are pure: the same input gives the same answer, so the caller passes the time and random bytes", checkClock,
	},
	{
		"sleep", "a sleep cannot be interrupted and makes tests slow or flaky: wait on a signal or a timer in a select; " +
			"in a test, sleep only inside synctest.Test, where time is fake", checkSleep,
	},
	{
		"package comment", "a reader starts at the package comment; two of them contradict each other sooner or later", checkPackageComment,
	},
	{
		"replace", "a replaced module builds here and nowhere else, and `go install` refuses it", checkReplace,
	},
	{
		"size", "what does not fit on a few screens is not read: split it by noun", checkSize,
	},
	{
		"name", "a package is named for what it provides; a bucket attracts what belongs elsewhere", checkName,
	},
	{
		"crash point", "a worker may be killed before and after each of its writes: where it can be, the sweep of crash points does it, " +
			"and sees that whoever takes over carries on", checkCrashPoints,
	},
	{
		"test code", "test code stays out of the product's binary; helpers live in a package named …test or under test/", checkTestCode,
	},
}

// floors names what each top-level folder may import of ours, besides itself.
var floors = map[string][]string{
	"subjects":   {},
	"escalation": {"subjects"},
	"bus":        {"subjects"},
	"workers":    {"bus", "escalation", "subjects"},
	"cmd":        {"workers", "bus", "escalation", "subjects"},
	"test":       {"workers", "bus", "escalation", "subjects"},
}

func checkFloors(t *tree) (vs []violation) {
	for _, f := range t.files {
		from, _, _ := strings.Cut(f.path, "/")
		may, known := floors[from]
		if !known {
			vs = append(vs, f.violation(f.ast.Name, "%s belongs to no floor; choose one, or add the folder to the table of floors", f.dir()))
			continue
		}
		for _, spec := range f.ast.Imports {
			dir, ours := strings.CutPrefix(importPath(spec), t.module+"/")
			to, _, _ := strings.Cut(dir, "/")
			switch {
			case !ours:
			case to == "test" && f.isTest():
			case to == from && (to != "workers" || mayKnowWorker(f.dir(), dir)):
			case slices.Contains(may, to):
			default:
				vs = append(vs, f.violation(spec, "%s imports %s", f.dir(), dir))
			}
		}
	}
	return vs
}

// mayKnowWorker reports whether a package under workers may import another
// one: the root package, or what lies within the same worker.
func mayKnowWorker(from, to string) bool {
	worker := func(dir string) string {
		name, _, _ := strings.Cut(strings.TrimPrefix(dir, "workers/"), "/")
		return name
	}
	return to == "workers" || from != "workers" && worker(from) == worker(to)
}

// doors names, for a module or package, the only folders that may import it or
// what lies below it.
var doors = []struct {
	to  string
	may []string
}{
	{"github.com/nats-io", []string{"bus", "test"}},
	{"github.com/synadia-io", []string{"bus", "test"}},
	// Clients that only connect must not link a server.
	{"github.com/nats-io/nats-server", []string{"bus/embedded", "bus/bustest", "test"}},
	{"parley/bus/embedded", []string{"bus/embedded", "bus/bustest", "cmd", "test"}},
	{"github.com/prometheus", []string{"workers/telemetry"}},
	{"go.opentelemetry.io", []string{"workers/telemetry"}},
	{"charm.land", []string{"cmd/parley"}},
	{"github.com/zricethezav/gitleaks", []string{"workers/sessions/secrets"}},
	{"github.com/a2aproject", []string{"workers/gateway", "workers/agent/remote", "test"}},
}

func checkDoors(t *tree) (vs []violation) {
	for _, f := range t.files {
		for _, spec := range f.ast.Imports {
			p := importPath(spec)
			for _, d := range doors {
				if within(p, d.to) && !within(f.dir(), d.may...) {
					vs = append(vs, f.violation(spec, "%s imports %s, which only %s may", f.dir(), p, strings.Join(d.may, ", ")))
					break
				}
			}
		}
	}
	return vs
}

func checkEnvironment(t *tree) (vs []violation) {
	for _, f := range t.files {
		if within(f.path, "cmd", "test") || f.isTest() {
			continue
		}
		uses := f.uses("os", "Getenv", "LookupEnv", "Environ", "ExpandEnv")
		uses = append(uses, f.uses("syscall", "Getenv", "Environ")...)
		for _, u := range uses {
			vs = append(vs, f.violation(u, "uses %s", u.name))
		}
		for _, spec := range f.ast.Imports {
			if p := importPath(spec); within(p, "github.com/kelseyhightower/envconfig") {
				vs = append(vs, f.violation(spec, "imports %s", p))
			}
		}
	}
	return vs
}

func checkClock(t *tree) (vs []violation) {
	for _, f := range t.files {
		if !within(f.path, "subjects", "escalation") || f.isTest() {
			continue
		}
		uses := f.uses("time", "Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer")
		uses = append(uses, f.uses("github.com/google/uuid", "New", "NewString", "NewRandom", "NewUUID", "NewV6", "NewV7")...)
		for _, u := range uses {
			vs = append(vs, f.violation(u, "uses %s", u.name))
		}
		for _, spec := range f.ast.Imports {
			if p := importPath(spec); within(p, "math/rand", "crypto/rand") {
				vs = append(vs, f.violation(spec, "imports %s", p))
			}
		}
	}
	return vs
}

func checkSleep(t *tree) (vs []violation) {
	for _, f := range t.files {
		for _, u := range f.uses("time", "Sleep") {
			if !f.isTest() || !f.inBubble(u) {
				vs = append(vs, f.violation(u, "uses %s", u.name))
			}
		}
	}
	return vs
}

// inBubble reports whether n is part of an argument of synctest.Test.
func (f *file) inBubble(n ast.Node) bool {
	bubbles := f.uses("testing/synctest", "Test")
	found := false
	ast.Inspect(f.ast, func(m ast.Node) bool {
		if call, ok := m.(*ast.CallExpr); ok {
			isBubble := slices.ContainsFunc(bubbles, func(u use) bool { return u.Node == call.Fun })
			found = found || isBubble && call.Pos() <= n.Pos() && n.End() <= call.End()
		}
		return !found
	})
	return found
}

func checkPackageComment(t *tree) (vs []violation) {
	packages := map[string][]*file{}
	for _, f := range t.files {
		packages[f.dir()] = append(packages[f.dir()], f)
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		files := slices.DeleteFunc(slices.Clone(packages[dir]), (*file).isTest)
		if len(files) == 0 {
			files = packages[dir] // nothing but tests: they carry the comment
		}
		var with []string
		for _, f := range files {
			if f.ast.Doc.Text() != "" { // without directives such as //go:build
				with = append(with, path.Base(f.path))
			}
		}
		switch {
		case len(with) == 0:
			vs = append(vs, violation{key: dir, at: dir, what: "has no package comment"})
		case len(with) > 1:
			vs = append(vs, violation{key: dir, at: dir, what: "has more than one package comment: " + strings.Join(with, ", ")})
		}
	}
	return vs
}

func checkReplace(t *tree) (vs []violation) {
	for _, p := range slices.Sorted(maps.Keys(t.mods)) {
		n := 0
		for line := range strings.Lines(t.mods[p]) {
			n++
			words := strings.Fields(strings.ReplaceAll(line, "(", " ( "))
			if len(words) > 0 && words[0] == "replace" {
				vs = append(vs, violation{key: p, at: p + ":" + strconv.Itoa(n), what: "has a replace directive"})
			}
		}
	}
	return vs
}

func checkSize(t *tree) (vs []violation) {
	for _, f := range t.files {
		if f.isTest() || ast.IsGenerated(f.ast) {
			continue
		}
		if f.lines > maxFileLines {
			vs = append(vs, f.violation(f.ast.Name, "is %d lines long, more than %d", f.lines, maxFileLines))
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1
			if lines > maxFuncLines {
				v := f.violation(fn.Type, "function %s is %d lines long, more than %d", fn.Name.Name, lines, maxFuncLines)
				v.key += " " + fn.Name.Name
				vs = append(vs, v)
			}
		}
	}
	return vs
}

// buckets are names that say nothing about what a package is for.
var buckets = []string{"util", "utils", "common", "types", "helper", "helpers", "misc"}

func checkName(t *tree) (vs []violation) {
	for _, f := range t.files {
		name := strings.TrimSuffix(f.ast.Name.Name, "_test")
		for _, b := range append(strings.Split(f.dir(), "/"), name) {
			if slices.Contains(buckets, b) {
				vs = append(vs, f.violation(f.ast.Name, "is in a package named %s", b))
				break
			}
		}
	}
	return vs
}

// writes are the methods of package bus that store or delete something, with how
// many arguments they take, which tells them from others of their names.
var writes = map[string]int{
	"Create": 4, "Update": 4, "UpdateFor": 5, "Delete": 2, "DeleteRevision": 3, // KV
	"Put": 3, "PutOnly": 3, "Keep": 3, "DropStrays": 1, // Objects, and KV
	"Store": 5, "At": 5, "Write": 2, "Purge": 3, "PurgeUpTo": 4, "PurgeBefore": 3, "DropDone": 4, "KeepPosition": 3,
	"BuryDeadLetter": 3, "ReplayDeadLetter": 2, "DropDeadLetter": 2,
}

// checkCrashPoints finds the functions of workers that write, and have no crash
// point.
func checkCrashPoints(t *tree) (vs []violation) {
	for _, f := range t.files {
		if !within(f.path, "workers") || f.isTest() {
			continue
		}
		points := f.uses(t.module+"/bus/crash", "Point")
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || slices.ContainsFunc(points, func(u use) bool { return fn.Pos() <= u.Pos() && u.End() <= fn.End() }) {
				continue
			}
			if call := firstWrite(fn); call != nil {
				v := f.violation(call, "function %s writes and has no crash point", fn.Name.Name)
				v.key += " " + fn.Name.Name
				vs = append(vs, v)
			}
		}
	}
	return vs
}

func firstWrite(fn *ast.FuncDecl) (first *ast.CallExpr) {
	ast.Inspect(fn, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || first != nil {
			return first == nil
		}
		if s, ok := call.Fun.(*ast.SelectorExpr); ok && writes[s.Sel.Name] > 0 && writes[s.Sel.Name] == len(call.Args) {
			first = call
		}
		return first == nil
	})
	return first
}

// testPackages are what only tests are made of, besides our own …test packages.
var testPackages = []string{"testing", "net/http/httptest", "github.com/google/go-cmp", "pgregory.net/rapid"}

func checkTestCode(t *tree) (vs []violation) {
	for _, f := range t.files {
		if f.testOnly() {
			continue
		}
		for _, spec := range f.ast.Imports {
			p := importPath(spec)
			ours := within(p, t.module) && (strings.HasSuffix(p, "test") || within(p, t.module+"/test"))
			if ours || within(p, testPackages...) {
				vs = append(vs, f.violation(spec, "%s imports %s", f.dir(), p))
			}
		}
	}
	return vs
}
