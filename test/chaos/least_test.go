//go:build linux

package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// enough is what a run leaves that has looked at no more than it must.
func enough(long bool) *findings {
	f := &findings{counts: map[string]int{"acknowledged dispatches": 1}}
	for _, l := range leasts {
		if f.counts[l.count] = l.few; long {
			f.counts[l.count] = l.many
		}
		if l.kind != "" {
			planFault(f, l.kind, 1, 2)
		}
	}
	return f
}

// TestLittle: a run of some minutes that has looked at too little of anything says
// of what; a short one need not look at everything.
func TestLittle(t *testing.T) {
	t.Parallel()
	long, hour := settings{time: 5 * time.Minute}, settings{time: time.Hour}
	for _, l := range leasts {
		for s, few := range map[*settings]int{&long: l.few, &hour: l.many} {
			if few == 0 {
				continue
			}
			f := enough(s == &hour)
			if little := s.little(f); len(little) > 0 {
				t.Fatalf("what is enough is too little: %v", little)
			}
			f.counts[l.count] = few - 1
			if want := []string{fmt.Sprintf("%d %s, want %d", few-1, l.count, few)}; !slices.Equal(s.little(f), want) {
				t.Errorf("in %s it says %q, want %q", s.time, s.little(f), want)
			}
			if f.faults = nil; l.kind != "" && len(s.little(f)) > 0 {
				t.Errorf("without %s it says %q", l.kind, s.little(f))
			}
		}
		if l.few == 0 && l.many == 0 || l.few > l.many {
			t.Errorf("%s: %d of some minutes, and %d of half an hour", l.count, l.few, l.many)
		}
	}
	f := &findings{counts: map[string]int{"acknowledged dispatches": 1}}
	short := settings{time: 40 * time.Second}
	if little := short.little(f); len(little) > 0 {
		t.Errorf("of a short run: %v", little)
	}
	if f.counts["acknowledged dispatches"] = 0; len(short.little(f)) != 1 {
		t.Errorf("of a run of nothing: %v", short.little(f))
	}
}

// TestAskedFor: what a run is to have had at least, by its flags.
func TestAskedFor(t *testing.T) {
	t.Parallel()
	f := &findings{counts: map[string]int{"acknowledged dispatches": 1, "tasks": 10}}
	planFault(f, killWorker, 1, 2)
	planFault(f, powerAll, 3, 4)
	planFault(f, quietKind, 5, 6)
	for _, tt := range []struct {
		s    settings
		want string
	}{
		{settings{faults: 2, kinds: 2, tasks: 10, must: []string{powerAll}}, ""},
		{settings{faults: 3}, "2 faults, want 3"},
		{settings{kinds: 3}, "2 kinds of faults, want 3"},
		{settings{tasks: 11}, "10 tasks, want 11"},
		{settings{must: []string{powerAll, powerOne, fullDisk}}, "no power loss of one; no full disk"},
	} {
		if got := strings.Join(tt.s.little(f), "; "); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.s, got, tt.want)
		}
	}
}

// TestEveryCountIsWanted: what a check counts is wanted of a run, or it is said
// here why not.
func TestEveryCountIsWanted(t *testing.T) {
	t.Parallel()
	free := map[string]string{
		"acknowledged dispatches":                "there must be one in any run",
		"tasks":                                  "by a flag",
		"runs out of time":                       "the fewer the better",
		"webhook ids":                            "of the calls",
		"copies sent":                            "by kind",
		"calls tried again after a step of keys": "by chance",
		"most files of a process at rest":        "a measure",
		"most goroutines of a worker at rest":    "a measure",
	}
	wanted := map[string]bool{}
	for _, l := range leasts {
		if wanted[l.count] || free[l.count] != "" {
			t.Errorf("%s is there twice", l.count)
		}
		wanted[l.count] = true
	}
	for _, tap := range tapped {
		if !wanted["copies sent: "+tap.kind] {
			t.Errorf("no copy need be sent of a %s", tap.kind)
		}
	}
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]bool{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if x, ok := n.(*ast.IndexExpr); ok && !strings.HasSuffix(path, "_test.go") {
				if s, ok := x.X.(*ast.SelectorExpr); ok && s.Sel.Name == "counts" && text(x.Index) != "" {
					counted[text(x.Index)] = true
				}
			}
			return true
		})
	}
	for count := range counted {
		if !wanted[count] && free[count] == "" {
			t.Errorf("%s is counted, and none need be", count)
		}
	}
	for count := range wanted {
		if !counted[count] && !strings.Contains(count, ": ") && !strings.HasPrefix(count, "operations of ") {
			t.Errorf("%s is wanted, and never counted", count)
		}
	}
}

// TestExitCode: whoever runs it is told apart what is wrong and what is too little.
func TestExitCode(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("violated=%d little=%d\n", exitViolated, exitLittle); !strings.Contains(string(script), want) {
		t.Errorf("no %q in .ci/run", want)
	}
	f := &findings{counts: map[string]int{}, strange: []violation{{"23 liveness", "fleet", "it hangs"}}}
	s := settings{}
	for want, err := range map[int]error{
		0: nil, 1: errors.New("no room"), exitViolated: s.report(f), exitLittle: s.report(&findings{counts: map[string]int{}}),
	} {
		if got := exitCode(err); got != want {
			t.Errorf("%v ends it with %d, want %d", err, got, want)
		}
	}
}

// TestMust: what must happen is a kind of fault, is what the machine can do, and
// is in the plan of a seed that is chosen: twice, for one that is left out.
func TestMust(t *testing.T) {
	t.Parallel()
	var s settings
	if err := s.mustHave("full disk,power loss of all, cut a server off"); err != nil || !slices.Equal(s.must, []string{fullDisk, powerAll, cutServer}) {
		t.Fatalf("must have %q: %v", s.must, err)
	}
	if err := new(settings).mustHave("full disk,earthquake"); err == nil || !strings.Contains(err.Error(), `"earthquake"`) {
		t.Errorf("an earthquake: %v", err)
	}
	script, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	_, flag, _ := strings.Cut(string(script), `must=(-must "`)
	flag, _, _ = strings.Cut(flag, `"`)
	if err := new(settings).mustHave(flag); err != nil {
		t.Errorf(".ci/run: %v", err)
	}
	for _, k := range kinds {
		if err := new(settings).mustHave(k.name); err != nil {
			t.Errorf("a kind of fault that cannot be named: %v", err)
		}
	}
	if err := s.possible(&world{nets: true}); !errors.Is(err, errLittle) || !strings.Contains(err.Error(), "full disk, power loss of all") {
		t.Errorf("without disks: %v", err)
	}
	whole := &world{nets: true, disks: true}
	if err := s.possible(whole); err != nil {
		t.Errorf("of a machine that can do it all: %v", err)
	}
	s.time, s.kinds = 5*time.Minute, 8
	if s.choose(whole); !s.good(plan(s.seed, s.time, whole, "")) {
		t.Errorf("the plan of seed %d has not all of %q twice", s.seed, s.must)
	}
}

// TestLeaderFirst: before anything else is done to servers the stream's leader is
// killed, and nothing else for long enough to know how long that takes by itself.
func TestLeaderFirst(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		list := plan(seed, 5*time.Minute, &world{nets: true, disks: true}, "")
		list = slices.DeleteFunc(list, func(f fault) bool { return !hurtsServers(f.kind) })
		if f := list[0]; f.kind != killLeader || f.at != period/4 {
			t.Errorf("seed %d begins with %s", seed, f.String())
		}
		if f := list[1]; f.at < list[0].at+gapMost {
			t.Errorf("seed %d goes on with %s", seed, f.String())
		}
	}
}

// TestTooLate: a fault whose time has passed is left out, unless it must happen and
// has not yet.
func TestTooLate(t *testing.T) {
	t.Parallel()
	n := &nemesis{must: []string{powerOne, powerAll}, done: map[string]int{powerAll: 1}}
	for _, tt := range []struct {
		kind string
		late time.Duration
		want bool
	}{
		{killServer, period / 2, false},
		{killServer, period, true},
		{powerOne, period, false},
		{powerAll, period, true},
		{powerAll, 0, false},
		{replaceKey, time.Hour, false},
	} {
		if got := n.tooLate(fault{kind: tt.kind}, tt.late); got != tt.want {
			t.Errorf("%s late by %s: left out %t, want %t", tt.kind, tt.late, got, tt.want)
		}
	}
}
