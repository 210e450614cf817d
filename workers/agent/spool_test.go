package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

func files(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*.json*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// leave puts a result of an earlier process into a spool.
func leave(t *testing.T, dir string, id subjects.AgentID, task subjects.TaskID) {
	t.Helper()
	old := &fleet.Result{
		Header: fleet.Header{Type: fleet.TypeResult, ProtocolVersion: fleet.Version}, TaskID: task, AgentID: id,
		Status: fleet.StatusDone, Attempt: 2, Epoch: 5, InstanceID: "old",
	}
	if err := os.WriteFile(filepath.Join(dir, string(task)+".5.2.json"), fleet.MustEncode(old), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A result that nobody answered survives the process and is handed in by the
// next, as what it was.
func TestSpool(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	dir := t.TempDir()
	r.answers(func(int, fleet.Result) any { return nil })
	first := r.start(agent.Config{Handler: agent.Echo{}, Spool: dir, Grace: -1, HandIn: time.Millisecond})
	first.give(dispatch("t1", "work"))
	r.result("t1")
	first.end()
	if got := files(t, dir); len(got) != 1 {
		t.Fatalf("spool = %v, want one file", got)
	}
	r.answers(func(int, fleet.Result) any { return fleet.ResultReply{OK: true} })
	drained(r.results)
	drained(r.announces)
	second := r.start(agent.Config{Handler: agent.Echo{}, Spool: dir})
	got := r.result("t1")
	if got.Epoch != first.Epoch() || got.InstanceID != first.Instance() || got.Attempt != 1 || output(t, got) != "work" {
		t.Errorf("result = %+v, want the first process's", got)
	}
	second.give(dispatch("t2", "more"))
	r.result("t2")
	second.gone()
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("spool = %v, want it empty", got)
	}
}

// What was spooled is answered before the agent announces itself.
func TestSpoolGoesFirst(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	dir := t.TempDir()
	leave(t, dir, "bob", "t1")
	if err := os.WriteFile(filepath.Join(dir, "junk.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	announced := make(chan bool, 1)
	r.answers(func(int, fleet.Result) any {
		announced <- len(r.announces) > 0
		return fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeLateResult, "late")}
	})
	r.start(agent.Config{Handler: agent.Echo{}, Spool: dir})
	r.result("t1")
	if next(t, "the result", announced) {
		t.Error("the agent was announced before the result of its predecessor was answered")
	}
	next(t, "the announce", r.announces)
	if got := files(t, dir); len(got) != 1 || filepath.Base(got[0]) != "junk.json.bad" {
		t.Errorf("spool = %v, want junk.json.bad alone", got)
	}
}

// What another agent has left in a spool is its own: it stays as it is.
func TestSpoolOfTwoAgents(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	dir := t.TempDir()
	leave(t, dir, "ann", "hers")
	leave(t, dir, "bob", "his")
	r.start(agent.Config{Handler: agent.Echo{}, Spool: dir}).end()
	r.result("his")
	if got := files(t, dir); len(got) != 1 || filepath.Base(got[0]) != "hers.5.2.json" {
		t.Errorf("spool = %v, want ann's result alone", got)
	}
}

// What other instances have left that are gone is handed in when an instance
// starts, and when they go later, while it has their spool to itself.
func TestOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouterOn(t, bustest.NewFake(t))
		dir := t.TempDir()
		taken := 0
		r.answers(func(int, fleet.Result) any { return fleet.ResultReply{OK: taken == 1} })
		leave(t, dir, "bob", "t1")
		r.start(agent.Config{Handler: agent.Echo{}, Spool: t.TempDir(), Orphans: func(take func(string)) error {
			taken++
			take(dir)
			taken--
			return nil
		}})
		r.result("t1")
		synctest.Wait()
		if got := files(t, dir); len(got) != 0 {
			t.Errorf("spool = %v at the start, want it empty", got)
		}
		leave(t, dir, "bob", "t2")
		time.Sleep(time.Minute)
		r.result("t2")
		synctest.Wait()
		if got := files(t, dir); len(got) != 0 {
			t.Errorf("spool = %v a minute later, want it empty", got)
		}
	})
}

// A result that nobody takes keeps no other one in the spools, and goes on
// being handed in.
func TestALeftoverThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouterOn(t, bustest.NewFake(t))
		own, dir := t.TempDir(), t.TempDir()
		r.answers(func(_ int, x fleet.Result) any {
			if x.TaskID == "own-1" || x.TaskID == "t1" {
				return fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeUnavailable, "later")}
			}
			return fleet.ResultReply{OK: true}
		})
		for _, task := range []subjects.TaskID{"own-1", "own-2"} {
			leave(t, own, "bob", task)
		}
		for _, task := range []subjects.TaskID{"t1", "t2"} {
			leave(t, dir, "bob", task)
		}
		r.start(agent.Config{Handler: agent.Echo{}, Spool: own, Orphans: func(take func(string)) error {
			take(dir)
			return nil
		}})
		r.result("own-2")
		r.result("t2")
		time.Sleep(2 * time.Minute)
		if got := append(files(t, own), files(t, dir)...); len(got) != 2 {
			t.Errorf("spools = %v, want what nobody takes", got)
		}
		r.answers(func(int, fleet.Result) any { return fleet.ResultReply{OK: true} })
		time.Sleep(2 * time.Minute)
		if got := append(files(t, own), files(t, dir)...); len(got) != 0 {
			t.Errorf("spools = %v once it is taken, want them empty", got)
		}
	})
}

// The result is on disk before anybody hears of it.
func TestSpoolBeforeSending(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	dir := t.TempDir()
	seen := make(chan int, 1)
	r.answers(func(int, fleet.Result) any {
		list, _ := filepath.Glob(filepath.Join(dir, "*.json"))
		seen <- len(list)
		return fleet.ResultReply{OK: true}
	})
	a := r.start(agent.Config{Spool: dir, Handler: agent.HandlerFunc(func(context.Context, *agent.Task) (fleet.Result, error) {
		return agent.Text("x"), nil
	})})
	a.give(dispatch("t1", "x"))
	if n := next(t, "the result", seen); n != 1 {
		t.Errorf("%d files when the result was sent, want 1", n)
	}
}

// TestEpochsGrow keeps the last epoch with the results: a clock that was set
// back makes no instance older than the one before it.
func TestEpochsGrow(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	dir := t.TempDir()
	later := strconv.FormatInt(time.Now().Add(time.Hour).UnixNano(), 10)
	if err := os.WriteFile(filepath.Join(dir, "epoch"), []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	last, err := strconv.ParseInt(later, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a := r.start(agent.Config{Handler: agent.Echo{}, Spool: dir})
		if a.Epoch() <= last {
			t.Errorf("epoch %d follows %d", a.Epoch(), last)
		}
		last = a.Epoch()
		a.gone()
	}
}
