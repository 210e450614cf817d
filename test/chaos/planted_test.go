//go:build linux

package main

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
	"time"
)

// bugs are all that can be planted, and what the checker says of each.
var bugs = []struct{ name, want, only string }{
	{"dispatch_lost", "there is no record of it", ""},
	{"second_outcome", "follows the outcome", garbage},
	{"seq_gap", "has seq", ""},
	{"two_leases", "two leases", ""},
	{"stranger_counts", "the records know", ""},
	{"result_lost", "was taken in, and the task is", ""},
	{"retry_forever", "is retry", ""},
	{"failed_again", "after it failed it for good", ""},
	{"label_ignored", "VIOLATION 6 eligible", ""},
	{"deadline_ignored", "has no outcome", ""},
	{"cancel_lost", "was told canceled by cancel", ""},
	{"key_ignored", "VIOLATION 13 idempotency", ""},
	{"sender_forged", "nobody dispatched it", garbage},
	{"append_lost", "VIOLATION L contexts", ""},
	{"delete_lost", "VIOLATION 9 session", ""},
	{"escalation_lost", "escalations say so", ""},
	{"body_changes", "the signature of a call does not hold", ""},
	{"sign_wrong", "the signature of a call does not hold", ""},
	{"line_lost", "no line tells of record", ""},
	{"line_edited", "VIOLATION 11 audit", ""},
	{"letter_lost", "nobody had it", ""},
	{"node_early", "was begun before", ""},
	{"tick_twice", "no time of a schedule is this task", ""},
	{"tick_lost", "was missed, and nothing explains that", ""},
	{"inbox_lost", "there is no record of it", ""},
	{"forgotten", "23 liveness", ""},
	{"stale_read", "VIOLATION L contexts", ""},
	{"retry_at_once", "VIOLATION 5 backoff", ""},
	{"budget_ignored", "VIOLATION 7 budget", ""},
	{"tokens_twice", "tokens are counted", ""},
	{"stranger_sees", "16 secrets", ""},
	{"ghost_offered", "24 silence", muteAgents},
	{"stream_gap", "VIOLATION 22 streams", ""},
	{"limit_silent", "there is no record of it", ""},
	{"limit_ignored", "are under way, and 4 may be", ""},
	{"replay_counts", "ended twice", ""},
	{"piece_twice", "publishes what seq", ""},
	{"link_twice", "its answer was taken once more", ""},
	{"leak", "25 resources", ""},
	{"leak_goroutines", "goroutines, and had", ""},
	{"inbox_kept", "FLEET_INBOX: it keeps", ""},
	{"shared_budget_ignored", "VIOLATION 19 budgets", ""},
	{"charge_lost", "which is not charged to", ""},
	{"charged_twice", "none of those that it has is", ""},
	{"level_skipped", "was answered on level 3, and", ""},
	{"retry_skipped", "might have tried again", ""},
	{"late", "something was due", ""},
	{"cancel_untold", "after its client knew that it is canceled", ""},
	{"stale_task", "VIOLATION L reads", ""},
	{"told_once", "hears nothing of it for", ""},
	{"told_often", "hears call", ""},
	{"told_after", "times more after that was taken in: ack", ""},
	{"over_lost", "after what waited was over", ""},
	{"one_key", "a call is not signed by key 0, which is in force", replaceKey},
	{"stamp_wrong", "is stamped", ""},
}

// TestPlantedBugs plants one bug after the other in the program and sees that
// the checker finds it. That takes its time: -chaos.planted.
func TestPlantedBugs(t *testing.T) {
	if !*planted {
		t.Skip("-chaos.planted plants them")
	}
	chaos, parley := programs(t)
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			only := b.only
			if only == "" {
				only = "none"
			}
			out, err := run(t, chaos, 5*time.Minute, "-parley", parley, "-time", "20s", "-rate", "40", "-plant", b.name, "-only", only, "-lose", "0")
			if err == nil || !strings.Contains(out, b.want) {
				t.Errorf("%v: no %q in\n%s", err, b.want, out)
			}
		})
	}
}

// TestEveryBugIsListed holds the list against the sources.
func TestEveryBugIsListed(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, b := range bugs {
		listed = append(listed, b.name)
	}
	slices.Sort(listed)
	if found := sourceBugs(t); !slices.Equal(found, listed) {
		t.Errorf("bugs in the sources: %v\nin the list: %v", found, listed)
	}
}

// sourceBugs are the names that plant.Bug and plant.Sometimes are asked for.
func sourceBugs(t *testing.T) (names []string) {
	t.Helper()
	err := filepath.WalkDir("../../workers", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			s, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "plant" && len(call.Args) > 0 {
				if lit, ok := call.Args[0].(*ast.BasicLit); ok {
					if name, err := strconv.Unquote(lit.Value); err == nil {
						names = append(names, name)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
