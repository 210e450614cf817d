package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

func TestTask(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.Echo{}})
	d := dispatch("t1", "say this")
	p := a.offer(d)
	if !p.accepted() || p.ack.Epoch != a.Epoch() {
		t.Fatalf("offer = %+v, want accepted with epoch %d", p.ack, a.Epoch())
	}
	got := r.result("t1")
	want := fleet.Result{
		Header: fleet.Header{Type: fleet.TypeResult, ProtocolVersion: fleet.Version},
		TaskID: "t1", Status: fleet.StatusDone, NextSteps: []string{}, Attempt: 1, Epoch: a.Epoch(),
		AgentID: "bob", InstanceID: a.Instance(), Output: []byte(`"say this"`),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	a.gone()
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	blocked := "the repository is private"
	for _, c := range []struct {
		name    string
		handler agent.HandlerFunc
		timeout float64
		want    fleet.Result
	}{
		{
			name: "an error is worth another try",
			handler: func(context.Context, *agent.Task) (fleet.Result, error) {
				return fleet.Result{TokensSpent: 5}, errors.New("boom")
			},
			want: fleet.Result{
				Status: fleet.StatusError, TokensSpent: 5, TokensSource: "reported",
				Error: &fleet.ResultError{Code: subjects.CodeAgentError, Message: "boom", Retryable: true},
			},
		},
		{
			name: "Fail chooses",
			handler: func(context.Context, *agent.Task) (fleet.Result, error) {
				return fleet.Result{}, fmt.Errorf("wrapped: %w", &agent.Fail{Code: subjects.CodeRateLimited, Message: "slow down", RetryAfter: 3 * time.Second, HTTPStatus: 429})
			},
			want: fleet.Result{
				Status: fleet.StatusError,
				Error:  &fleet.ResultError{Code: subjects.CodeRateLimited, Message: "slow down", RetryAfterSeconds: 3, HTTPStatus: 429},
			},
		},
		{
			name: "Blocked",
			handler: func(context.Context, *agent.Task) (fleet.Result, error) {
				return fleet.Result{}, agent.Blocked(blocked)
			},
			want: fleet.Result{Status: fleet.StatusBlocked, BlockedReason: &blocked},
		},
		{
			name:    "a panic is an error",
			handler: func(context.Context, *agent.Task) (fleet.Result, error) { panic("oh no") },
			want: fleet.Result{
				Status: fleet.StatusError,
				Error:  &fleet.ResultError{Code: subjects.CodeAgentError, Message: "the handler panicked: oh no", Retryable: true},
			},
		},
		{
			name: "time-out", timeout: 0.05,
			handler: func(ctx context.Context, _ *agent.Task) (fleet.Result, error) {
				<-ctx.Done()
				return fleet.Result{TokensSpent: 3, TokensSource: "measured"}, ctx.Err()
			},
			want: fleet.Result{
				Status: fleet.StatusError, TokensSpent: 3, TokensSource: "measured",
				Error: &fleet.ResultError{Code: subjects.CodeAgentTimeout, Message: "the attempt's time is over", Retryable: true},
			},
		},
		{
			name: "output that is no JSON",
			handler: func(context.Context, *agent.Task) (fleet.Result, error) {
				return fleet.Result{Output: []byte("{oops")}, nil
			},
			want: fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{Code: subjects.CodeResultInvalid, Retryable: true}},
		},
		{
			name: "output that is too large",
			handler: func(context.Context, *agent.Task) (fleet.Result, error) {
				return agent.Text(strings.Repeat("a", fleet.MaxMessage)), nil
			},
			want: fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{Code: subjects.CodePayloadTooLarge}},
		},
		{
			name: "partial without what remains",
			handler: func(context.Context, *agent.Task) (fleet.Result, error) {
				return fleet.Result{Status: fleet.StatusPartial}, nil
			},
			want: fleet.Result{Status: fleet.StatusPartial, Remaining: []string{"the agent did not say what"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRouter(t)
			a := r.start(agent.Config{Handler: c.handler})
			d := dispatch("t1", "x")
			if c.timeout != 0 {
				d.Task.TimeoutSeconds = c.timeout
			}
			a.give(d)
			got := r.result("t1")
			if got.Error != nil && c.want.Error != nil && c.want.Error.Message == "" {
				got.Error.Message = "" // whatever it says
			}
			want := c.want
			want.Header, want.TaskID, want.NextSteps, want.Attempt = got.Header, "t1", []string{}, 1
			want.Epoch, want.AgentID, want.InstanceID = a.Epoch(), "bob", a.Instance()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			a.gone()
		})
	}
}

// Fifty routers at once believe that there is room; three slots are what there
// is.
func TestSlotRace(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	g := newGate()
	var running, most atomic.Int64
	a := r.start(agent.Config{MaxParallel: 3, Handler: agent.HandlerFunc(func(ctx context.Context, task *agent.Task) (fleet.Result, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		return g.Handle(ctx, task)
	})})
	var wg sync.WaitGroup
	var accepted, busy atomic.Int64
	for i := range 50 {
		wg.Go(func() {
			p, err := a.try(dispatch(subjects.TaskID(fmt.Sprintf("t%d", i)), "x"))
			switch {
			case err != nil:
				t.Errorf("offer: %v", err)
			case p.accepted():
				accepted.Add(1)
			case p.code() == subjects.CodeAgentBusy:
				busy.Add(1)
			default:
				t.Errorf("offer refused as %s", p.code())
			}
		})
	}
	wg.Wait()
	if accepted.Load() != 3 || busy.Load() != 47 {
		t.Errorf("%d accepted, %d busy, want 3 and 47", accepted.Load(), busy.Load())
	}
	for range 3 {
		g.open <- agent.Text("ok")
	}
	for range 3 {
		next(t, "a result", r.results)
	}
	a.give(dispatch("later", "x"))
	g.open <- agent.Text("ok")
	r.result("later")
	if most.Load() > 3 {
		t.Errorf("%d handlers ran at once, want at most 3", most.Load())
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{
		Handler: agent.Echo{}, Tools: []string{"terminal"}, ModelTier: "haiku",
		MCP: agent.MCPConfig{
			Servers: []agent.MCPServer{{Name: "git"}, {Name: "web"}},
			Probe: func(_ context.Context, s agent.MCPServer) string {
				return map[string]string{"git": fleet.HealthOK, "web": fleet.HealthTimeout}[s.Name]
			},
		},
	})
	await(t, "an announce with both", r.announces, func(x fleet.Announce) bool {
		return x.MCPHealth["git"] == fleet.HealthOK && x.MCPHealth["web"] == fleet.HealthTimeout
	})
	for name, c := range map[string]struct {
		change func(*fleet.Dispatch)
		want   subjects.Code
	}{
		"sick server":        {func(d *fleet.Dispatch) { d.Requirements.RequiredMCP = []string{"git", "web"} }, subjects.CodeMCPUnhealthy},
		"no such server":     {func(d *fleet.Dispatch) { d.Requirements.RequiredMCP = []string{"mail"} }, subjects.CodeMCPUnhealthy},
		"missing capability": {func(d *fleet.Dispatch) { d.Requirements.RequiredCapabilities = []string{"browser"} }, subjects.CodeNoCapableAgent},
		"tier":               {func(d *fleet.Dispatch) { d.Requirements.ModelTier = "opus" }, subjects.CodeNoCapableAgent},
		"label":              {func(d *fleet.Dispatch) { d.Requirements.Labels = map[string]string{"gpu": "yes"} }, subjects.CodeNoCapableAgent},
		"no repository":      {func(d *fleet.Dispatch) { d.Requirements.CleanRepo = true }, subjects.CodeDirtyRepo},
		"deadline":           {func(d *fleet.Dispatch) { d.Deadline = new(time.Now().Add(-time.Second)) }, subjects.CodeDeadlineExceeded},
	} {
		d := dispatch("t1", "x")
		c.change(d)
		p := a.offer(d)
		if p.code() != c.want || p.result == nil || p.result.Status != fleet.StatusBlocked || p.result.TokensSpent != 0 || p.result.TaskID != "t1" {
			t.Errorf("%s: offer = %+v, want blocked as %s", name, p.result, c.want)
		}
	}
	d := dispatch("t2", "fine")
	d.Requirements = fleet.Requirements{RequiredMCP: []string{"git"}, RequiredCapabilities: []string{"terminal"}, ModelTier: "haiku"}
	a.give(d)
	r.result("t2")
	m, err := r.b.Request(t.Context(), subjects.Offer("bob", a.Instance()), []byte(`{"task":{"task_id":"a b"}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := fleet.DecodeResult(m.Data); err != nil || res.Error == nil || res.Status != fleet.StatusBlocked {
		t.Errorf("an offer that cannot be read is answered %s, want a blocked result", m.Data)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	g := newGate()
	a := r.start(agent.Config{Handler: g, MaxParallel: 2})

	for code, want := range map[subjects.Code]error{
		subjects.CodeCanceled: agent.ErrCanceled, subjects.CodeSuperseded: agent.ErrSuperseded,
		subjects.CodeAgentTimeout: agent.ErrSuperseded,
	} {
		a.give(dispatch("t1", "x"))
		next(t, "the handler", g.began)
		a.cancel("t1", 0, code)
		if cause := next(t, "its end", g.ended); !errors.Is(cause, want) {
			t.Errorf("cause after CANCEL %s = %v, want %v", code, cause, want)
		}
		a.gone()
	}
	// A CANCEL that is meant for an earlier attempt changes nothing.
	a.give(again(dispatch("t2", "x"), 3))
	next(t, "the handler", g.began)
	a.cancel("t2", 2, subjects.CodeSuperseded)
	g.open <- agent.Text("fine")
	if got := r.result("t2"); got.Status != fleet.StatusDone {
		t.Errorf("status = %s, want done", got.Status)
	}
	// What was canceled has no result.
	select {
	case x := <-r.results:
		t.Errorf("unexpected result %+v", x)
	default:
	}
}

func TestCancelBeforeItsOffer(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.Echo{}})
	a.cancel("t1", 1, subjects.CodeSuperseded)
	if p := a.offer(dispatch("t1", "x")); p.accepted() || p.code() != subjects.CodeAgentBusy {
		t.Errorf("an offer behind its CANCEL = %+v, want agent_busy", p)
	}
	a.give(again(dispatch("t1", "x"), 2))
	r.result("t1")
	a.cancel("t9", 0, subjects.CodeCanceled)
	if p := a.offer(again(dispatch("t9", "x"), 4)); p.accepted() {
		t.Error("an offer of a task that was canceled as a whole was accepted")
	}
}

// TestCancelOfAnOffer: a CANCEL of an offer ends what that offer began, and never
// what another one did, in whichever order they come.
func TestCancelOfAnOffer(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	g := newGate()
	a := r.start(agent.Config{Handler: g, MaxParallel: 2})
	by := func(id subjects.TaskID, offer string) *fleet.Dispatch {
		d := dispatch(id, "x")
		d.OfferID = offer
		return d
	}
	recall := func(id subjects.TaskID, offer string) {
		t.Helper()
		c := fleet.Control{Action: fleet.ActionCancel, TaskID: id, Attempt: 1, OfferID: offer, Reason: &fleet.Reason{Code: subjects.CodeSuperseded}}
		if p := a.tell(c); !p.OK {
			t.Errorf("CANCEL of offer %s = %+v, want ok", offer, p)
		}
	}
	// Of five stale offers two come, in between and behind the fresh one.
	a.give(by("t1", "stale1"))
	next(t, "the handler", g.began)
	a.give(by("t1", "fresh"))
	for _, offer := range []string{"stale1", "stale2", "stale3"} {
		recall("t1", offer)
	}
	if p := a.offer(by("t1", "stale3")); p.accepted() || p.code() != subjects.CodeAgentBusy {
		t.Errorf("a stale offer behind its CANCEL = %+v, want agent_busy", p)
	}
	a.give(by("t1", "stale4"))
	recall("t1", "stale4")
	await(t, "a heartbeat that names the offer", r.beats, func(h fleet.Heartbeat) bool {
		return len(h.Holding) == 1 && h.Holding[0].OfferID == "fresh"
	})
	g.open <- agent.Text("fine")
	if got := r.result("t1"); got.Status != fleet.StatusDone {
		t.Errorf("status = %s, want done", got.Status)
	}
	a.gone()
	// The last offer that it was accepted by ends it; a CANCEL that names none ends
	// it whichever began it.
	for _, c := range []struct{ id, offer string }{{"t2", "t2"}, {"t3", ""}} {
		id := subjects.TaskID(c.id)
		a.give(by(id, c.id))
		next(t, "the handler", g.began)
		recall(id, c.offer)
		if cause := next(t, "its end", g.ended); !errors.Is(cause, agent.ErrSuperseded) {
			t.Errorf("cause after a CANCEL of offer %q = %v, want superseded", c.offer, cause)
		}
		a.gone()
	}
	// One that comes before its offer cancels that alone.
	recall("t4", "early")
	if p := a.offer(by("t4", "early")); p.accepted() {
		t.Error("an offer behind its CANCEL was accepted")
	}
	a.give(by("t4", "later"))
	next(t, "the handler", g.began)
	g.open <- agent.Text("fine")
	r.result("t4")
}

func TestReoffer(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	g := newGate()
	a := r.start(agent.Config{Handler: g})
	d := dispatch("t1", "x")
	a.give(d)
	task := next(t, "the handler", g.began)
	a.give(again(d, 4))
	if p := a.offer(again(d, 2)); p.accepted() {
		t.Error("an offer of an earlier attempt was accepted")
	}
	await(t, "a heartbeat of attempt 4", r.beats, func(h fleet.Heartbeat) bool {
		return len(h.Holding) == 1 && h.Holding[0] == fleet.Holding{TaskID: "t1", Attempt: 4}
	})
	if err := task.Artifact(t.Context(), fleet.Artifact{Parts: []fleet.Part{{Text: new("piece")}}}); err != nil {
		t.Errorf("Artifact = %v", err)
	}
	if p := next(t, "the artifact", r.progresses); p.Attempt != 4 || p.Artifact.ArtifactID == "" {
		t.Errorf("artifact = %+v, want attempt 4", p)
	}
	g.open <- agent.Text("done")
	if got := r.result("t1"); got.Attempt != 4 || got.Status != fleet.StatusDone {
		t.Errorf("result of attempt %d, %s, want 4, done", got.Attempt, got.Status)
	}
	select {
	case <-g.began:
		t.Error("the handler ran twice")
	default:
	}
}

func TestReofferWhileHandingIn(t *testing.T) {
	t.Parallel()
	unavailable := fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeUnavailable, "later")}
	ok := fleet.ResultReply{OK: true}

	t.Run("done is sent again", func(t *testing.T) {
		t.Parallel()
		r := newRouter(t)
		r.answers(func(_ int, x fleet.Result) any {
			if x.Attempt == 1 {
				return unavailable
			}
			return ok
		})
		a := r.start(agent.Config{Handler: agent.Echo{}})
		a.give(dispatch("t1", "x"))
		r.result("t1")
		a.give(again(dispatch("t1", "x"), 2))
		got := await(t, "attempt 2", r.results, func(x fleet.Result) bool { return x.Attempt == 2 })
		if got.Status != fleet.StatusDone {
			t.Errorf("status = %s, want done", got.Status)
		}
		a.gone()
	})
	t.Run("a failure begins anew", func(t *testing.T) {
		t.Parallel()
		r := newRouter(t)
		r.answers(func(n int, x fleet.Result) any {
			if x.Attempt == 1 && n < 4 {
				return unavailable
			}
			return ok
		})
		a := r.start(agent.Config{Handler: agent.HandlerFunc(func(_ context.Context, task *agent.Task) (fleet.Result, error) {
			if task.Dispatch.Attempt == 1 {
				return fleet.Result{}, errors.New("boom")
			}
			return agent.Text("better"), nil
		})})
		a.give(dispatch("t1", "x"))
		r.result("t1")
		a.give(again(dispatch("t1", "x"), 2))
		got := await(t, "attempt 2", r.results, func(x fleet.Result) bool { return x.Attempt == 2 })
		if got.Status != fleet.StatusDone {
			t.Errorf("status = %s, want done", got.Status)
		}
		a.gone()
	})
	t.Run("CANCEL ends it", func(t *testing.T) {
		t.Parallel()
		r := newRouter(t)
		r.answers(func(int, fleet.Result) any { return unavailable })
		a := r.start(agent.Config{Handler: agent.Echo{}})
		a.give(dispatch("t1", "x"))
		r.result("t1")
		a.cancel("t1", 0, subjects.CodeCanceled)
		drained(r.beats)
		a.gone()
	})
}

func TestResultUntilAnswered(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	refused := fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeLateResult, "too late")}
	r.answers(func(n int, _ fleet.Result) any {
		switch n {
		case 1:
			return fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeUnavailable, "later")}
		case 2:
			return map[string]string{"what": "is this"}
		}
		return refused
	})
	a := r.start(agent.Config{Handler: agent.Echo{}})
	a.give(dispatch("t1", "x"))
	for range 3 {
		r.result("t1")
	}
	drained(r.beats)
	a.gone() // late_result is final
	a.give(dispatch("t2", "x"))
	r.result("t2")
}

// Holding lasts until a result was answered, but the slot is free before: the
// next offer may be faster than the answer.
func TestSlotIsFreeWhileHandingIn(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	r.answers(func(_ int, x fleet.Result) any {
		if x.TaskID == "t1" {
			return fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeUnavailable, "later")}
		}
		return fleet.ResultReply{OK: true}
	})
	a := r.start(agent.Config{Handler: agent.Echo{}})
	a.give(dispatch("t1", "x"))
	r.result("t1")
	a.give(dispatch("t2", "x"))
	r.result("t2")
	await(t, "a heartbeat with t1", r.beats, func(h fleet.Heartbeat) bool {
		return len(h.Holding) == 1 && h.Holding[0].TaskID == "t1"
	})
	r.answers(func(int, fleet.Result) any { return fleet.ResultReply{OK: true} })
	a.gone()
}

func TestDrainAndResume(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.Echo{}, Heartbeat: time.Minute})
	if p := a.tell(fleet.Control{Action: fleet.ActionDrain}); !p.OK {
		t.Errorf("DRAIN = %+v", p)
	}
	await(t, "a heartbeat at once", r.beats, func(h fleet.Heartbeat) bool { return h.Draining })
	await(t, "an announce at once", r.announces, func(x fleet.Announce) bool { return x.Draining })
	if p := a.offer(dispatch("t1", "x")); p.code() != subjects.CodeAgentBusy {
		t.Errorf("offer while draining = %s, want agent_busy", p.code())
	}
	a.tell(fleet.Control{Action: fleet.ActionResume})
	await(t, "a heartbeat at once", r.beats, func(h fleet.Heartbeat) bool { return !h.Draining })
	await(t, "an announce at once", r.announces, func(x fleet.Announce) bool { return !x.Draining })
	a.give(dispatch("t1", "x"))
	r.result("t1")
}

func TestStopLetsWorkFinish(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	g := newGate()
	a := r.start(agent.Config{Handler: g, MaxParallel: 2, Grace: time.Hour})
	a.give(dispatch("t1", "x"))
	next(t, "the handler", g.began)
	a.stop()
	await(t, "draining", r.beats, func(h fleet.Heartbeat) bool { return h.Draining && len(h.Holding) == 1 })
	if p := a.offer(dispatch("t2", "x")); p.code() != subjects.CodeAgentBusy {
		t.Errorf("offer while stopping = %s, want agent_busy", p.code())
	}
	a.tell(fleet.Control{Action: fleet.ActionResume}) // does not stop the stopping
	if p := a.offer(dispatch("t2", "x")); p.code() != subjects.CodeAgentBusy {
		t.Errorf("offer after RESUME while stopping = %s, want agent_busy", p.code())
	}
	g.open <- agent.Text("made it")
	if got := r.result("t1"); got.Status != fleet.StatusDone {
		t.Errorf("status = %s, want done", got.Status)
	}
	a.joined()
}

func TestStopHandsBack(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	g := newGate()
	a := r.start(agent.Config{Handler: g, Grace: -1})
	a.give(dispatch("t1", "x"))
	next(t, "the handler", g.began)
	a.stop()
	if cause := next(t, "its end", g.ended); !errors.Is(cause, agent.ErrStopping) {
		t.Errorf("cause = %v, want ErrStopping", cause)
	}
	got := r.result("t1")
	if got.Status != fleet.StatusError || code(got) != subjects.CodeAgentBusy || !got.Error.Retryable || got.TokensSpent != 7 {
		t.Errorf("result = %+v %+v, want error agent_busy, retryable, 7 tokens", got, got.Error)
	}
	a.joined()
}
