package arch_test

import (
	"fmt"
	"go/ast"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// exceptions names, per rule, the places that may break it, and why. A key is
// the path of a file, with the name of the function for its length, or the
// folder of a package.
var exceptions = map[string]map[string]string{
	"environment": {
		"bus/crash/on.go": "built only with the tag crashpoints, into programs that tests kill",
		"bus/plant/on.go": "built only with the tag planted, into programs that the chaos suite must find fault with",
	},
	"crash point": {
		"workers/agent/letter.go answerLetter":        "agents are killed at any moment: TestKillsWhileWorking, TestMesh",
		"workers/agent/state.go announce":             "agents are killed at any moment: TestKillsWhileWorking",
		"workers/escalation/act.go archive":           "for people who look back alone; nothing follows from it",
		"workers/escalation/derive.go keepEscalation": "deriveOne has those before and after it",
		"workers/escalation/worker.go event":          "told, not relied on; putAlert has the one before it",
		"workers/escalation/worker.go deliver":        "do has those before and after it",
		"workers/gateway/push.go drop":                "what is dropped a day after a task's end; its TTL does the same",
		"workers/mesh/worker.go sweep":                "a day after a message's end; the record goes last, and the next sweep goes on",
		"workers/note.go Tell":                        "tells the audit what was done already; nothing follows from it",
		"workers/runs/drive.go write":                 "store has those before and after it",
		"workers/runs/results.go storeOnce":           "those who call it have them",
		"workers/runs/results.go clear":               "at a run's start, before anything is stored: who repeats it clears again",
		"workers/sessions/cleanup.go sweep":           "each hour; what is dropped is nobody's any more, and the next sweep goes on",
		"workers/webhooks/attempt.go write":           "attempt has those before and after it",
		"workers/webhooks/room.go remove":             "what is over, or given up for want of room; the next look goes on",
	},
}

// TestSources holds the module against every rule.
func TestSources(t *testing.T) {
	t.Parallel()
	sources, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(sources.files) < 10 {
		t.Fatalf("found only %d Go files: the tree was not walked", len(sources.files))
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			used := map[string]bool{}
			for _, v := range r.check(sources) {
				if exceptions[r.name][v.key] != "" {
					used[v.key] = true
					continue
				}
				t.Errorf("%s: %s\n\twhy: %s", v.at, v.what, r.why)
			}
			for key := range exceptions[r.name] {
				if !used[key] {
					t.Errorf("exception %q is not needed any more: remove it", key)
				}
			}
		})
	}
}

// TestExceptions guards the table itself against a misspelt rule and a missing
// reason.
func TestExceptions(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, r := range rules {
		names[r.name] = true
	}
	for name, places := range exceptions {
		if !names[name] {
			t.Errorf("exceptions name the rule %q, which does not exist", name)
		}
		for key, reason := range places {
			if reason == "" {
				t.Errorf("exception %q of %q has no reason", key, name)
			}
		}
	}
}

// TestWrites guards the table of the bus's writes against names that are none.
func TestWrites(t *testing.T) {
	t.Parallel()
	sources, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{} // name and number of parameters
	for _, f := range sources.files {
		if f.dir() != "bus" || f.isTest() {
			continue
		}
		note := func(name string, fn *ast.FuncType) { there[fmt.Sprint(name, fn.Params.NumFields())] = true }
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				note(n.Name.Name, n.Type)
			case *ast.InterfaceType:
				for _, m := range n.Methods.List {
					if fn, ok := m.Type.(*ast.FuncType); ok && len(m.Names) == 1 {
						note(m.Names[0].Name, fn)
					}
				}
			}
			return true
		})
	}
	for name, n := range writes {
		if !there[fmt.Sprint(name, n)] {
			t.Errorf("package bus has no %s with %d parameters", name, n)
		}
	}
}

// lines returns a function body of n lines.
func lines(n int) string { return strings.Repeat("\t_ = 0\n", n) }

// ruleTests shows for every rule what breaks it and what it lets pass.
var ruleTests = []struct {
	rule, name string
	sources    map[string]string // path to content
	want       string            // part of the one violation; empty for none
}{
	{"floors", "subjects imports nothing of ours", src("subjects/a.go", imports("subjects", "parley/bus")), "subjects imports bus"},
	{"floors", "subjects imports no policy", src("subjects/fleet/a.go", imports("fleet", "parley/escalation")), "subjects/fleet imports escalation"},
	{"floors", "protocols import subjects", src("subjects/fleet/a.go", imports("fleet", "parley/subjects")), ""},
	{"floors", "policy imports no bus", src("escalation/a.go", imports("escalation", "parley/bus")), "escalation imports bus"},
	{"floors", "policy imports subjects", src("escalation/a.go", imports("escalation", "parley/subjects/fleet")), ""},
	{"floors", "bus imports no worker", src("bus/a.go", imports("bus", "parley/workers")), "bus imports workers"},
	{"floors", "bus imports no policy", src("bus/a.go", imports("bus", "parley/escalation")), "bus imports escalation"},
	{"floors", "bus imports its own", src("bus/bustest/a.go", imports("bustest", "parley/bus/embedded")), ""},
	{"floors", "a worker imports no other", src("workers/agent/a.go", imports("agent", "parley/workers/router")), "workers/agent imports workers/router"},
	{"floors", "not in a test either", src("workers/agent/a_test.go", imports("agent_test", "parley/workers/router")), "workers/agent imports workers/router"},
	{"floors", "nor by a prefix of its name", src("workers/run/a.go", imports("run", "parley/workers/runs")), "workers/run imports workers/runs"},
	{"floors", "the root of workers imports none", src("workers/a.go", imports("workers", "parley/workers/router")), "workers imports workers/router"},
	{"floors", "a worker imports what is below", src("workers/agent/a.go", imports("agent", "parley/workers", "parley/bus", "parley/escalation", "parley/workers/agent/exec")), ""},
	{"floors", "nobody imports cmd", src("workers/agent/a.go", imports("agent", "parley/cmd/parley")), "workers/agent imports cmd/parley"},
	{"floors", "test does not import cmd", src("test/e2e/a.go", imports("e2e", "parley/cmd/parley")), "test/e2e imports cmd/parley"},
	{"floors", "cmd ties all together", src("cmd/parley/wire.go", imports("main", "parley/workers/router", "parley/workers/agent", "parley/bus")), ""},
	{"floors", "the product imports no test", src("bus/a.go", imports("bus", "parley/test/e2e")), "bus imports test/e2e"},
	{"floors", "every folder has a floor", src("tools/a.go", "package tools\n"), "tools belongs to no floor"},

	{"doors", "cmd does not talk to NATS", src("cmd/parley/a.go", imports("main", "github.com/nats-io/nats.go")), "only bus, test may"},
	{"doors", "nor by another module", src("workers/router/a.go", imports("router", "github.com/synadia-io/orbit.go/natscontext")), "only bus, test may"},
	{"doors", "nor in a test", src("workers/router/a_test.go", imports("router_test", "github.com/nats-io/nats.go/jetstream")), "only bus, test may"},
	{"doors", "bus does", src("bus/a.go", imports("bus", "github.com/nats-io/nats.go/jetstream")), ""},
	{"doors", "bus itself links no server", src("bus/a.go", imports("bus", "github.com/nats-io/nats-server/v2/server")), "only bus/embedded, bus/bustest, test may"},
	{"doors", "workers start no server", src("workers/router/a.go", imports("router", "parley/bus/embedded")), "only bus/embedded, bus/bustest, cmd, test may"},
	{"doors", "A2A is the gateway's", src("workers/mesh/a.go", imports("mesh", "github.com/a2aproject/a2a-go/v2/a2a")), "only workers/gateway, workers/agent/remote, test may"},

	{"environment", "a worker reads a variable", src("workers/agent/a.go", calls("agent", "os", "os.Getenv(\"X\")")), "uses os.Getenv"},
	{"environment", "under another name", src("workers/agent/a.go", "package agent\nimport sys \"os\"\nvar _ = sys.LookupEnv\n"), "uses os.LookupEnv"},
	{"environment", "by a dot import", src("bus/a.go", "package bus\nimport . \"os\"\nvar _ = Environ()\n"), "uses os.Environ"},
	{"environment", "by envconfig", src("bus/a.go", imports("bus", "github.com/kelseyhightower/envconfig")), "imports github.com/kelseyhightower/envconfig"},
	{"environment", "cmd may", src("cmd/parley/config.go", calls("main", "os", "os.Getenv(\"X\")")), ""},
	{"environment", "tests may", src("test/e2e/e2e_test.go", calls("e2e_test", "os", "os.Getenv(\"PARLEY_NATS_CLI\")")), ""},

	{"clock", "policy asks the clock", src("escalation/a.go", calls("escalation", "time", "time.Now()")), "uses time.Now"},
	{"clock", "the clock is passed on", src("escalation/a.go", "package escalation\nimport \"time\"\nvar now = time.Now\n"), "uses time.Now"},
	{"clock", "the contract measures", src("subjects/fleet/a.go", calls("fleet", "time", "time.Since(t)")), "uses time.Since"},
	{"clock", "policy rolls dice", src("escalation/a.go", imports("escalation", "math/rand/v2")), "imports math/rand/v2"},
	{"clock", "the contract makes ids up", src("subjects/a.go", calls("subjects", "github.com/google/uuid", "uuid.NewV7()")), "uses uuid.NewV7"},
	{"clock", "time as a value is fine", src("escalation/a.go", calls("escalation", "time", "time.Duration(1)")), ""},
	{"clock", "a worker may", src("workers/router/a.go", calls("router", "time", "time.Now()")), ""},

	{"sleep", "the product sleeps", src("workers/router/a.go", calls("router", "time", "time.Sleep(1)")), "uses time.Sleep"},
	{"sleep", "a test sleeps", src("bus/a_test.go", calls("bus_test", "time", "time.Sleep(1)")), "uses time.Sleep"},
	{"sleep", "fake time", src("bus/a_test.go", bubble("time.Sleep(1)")), ""},
	{"sleep", "beside fake time", src("bus/a_test.go", bubble("")+"func g() { time.Sleep(1) }\n"), "uses time.Sleep"},

	{"package comment", "none", src("bus/a.go", "package bus\n"), "has no package comment"},
	{"package comment", "a build tag is none", src("bus/a.go", "//go:build linux\npackage bus\n"), "has no package comment"},
	{"package comment", "two", map[string]string{"bus/a.go": "// Package bus a.\npackage bus\n", "bus/b.go": "// Package bus b.\npackage bus\n"}, "a.go, b.go"},
	{"package comment", "one", map[string]string{"bus/a.go": "// Package bus a.\npackage bus\n", "bus/b.go": "package bus\n", "bus/b_test.go": "package bus_test\n"}, ""},
	{"package comment", "tests alone carry it", src("test/e2e/a_test.go", "package e2e_test\n"), "has no package comment"},

	{"replace", "in a line", src("go.mod", "module parley\nreplace a.b/c => ../c\n"), "has a replace directive"},
	{"replace", "in a block", src("go.mod", "module parley\nreplace(\n\ta.b/c => ../c\n)\n"), "has a replace directive"},
	{"replace", "in a nested module", src("test/tools/go.mod", "module parley/test/tools\n\nreplace a.b/c => ../c\n"), "has a replace directive"},
	{"replace", "in a comment", src("go.mod", "module parley\n// replace nothing\n"), ""},

	{"size", "a long file", src("bus/a.go", "package bus\n"+strings.Repeat("//\n", maxFileLines)), "is 501 lines long"},
	{"size", "a file that just fits", src("bus/a.go", "package bus\n"+strings.Repeat("//\n", maxFileLines-1)), ""},
	{"size", "a long function", src("bus/a.go", "package bus\n// f is.\nfunc f() {\n"+lines(maxFuncLines-1)+"}\n"), "function f is 81 lines long"},
	{"size", "a function that just fits", src("bus/a.go", "package bus\n// f is.\nfunc f() {\n"+lines(maxFuncLines-2)+"}\n"), ""},
	{"size", "a long test", src("bus/a_test.go", "package bus\nfunc f() {\n"+lines(maxFileLines)+"}\n"), ""},
	{"size", "a generated file", src("bus/a.go", "// Code generated by x. DO NOT EDIT.\n\npackage bus\nfunc f() {\n"+lines(maxFileLines)+"}\n"), ""},

	{"name", "a bucket", src("bus/util/a.go", "package util\n"), "is in a package named util"},
	{"name", "a bucket in disguise", src("bus/types/a.go", "package kinds\n"), "is in a package named types"},
	{"name", "a noun", src("bus/bustest/a.go", "package bustest\n"), ""},

	{"crash point", "a write", src("workers/mesh/a.go", "package mesh\nfunc (w *Worker) f() { w.kv.Telling(x).Create(ctx, k, v, 0) }\n"), "function f writes and has no crash point"},
	{"crash point", "in a closure", src("workers/mesh/a.go", "package mesh\nvar y = 1\nfunc f() { g(func() { b.Purge(ctx, s, x) }) }\n"), "function f writes"},
	{"crash point", "one beside it", src("workers/mesh/a.go", "package mesh\nimport \"parley/bus/crash\"\nfunc g() { crash.Point(\"x\") }\nfunc f() { b.Purge(ctx, s, x) }\n"), "function f writes"},
	{"crash point", "with one", src("workers/mesh/a.go", "package mesh\nimport \"parley/bus/crash\"\nfunc f() { crash.Point(\"x\"); b.Purge(ctx, s, x) }\n"), ""},
	{"crash point", "of another kind", src("workers/mesh/a.go", "package mesh\nfunc f() { ready.Store(true); out.Write(b); slices.Delete(l, 0, 1) }\n"), ""},
	{"crash point", "not a worker's", src("cmd/parley/a.go", "package main\nfunc f() { b.Purge(ctx, s, x) }\n"), ""},

	{"test code", "helpers in the product", src("workers/router/a.go", imports("router", "parley/bus/bustest")), "workers/router imports parley/bus/bustest"},
	{"test code", "package testing in the product", src("bus/a.go", imports("bus", "testing")), "bus imports testing"},
	{"test code", "a comparison that may panic", src("bus/a.go", imports("bus", "github.com/google/go-cmp/cmp")), "imports github.com/google/go-cmp/cmp"},
	{"test code", "helpers in a test", src("workers/router/a_test.go", imports("router_test", "parley/bus/bustest", "testing")), ""},
	{"test code", "helpers in a helper", src("bus/bustest/a.go", imports("bustest", "testing")), ""},
	{"test code", "helpers under test", src("test/bench/main.go", imports("main", "parley/bus/bustest")), ""},
}

func TestRules(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, tt := range ruleTests {
		shown[tt.rule] = shown[tt.rule] || tt.want != ""
		t.Run(tt.rule+"/"+tt.name, func(t *testing.T) {
			t.Parallel()
			got := ruleNamed(t, tt.rule).check(fixture(t, tt.sources))
			switch {
			case tt.want == "" && len(got) > 0:
				t.Errorf("violations = %v, want none", got)
			case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0].what, tt.want)):
				t.Errorf("violations = %v, want one with %q", got, tt.want)
			}
		})
	}
	for _, r := range rules {
		if !shown[r.name] {
			t.Errorf("no case shows that the rule %q can fail", r.name)
		}
	}
}

// TestLoadLeavesOut checks that nested modules, testdata and hidden folders
// are not walked, and that what does not parse is an error.
func TestLoadLeavesOut(t *testing.T) {
	t.Parallel()
	got := fixture(t, map[string]string{
		"bus/a.go":                "package bus\n",
		"bus/testdata/a.go":       "not Go",
		"bus/_old/a.go":           "not Go",
		".cache/a.go":             "not Go",
		"test/bench/peers/go.mod": "module parley/test/bench/peers\n",
		"test/bench/peers/a.go":   "not Go",
		"test/bench/peers/x/a.go": "not Go",
	})
	if len(got.files) != 1 || got.files[0].path != "bus/a.go" {
		t.Errorf("load found %d files, want bus/a.go alone", len(got.files))
	}
	if _, ok := got.mods["test/bench/peers/go.mod"]; !ok {
		t.Error("load did not keep the nested go.mod")
	}
	_, err := load(fstest.MapFS{
		"go.mod":   {Data: []byte("module parley\n")},
		"bus/a.go": {Data: []byte("not Go")},
	})
	if err == nil || !strings.Contains(err.Error(), "bus/a.go") {
		t.Errorf("load of a broken file = %v, want an error that names it", err)
	}
}

func ruleNamed(t *testing.T, name string) rule {
	t.Helper()
	for _, r := range rules {
		if r.name == name {
			return r
		}
	}
	t.Fatalf("no rule is named %q", name)
	return rule{}
}

// fixture loads sources, path to content, with a go.mod unless they bring one.
func fixture(t *testing.T, sources map[string]string) *tree {
	t.Helper()
	fsys := fstest.MapFS{"go.mod": {Data: []byte("module parley\n")}}
	for p, content := range sources {
		fsys[p] = &fstest.MapFile{Data: []byte(content)}
	}
	got, err := load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func src(path, content string) map[string]string { return map[string]string{path: content} }

func imports(name string, paths ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n", name)
	for _, p := range paths {
		fmt.Fprintf(&b, "import _ %q\n", p)
	}
	return b.String()
}

func calls(name, imported, expression string) string {
	return fmt.Sprintf("package %s\nimport %q\nfunc f() { %s }\n", name, imported, expression)
}

func bubble(body string) string {
	return "package bus_test\nimport (\"testing\"; \"testing/synctest\"; \"time\")\n" +
		"func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { " + body + " }) }\nvar _ time.Duration\n"
}
