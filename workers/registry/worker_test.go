package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/registry"
)

// start runs a registry until the test ends and waits until it serves.
func start(t *testing.T, b *bus.Bus) {
	t.Helper()
	w, err := registry.New(registry.Config{Bus: b, Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, w)
}

// events hears what registries tell.
func events(t *testing.T, b *bus.Bus) <-chan *fleet.AgentEvent {
	t.Helper()
	ch := make(chan *fleet.AgentEvent, 100)
	sub, err := b.Subscribe(subjects.AgentEventPattern, "", func(m bus.Msg) {
		e, err := fleet.DecodeAgentEvent(m.Data)
		if err != nil {
			t.Errorf("event does not decode: %v", err)
			return
		}
		ch <- e
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	return ch
}

func next(t *testing.T, ch <-chan *fleet.AgentEvent, want string) *fleet.AgentEvent {
	t.Helper()
	select {
	case e := <-ch:
		if e.Event != want {
			t.Fatalf("event %s of %s, want %s", e.Event, e.AgentID, want)
		}
		return e
	case <-time.After(bustest.Patience):
		t.Fatalf("no event, want %s", want)
		return nil
	}
}

func store(t *testing.T, b *bus.Bus, subject string, v any) {
	t.Helper()
	if _, err := b.Store(t.Context(), subject, fleet.MustEncode(v), "", nil); err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, b *bus.Bus, agent subjects.AgentID) ([]fleet.AgentView, error) {
	t.Helper()
	m, err := b.Request(t.Context(), subjects.API("operator", "agent", "list"), fleet.MustEncode(fleet.AgentList{AgentID: agent}), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := fleet.DecodeReply[fleet.AgentListReply](m.Data)
	return r.Agents, err
}

func announcement(epoch int64) *fleet.Announce {
	return &fleet.Announce{Worker: fleet.Worker{AgentID: "claude", InstanceID: "one", Epoch: epoch, Model: "opus"}}
}

func TestWorkerListsAndTells(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	told := events(t, b)
	store(t, b, subjects.Announce("codex", "main"), &fleet.Announce{Worker: fleet.Worker{AgentID: "codex"}})
	start(t, b)

	agents, err := list(t, b, "")
	if err != nil || len(agents) != 1 || !agents[0].Live {
		t.Fatalf("list = %v, %v, want one live agent, announced before", agents, err)
	}
	store(t, b, subjects.Announce("mallory", "main"), announcement(9)) // in claude's name
	store(t, b, subjects.Announce("claude", "one"), announcement(1))
	if e := next(t, told, fleet.AgentLive); e.AgentID != "claude" || e.InstanceID != "one" || e.Epoch != 1 {
		t.Errorf("event of %s %s %d, want claude one 1", e.AgentID, e.InstanceID, e.Epoch)
	}
	kv, err := b.KV(t.Context(), subjects.BucketAgents)
	if err != nil {
		t.Fatal(err)
	}
	drain := fleet.AgentDrained{By: "operator", Reason: "upgrade", At: time.Now().UTC()}
	if _, err := kv.Put(t.Context(), fleet.DrainKey("claude"), fleet.MustEncode(drain)); err != nil {
		t.Fatal(err)
	}
	next(t, told, fleet.AgentDraining)
	agents, err = list(t, b, "claude")
	if err != nil || len(agents) != 1 || agents[0].DrainedBy != "operator" || agents[0].Announce.Worker.Model != "opus" {
		t.Errorf("list = %+v, %v, want claude, drained by operator", agents, err)
	}
	if err := kv.Delete(t.Context(), fleet.DrainKey("claude")); err != nil {
		t.Fatal(err)
	}
	next(t, told, fleet.AgentResumed)
	if _, err := list(t, b, "mallory"); !errors.Is(err, &subjects.Error{Code: subjects.CodeNotFound}) {
		t.Errorf("list of who forged an announce = %v, want not_found", err)
	}
	if _, err := list(t, b, "no dots."); subjects.CodeOf(err) != subjects.CodeInvalidID {
		t.Errorf("list of no id = %v, want invalid_id", err)
	}
}

func TestWorkerTellsWhoIsLost(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	told := events(t, b)
	start(t, b)
	a := announcement(1)
	a.HeartbeatSeconds = new(0.2)
	store(t, b, subjects.Announce("claude", "one"), a)
	next(t, told, fleet.AgentLive)
	beat := fleet.MustEncode(&fleet.Heartbeat{Epoch: 1, ActiveTasks: 1})
	if err := b.Publish(subjects.Heartbeat("claude", "one"), beat, nil); err != nil {
		t.Fatal(err)
	}
	if e := next(t, told, fleet.AgentLost); e.Reason == nil || e.Reason.Code != subjects.CodeAgentLost {
		t.Errorf("lost because of %v, want agent_lost", e.Reason)
	}
	agents, err := list(t, b, "claude")
	if err != nil || len(agents) != 1 || agents[0].Live || agents[0].Active != 1 {
		t.Errorf("list = %+v, %v, want claude, not live", agents, err)
	}
	if err := b.Publish(subjects.Heartbeat("claude", "one"), beat, nil); err != nil {
		t.Fatal(err)
	}
	next(t, told, fleet.AgentLive)
}

// TestListingHasPages: however much agents announce, everybody can list them.
func TestListingHasPages(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	var want []string
	for i := range 5 {
		instance := subjects.InstanceID(fmt.Sprint("i", i))
		large := fmt.Sprintf(`{"worker":{"agent_id":"large","instance_id":%q},"junk":%q}`, instance, strings.Repeat("x", 1000<<10))
		store(t, b, subjects.Announce("large", instance), json.RawMessage(large))
		want = append(want, "large/"+string(instance))
	}
	for _, agent := range []subjects.AgentID{"small", "small-too", "tiny"} {
		store(t, b, subjects.Announce(agent, "main"), &fleet.Announce{Worker: fleet.Worker{AgentID: agent}})
		want = append(want, string(agent)+"/main")
	}
	start(t, b)
	for _, limit := range []int{0, 1, 2} {
		var got []string
		pages := 0
		_, err := fleet.AllAgents(fleet.AgentList{Limit: limit}, func(q fleet.AgentList) (fleet.AgentListReply, error) {
			pages++
			m, err := b.Request(t.Context(), subjects.API("operator", "agent", "list"), fleet.MustEncode(q), nil)
			if err != nil {
				t.Fatal(err)
			}
			r, err := fleet.DecodeReply[fleet.AgentListReply](m.Data)
			for _, v := range r.Agents {
				got = append(got, string(v.Announce.Worker.AgentID)+"/"+string(v.Announce.Worker.InstanceID))
			}
			return r, err
		})
		if err != nil || !slices.Equal(got, want) || pages != []int{6, 8, 7}[limit] {
			t.Errorf("limit %d: %d pages, %v, %v; want %v", limit, pages, got, err, want)
		}
	}
}

// An operator has an agent forgotten that is not live; nobody else has.
func TestForget(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	w, err := registry.New(registry.Config{Bus: b, Operators: []subjects.AgentID{"operator"}, Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, w)
	told := events(t, b)
	store(t, b, subjects.Announce("claude", "one"), announcement(1))
	next(t, told, fleet.AgentLive)
	forget := func(by subjects.AgentID) (fleet.AgentForgotten, error) {
		m, rerr := b.Request(t.Context(), subjects.API(by, "agent", "forget"), []byte(`{"agent_id":"claude","reason":"sold"}`), nil)
		if rerr != nil {
			t.Fatal(rerr)
		}
		return fleet.DecodeReply[fleet.AgentForgotten](m.Data)
	}
	if _, err := forget("operator"); subjects.CodeOf(err) != subjects.CodeForbidden {
		t.Errorf("forget of a live agent = %v, want forbidden", err)
	}
	stopped := announcement(1)
	stopped.Stopped = true
	store(t, b, subjects.Announce("claude", "one"), stopped)
	next(t, told, fleet.AgentStopped)
	if got, err := list(t, b, "claude"); err != nil || len(got) != 1 || !got[0].Stopped {
		t.Errorf("the agent by its name: %+v, %v, want that it has stopped", got, err)
	}
	if _, err := forget("alice"); subjects.CodeOf(err) != subjects.CodeForbidden {
		t.Errorf("forget by alice = %v, want forbidden", err)
	}
	if r, err := forget("operator"); err != nil || r.Instances != 1 {
		t.Errorf("forget = %+v, %v, want one instance", r, err)
	}
	if _, err := list(t, b, "claude"); subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("the agent afterwards: %v, want not_found", err)
	}
	kv, err := b.KV(t.Context(), subjects.BucketAgents)
	if err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(t.Context(), fleet.RetiredKey("claude"))
	if err != nil || !strings.Contains(string(e.Value), `"reason":"sold"`) {
		t.Errorf("stored: %s, %v", e.Value, err)
	}
}

// Whose announce does not count is told why.
func TestRefusedAnnounce(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	heard := make(chan *fleet.Control, 1)
	sub, err := b.Subscribe(subjects.Control("claude", "one"), "", func(m bus.Msg) {
		c, err := fleet.DecodeControl(m.Data)
		if err != nil {
			t.Errorf("%s: %v", m.Data, err)
		}
		heard <- c
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := announcement(1)
	a.ProtocolVersion = "9.0"
	store(t, b, subjects.Announce("claude", "one"), a)
	c := <-heard
	if c.Action != fleet.ActionRefused || c.Reason == nil || c.Reason.Code != subjects.CodeVersionMismatch || !strings.Contains(c.Reason.Message, "send version 2.0") {
		t.Errorf("told %+v, %+v", c, c.Reason)
	}
}

// TestLimitsAreListed: the listing has the limit of an instance's account, and none
// once that is over. What cannot be read changes nothing.
func TestLimitsAreListed(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	a := announcement(7)
	a.Worker.Labels = map[string]string{fleet.LabelAccount: "pro"}
	store(t, b, subjects.Announce("claude", "one"), a)
	kv, err := b.KV(t.Context(), subjects.BucketAgents)
	if err != nil {
		t.Fatal(err)
	}
	put := func(account, tier string, until time.Time) {
		l := fleet.AccountLimit{Account: account, Tier: tier, Until: until}
		if _, err := kv.Put(t.Context(), fleet.LimitKey(account, tier), fleet.MustEncode(l)); err != nil {
			t.Fatal(err)
		}
	}
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	limited := func(want func(*fleet.AccountLimit) bool) func() bool {
		return func() bool {
			l, err := list(t, b, "claude")
			return err == nil && len(l) == 1 && want(l[0].Limit)
		}
	}
	put("claude", "", until) // believed where the account is not
	bustest.Eventually(t, "the limit of the agent", limited(func(l *fleet.AccountLimit) bool { return l != nil && l.Account == "claude" }))
	put("pro", "", until)
	put("pro", "opus", until.Add(time.Hour)) // of another tier
	bustest.Eventually(t, "the limit of the account", limited(func(l *fleet.AccountLimit) bool { return l != nil && l.Account == "pro" && l.Until.Equal(until) }))
	if _, err := kv.Put(t.Context(), fleet.LimitKey("pro", ""), []byte("{")); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{fleet.LimitKey("pro", ""), fleet.LimitKey("claude", "")} {
		if err := kv.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	bustest.Eventually(t, "no limit", limited(func(l *fleet.AccountLimit) bool { return l == nil }))
}
