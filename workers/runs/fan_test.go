package runs_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
	"parley/workers/runs"
)

const mapReduce = `{"task_id":"%s","agents":[
	{"id":"list","brief":"list","dependencies":[]},
	{"id":"each","brief":"${index} ${item/name}","dependencies":["list"],"fan_out":{"from":"list","pointer":"/files","concurrency":%d},"on_failure":%q},
	{"id":"sum","brief":"sum ${each}","dependencies":["each"]}]}`

// files answers the task list with n files, and others with what they are.
func files(n int, fails func(brief string) bool) func(d *fleet.Dispatch) (*fleet.Result, bool) {
	return func(d *fleet.Dispatch) (*fleet.Result, bool) {
		brief, _, _ := strings.Cut(d.Brief, "\n\n")
		if fails(brief) {
			return broke("not " + brief), true
		}
		r := said("did " + brief)
		if brief == "list" {
			list := make([]map[string]string, n)
			for i := range list {
				list[i] = map[string]string{"name": fmt.Sprintf("f%d", i)}
			}
			r.Output = fleet.MustEncode(map[string]any{"files": list})
		}
		return r, true
	}
}

// A list becomes a task for each item, no more at a time than is said, and a
// list of outputs. Another worker goes on in the middle of it, with what is
// stored; nothing that was done is done again, whoever was deaf meanwhile.
func TestFanOut(t *testing.T) {
	t.Parallel()
	const n = 300
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	held := make(chan struct{})
	work := files(n, func(string) bool { return false })
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) {
		if k.count(func(*job) bool { return true }) > n/2 {
			<-held
		}
		return work(d)
	}
	stop := serve(t, runs.Config{Bus: b})
	s := newSessions(t, b)
	id := start(t, b, fmt.Sprintf(mapReduce, "map", 7, ""))
	bustest.Eventually(t, "half of it is dispatched", func() bool { return k.count(func(*job) bool { return true }) > n/2 })
	stop()
	k.change(func() { k.deaf = true })
	close(held)
	bustest.Eventually(t, "what is under way has ended", func() bool { return k.count(func(j *job) bool { return !j.view.State.Terminal() }) == 0 })
	k.change(func() { k.deaf = false })
	serve(t, runs.Config{Bus: b})
	r := until(t, b, id, run.Done)
	if each := r.Nodes["each"]; each.Items == nil || each.Items.Done != n || each.Items.Total != n || each.Items.Failed != 0 || each.Attempts != n || each.Tokens != 2*n {
		t.Errorf("each is %+v, items %+v", each, each.Items)
	}
	if got := k.count(func(*job) bool { return true }); got != n+2 {
		t.Errorf("%d tasks, want %d", got, n+2)
	}
	if k.mostBusy > 7 {
		t.Errorf("%d were under way at a time, want 7 at most", k.mostBusy)
	}
	o := output(t, b, id)
	each := o.Results[1].Each
	if len(each) != n {
		t.Fatalf("the document has %d items", len(each))
	}
	for i, it := range each {
		if want := fmt.Sprintf(`"did %d f%d"`, i, i); it.Index != i || string(it.Result.Output) != want || it.State != run.Done {
			t.Errorf("item %d is %+v: %s, want %s", i, it.Status, it.Result.Output, want)
		}
	}
	sum := k.tasks[runs.TaskID(id, "sum", 1)].dispatch.Brief
	if !strings.HasPrefix(sum, `sum ["did 0 f0","did 1 f1",`) {
		t.Errorf("sum was told %.100s", sum)
	}
	if !bytes.Equal(document(t, b, id), document(t, b, id)) {
		t.Error("the document changes")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.appends) != 1 || len(s.appends[0].Entry.Output) < n*10 {
		t.Errorf("the session was told %d times", len(s.appends))
	}
}

// Who takes over a fan-out of which an item has failed begins nothing more, and
// waits for what the one before has begun.
func TestFanOutFailsOverATakeOver(t *testing.T) {
	t.Parallel()
	const n, begun = 40, 9
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	held := make(chan struct{})
	work := files(n, func(brief string) bool { return brief == "3 f3" })
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) {
		if !strings.HasPrefix(d.Brief, "list") && !strings.HasPrefix(d.Brief, "3 ") {
			<-held
		}
		return work(d)
	}
	stop := serve(t, runs.Config{Bus: b})
	id := start(t, b, fmt.Sprintf(mapReduce, "fails", begun, "fail"))
	bustest.Eventually(t, "the failure is stored", func() bool {
		i := get(t, b, id).Nodes["each"].Items
		return i != nil && i.Failed == 1 && i.Chunks == 1
	})
	stop()
	serve(t, runs.Config{Bus: b})
	over := func() bool { return get(t, b, id).State.Ended() }
	bustest.Eventually(t, "it is known what is under way", func() bool {
		k.mu.Lock()
		asked := len(k.asked)
		k.mu.Unlock()
		return asked >= n-1 || over()
	})
	close(held)
	r := until(t, b, id, run.Failed)
	if i := r.Nodes["each"].Items; i.Done+i.Failed != k.count(func(*job) bool { return true })-1 || i.Failed != 1 || i.Done < begun-1 || i.Done > begun {
		t.Errorf("%d done and %d failed of %d that were begun", i.Done, i.Failed, k.count(func(*job) bool { return true })-1)
	}
}

// An item that was dispatched, though no answer says so, is awaited when another
// one fails.
func TestFanOutFailsOverALostAnswer(t *testing.T) {
	t.Parallel()
	const n = 8
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	lost, held := make(chan struct{}), make(chan struct{})
	k.lose = func(d *fleet.Dispatch) bool {
		if strings.HasPrefix(d.Brief, "5 ") {
			close(lost)
			return true
		}
		return false
	}
	work := files(n, func(brief string) bool { return brief == "3 f3" })
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) {
		switch {
		case strings.HasPrefix(d.Brief, "3 "):
			<-lost
		case strings.HasPrefix(d.Brief, "5 "):
			<-held
		}
		return work(d)
	}
	serve(t, runs.Config{Bus: b})
	id := start(t, b, fmt.Sprintf(mapReduce, "lost", n, "fail"))
	bustest.Eventually(t, "what was dispatched is asked about", func() bool {
		k.mu.Lock()
		asked := k.asked[runs.ItemID(id, "each", 1, 5)]
		k.mu.Unlock()
		return asked || get(t, b, id).State.Ended()
	})
	close(held)
	if i := until(t, b, id, run.Failed).Nodes["each"].Items; i.Done != n-1 || i.Failed != 1 {
		t.Errorf("%d done and %d failed of %d that were begun", i.Done, i.Failed, n)
	}
}

// While a run is paused its fan-outs begin nothing, and go on when it is resumed.
func TestFanOutPauses(t *testing.T) {
	t.Parallel()
	const n = 300
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	may := make(chan struct{}, n)
	work := files(n, func(string) bool { return false })
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) {
		if !strings.HasPrefix(d.Brief, "list") {
			<-may
		}
		return work(d)
	}
	serve(t, runs.Config{Bus: b})
	id := start(t, b, fmt.Sprintf(mapReduce, "pausing", 7, ""))
	underWay := func() int { return k.count(func(j *job) bool { return !j.view.State.Terminal() }) }
	bustest.Eventually(t, "seven are under way", func() bool { return underWay() == 7 })
	if _, err := ask[run.Record](t, b, "pause", &run.Ref{RunID: id}); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "none is", func() bool {
		select {
		case may <- struct{}{}:
		default:
		}
		return underWay() == 0
	})
	if got := k.count(func(*job) bool { return true }); got > n/2 {
		t.Errorf("%d tasks were begun, of a run that was paused at 8", got)
	}
	close(may)
	if _, err := ask[run.Record](t, b, "resume", &run.Ref{RunID: id}); err != nil {
		t.Fatal(err)
	}
	if r := until(t, b, id, run.Done); r.Nodes["each"].Items.Done != n {
		t.Errorf("%d items are done, want %d", r.Nodes["each"].Items.Done, n)
	}
}

// Whatever the sizes, failures and what is done about them: a fan-out ends as a
// simple model says, and a retry does what failed, and nothing else.
func TestFanOutAgainstAModel(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	serve(t, runs.Config{Bus: b})
	serve(t, runs.Config{Bus: b})
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		if round++; round > 15 {
			return // each takes a run and its retry
		}
		n := rapid.IntRange(0, 9).Draw(rt, "n")
		bad := map[string]bool{}
		for i := range n {
			if rapid.IntRange(0, 4).Draw(rt, "bad") == 0 {
				bad[fmt.Sprintf("%d f%d", i, i)] = true
			}
		}
		policy := rapid.SampledFrom([]string{run.OnFailureFail, run.OnFailureContinue}).Draw(rt, "policy")
		id := subjects.RunID(fmt.Sprintf("m%d", round))
		k.change(func() { k.work = files(n, func(brief string) bool { return bad[brief] }) })
		before := len(k.briefs())
		start(t, b, fmt.Sprintf(mapReduce, id, rapid.IntRange(0, 4).Draw(rt, "concurrency"), policy))
		want := run.Done
		if len(bad) > 0 && policy == run.OnFailureFail {
			want = run.Failed
		}
		r := until(t, b, id, want)
		checkFan(rt, r, n, len(bad), policy)
		first := k.briefs()[before:]
		k.change(func() { k.work = files(n, func(string) bool { return false }) })
		before += len(first)
		if _, err := ask[run.Record](t, b, "retry", &run.Ref{RunID: id}); err != nil {
			rt.Fatal(err)
		}
		r = until(t, b, id, run.Done)
		checkFan(rt, r, n, 0, policy)
		for _, brief := range k.briefs()[before:] {
			if slices.Contains(first, brief) && !bad[brief] && !strings.HasPrefix(brief, "sum") {
				rt.Fatalf("%q was done, and is done again", brief)
			}
		}
		o := output(t, b, id)
		if len(o.Results[1].Each) != n {
			rt.Fatalf("the document has %d of %d items", len(o.Results[1].Each), n)
		}
	})
}

func checkFan(t *rapid.T, r *run.Record, n, bad int, policy string) {
	each := r.Nodes["each"]
	state, sum := run.Done, run.Done
	if bad > 0 {
		state = run.Failed
	}
	if bad > 0 && policy == run.OnFailureFail {
		sum = run.Skipped
	}
	if each.State != state || r.Nodes["sum"].State != sum || each.Items == nil || each.Items.Total != n {
		t.Fatalf("each is %s with %+v, sum is %s; want %s and %s", each.State, each.Items, r.Nodes["sum"].State, state, sum)
	}
	if i := each.Items; policy == run.OnFailureContinue && (i.Done != n-bad || i.Failed != bad) || i.Failed > bad {
		t.Fatalf("items %+v, want %d done and %d failed", i, n-bad, bad)
	}
}

func TestFanOutOfNoList(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	newDesk(t, b)
	serve(t, runs.Config{Bus: b})
	r := until(t, b, start(t, b, fmt.Sprintf(mapReduce, "none", 0, "")), run.Failed)
	if each := r.Nodes["each"]; each.Reason == nil || each.Reason.Code != subjects.CodeResultInvalid || r.Nodes["sum"].State != run.Skipped {
		t.Errorf("each is %+v", each)
	}
}

// Canceling a run reaches the tasks of every item; later results change
// nothing. Items that are refused for now are begun later.
func TestFanOutIsCanceled(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	refused := 0
	k.refuse = func(*fleet.Dispatch) error {
		if refused++; refused < 10 {
			return subjects.Errorf(subjects.CodeRateLimited, "not now")
		}
		return nil
	}
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) { return said("x"), strings.HasPrefix(d.Brief, "fast") }
	serve(t, runs.Config{Bus: b})
	items, err := json.Marshal(strings.Split(strings.Repeat("fast,slow,", 20)+"slow", ","))
	if err != nil {
		t.Fatal(err)
	}
	id := start(t, b, fmt.Sprintf(`{"task_id":"c","agents":[{"id":"e","brief":"${item}","fan_out":{"items":%s}}]}`, items))
	bustest.Eventually(t, "20 items are done", func() bool {
		i := get(t, b, id).Nodes["e"].Items
		return i != nil && i.Done == 20 && k.count(func(*job) bool { return true }) == 41
	})
	if _, err := ask[run.Record](t, b, "cancel", &run.Ref{RunID: id, Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	r := until(t, b, id, run.Canceled)
	if n := k.count(func(j *job) bool { return j.canceled && j.view.State == fleet.StateCanceled }); n != 21 || r.Nodes["e"].Items.Done != 20 {
		t.Errorf("%d tasks were canceled, want 21; items %+v", n, r.Nodes["e"].Items)
	}
	if o := output(t, b, id); len(o.Results[0].Each) < 20 {
		t.Errorf("the document has %d items", len(o.Results[0].Each))
	}
}

// A cancel that comes while items are dispatched reaches those, too, whose
// dispatch the fleet has not stored yet.
func TestFanOutIsCanceledAsItBegins(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false }
	began := make(chan struct{}, 100)
	sought := make(chan struct{})
	var once sync.Once
	var dispatches sync.WaitGroup
	dispatches.Add(20)
	k.before = func(*fleet.Dispatch) {
		began <- struct{}{}
		select {
		case <-sought:
		case <-time.After(50 * time.Millisecond):
		}
		dispatches.Done()
	}
	k.sought = func(subjects.TaskID) { once.Do(func() { close(sought) }) }
	serve(t, runs.Config{Bus: b})
	id := start(t, b, `{"agents":[{"id":"e","brief":"${item}","fan_out":{"items":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]}}]}`)
	for range 20 {
		<-began
	}
	if _, err := ask[run.Record](t, b, "cancel", &run.Ref{RunID: id, Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	until(t, b, id, run.Canceled)
	dispatches.Wait()
	bustest.Eventually(t, "all dispatches are stored", func() bool { return len(k.briefs()) == 20 })
	if n := k.count(func(j *job) bool { return !j.canceled }); n != 0 {
		t.Errorf("%d of 20 tasks go on after the run was canceled", n)
	}
}

// underWay are the runs of one task, and of one item, whose dispatch is stored
// only after a while, of which nobody is told.
func underWay(t *testing.T, after time.Duration, do func(*testing.T, *bus.Bus, *desk, subjects.RunID, func())) {
	t.Helper()
	for name, node := range map[string]string{"node": `{"id":"e","brief":"x"}`, "item": `{"id":"e","brief":"x","fan_out":{"items":[1]}}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := bustest.NewFake(t).Bus(t)
				k := newDesk(t, b)
				k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false }
				k.before = func(*fleet.Dispatch) { time.Sleep(after) }
				stop := serve(t, runs.Config{Bus: b})
				id := start(t, b, `{"agents":[`+node+`]}`)
				time.Sleep(time.Second)
				do(t, b, k, id, stop)
				if _, err := ask[run.Record](t, b, "cancel", &run.Ref{RunID: id, Reason: "enough"}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(40 * time.Second)
				if r := get(t, b, id); r.State != run.Canceled {
					t.Errorf("40 s later the run is %s", r.State)
				}
				if n := k.count(func(j *job) bool { return j.canceled }); n != 1 || len(k.tasks) != 1 {
					t.Errorf("%d of %d tasks were canceled, want the one", n, len(k.tasks))
				}
			})
		})
	}
}

// TestCancelOfWhatMayBeUnderWay: a cancel reaches what a router stores for as
// long as it tries to.
func TestCancelOfWhatMayBeUnderWay(t *testing.T) {
	t.Parallel()
	underWay(t, 22*time.Second, func(*testing.T, *bus.Bus, *desk, subjects.RunID, func()) {})
}

// TestCancelAfterAnotherDriver: nor does what the worker before has sent escape.
func TestCancelAfterAnotherDriver(t *testing.T) {
	t.Parallel()
	underWay(t, 8*time.Second, func(t *testing.T, b *bus.Bus, _ *desk, id subjects.RunID, stop func()) {
		t.Helper()
		stop()
		rewrite(t, b, id, func(r *run.Record) { r.Cancel = "enough" })
		serve(t, runs.Config{Bus: b})
	})
}

// TestFailureWhileADispatchIsInDoubt: a fan-out that fails awaits what may have
// been begun, too.
func TestFailureWhileADispatchIsInDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		k := newDesk(t, b)
		k.before = func(d *fleet.Dispatch) {
			if strings.HasPrefix(d.Brief, "7") {
				time.Sleep(12 * time.Second)
			}
		}
		k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) {
			if strings.HasPrefix(d.Brief, "3") {
				time.Sleep(6 * time.Second)
				return broke("no"), true
			}
			time.Sleep(10 * time.Second)
			return said(d.Brief), true
		}
		serve(t, runs.Config{Bus: b})
		id := start(t, b, `{"agents":[{"id":"e","brief":"${item}","fan_out":{"items":[3,7]}}]}`)
		for n := 0; get(t, b, id).State != run.Failed; n++ {
			if time.Sleep(time.Second); n == 100 {
				t.Fatalf("%+v", get(t, b, id))
			}
		}
		if n := k.count(func(j *job) bool { return j.view.State.Terminal() }); n != 2 {
			t.Errorf("%d tasks have ended when the run has failed, want both", n)
		}
	})
}

// A run can be canceled, too, while a fan-out is under way whose list is too large
// to be read.
func TestCancelOfAListTooLarge(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	long := strings.Repeat("x", 1_000_000)
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) { return said(long), !strings.HasPrefix(d.Brief, "slow") }
	stop := serve(t, runs.Config{Bus: b})
	id := start(t, b, `{"agents":[{"id":"each","fan_out":{"items":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}},
		{"id":"slow","brief":"slow"},{"id":"more","dependencies":["each","slow"],"fan_out":{"from":"each"}}]}`)
	bustest.Eventually(t, "each is done", func() bool { return get(t, b, id).Nodes["each"].State == run.Done })
	stop()
	rewrite(t, b, id, func(r *run.Record) { // more was begun, and the cancel comes before it has failed
		r.Nodes["more"], r.Cancel = run.Status{State: run.Dispatched, Generation: 1, TaskID: runs.TaskID(id, "more", 1)}, "enough"
	})
	serve(t, runs.Config{Bus: b})
	if n := until(t, b, id, run.Canceled).Nodes["more"]; n.State != run.Canceled || n.Items != nil {
		t.Errorf("more is %s with %+v", n.State, n.Items)
	}
}
