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

// bug is one that can be planted.
type bug struct {
	name, invariant string // that it violates
	want            string // is in what the checker says of that; "": whatever it says
	only            string // the kinds of faults beside it; "": none
}

// takes is how long its load lasts: agents are hurt and limited in time to show it.
func (b bug) takes() string {
	if n, _, _ := strings.Cut(b.invariant, " "); slices.Contains([]string{"26", "27", "28", "29", "30", "31", "32", "33"}, n) {
		return "45s"
	}
	return "20s"
}

// found reports whether an output names the bug.
func (b bug) found(out string) bool {
	for l := range strings.Lines(out) {
		if _, said, is := strings.Cut(l, "VIOLATION "+b.invariant+": "); is && strings.Contains(said, b.want) {
			return true
		}
	}
	return false
}

// bugs are all that can be planted, and what the checker says of each.
var bugs = []bug{
	{"dispatch_lost", "1-5 tasks", "there is no record of it", ""},
	{"second_outcome", "1-5 tasks", "follows the outcome", garbage},
	{"seq_gap", "1-5 tasks", "has seq", ""},
	{"two_leases", "1-5 tasks", "two leases", ""},
	{"stranger_counts", "1-5 tasks", "the records know", ""},
	{"result_lost", "1-5 tasks", "was taken in, and the task is", ""},
	{"retry_forever", "1-5 tasks", "is retry", ""},
	{"failed_again", "1-5 tasks", "after it failed it for good", ""},
	{"label_ignored", "6 eligible", "", ""},
	{"deadline_ignored", "1-5 tasks", "has no outcome", ""},
	{"cancel_lost", "1 one outcome", "was told canceled by cancel", ""},
	{"key_ignored", "13 idempotency", "", ""},
	{"sender_forged", "2 from nowhere", "nobody dispatched it", garbage},
	{"append_lost", "10 context", "", ""},
	{"delete_lost", "9 session", "", ""},
	{"escalation_lost", "8 humans", "escalations say so", ""},
	{"body_changes", "8 signatures", "the signature of a call does not hold", ""},
	{"sign_wrong", "8 signatures", "the signature of a call does not hold", ""},
	{"line_lost", "11 audit", "no line tells of record", ""},
	{"line_edited", "11 audit", "", ""},
	{"letter_lost", "14 mesh", "nobody had it", ""},
	{"node_early", "15 runs", "was begun before", ""},
	{"tick_twice", "S schedules", "no time of a schedule is this task", ""},
	{"tick_lost", "S schedules", "was missed, and nothing explains that", ""},
	{"inbox_lost", "1-5 tasks", "there is no record of it", ""},
	{"forgotten", "23 liveness", "", ""},
	{"stale_read", "L contexts", "", ""},
	{"retry_at_once", "5 backoff", "", ""},
	{"budget_ignored", "7 budget", "", ""},
	{"tokens_twice", "7 budget", "tokens are counted", ""},
	{"stranger_sees", "16 secrets", "", ""},
	{"ghost_offered", "24 silence", "", muteAgents},
	{"stream_gap", "22 streams", "", ""},
	{"limit_silent", "1-5 tasks", "there is no record of it", ""},
	{"parallel_ignored", "22 limits", "are under way, and 4 may be", ""},
	{"replay_counts", "17 replays", "ended twice", ""},
	{"piece_twice", "17 replays", "publishes what seq", ""},
	{"link_twice", "17 replays", "its answer was taken once more", ""},
	{"leak", "25 resources", "", ""},
	{"leak_goroutines", "25 resources", "goroutines, and had", ""},
	{"shared_budget_ignored", "19 budgets", "", ""},
	{"charge_lost", "19 budgets", "which is not charged to", ""},
	{"charged_twice", "19 budgets", "none of those that it has is", ""},
	{"level_skipped", "5 levels", "was answered on level 3, and", ""},
	{"retry_skipped", "5 levels", "might have tried again", ""},
	{"late", "7 deadline", "something was due", ""},
	{"cancel_untold", "21 cancel", "after its client knew that it is canceled", ""},
	{"stale_task", "L reads", "", ""},
	{"told_once", "8 humans", "hears nothing of it for", ""},
	{"told_often", "8 humans", "hears call", ""},
	{"told_after", "8 humans", "times more after that was taken in: ack", ""},
	{"over_lost", "8 humans", "after what waited was over", ""},
	{"one_key", "8 signatures", "a call is not signed by key 0, which is in force", replaceKey},
	{"stamp_wrong", "8 signatures", "is stamped", ""},
	{"loss_excludes", "26 done", "only killed, paused and limited", ""},
	{"limit_burns", "30 accounts", "which had been known for", ""},
	{"epoch_banned", "26 done", "only killed, paused and limited", ""},
	{"requeue_never", "27 promptly", "had nothing to do for", ""},
	{"limit_forever", "27 promptly", "had nothing to do for", ""},
	{"widen_never", "27 promptly", "had nothing to do for", ""},
	{"suspect_never", "28 ends", "and it goes on", ""},
	{"row_always_broken", "29 counters", "counts", ""},
	{"loss_counts_retry", "29 counters", "counts", ""},
	{"limit_ignored", "30 accounts", "which had been known for", ""},
	{"early_by_skew", "30 accounts", "which had been known for", ""},
	{"herd", "30 accounts", "was to show whether", ""},
	{"lease_short", "31 losses", "nothing had happened to it", ""},
	{"wait_silent", "32 waits", "is told that it waits for", ""},
	{"wait_stale", "32 waits", "its client is told", ""},
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
			var out string
			for range 3 { // some have few chances in so short a load, or none while others have the machine
				var err error
				if out, err = run(t, chaos, 5*time.Minute, "-parley", parley, "-time", b.takes(), "-rate", "40", "-plant", b.name, "-only", only, "-lose", "0"); err != nil && b.found(out) {
					return
				}
			}
			t.Errorf("no %q of %q in\n%s", b.want, b.invariant, out)
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
