package outbound_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// local is an agent of the fleet behind a gateway.
func local(ctx context.Context, t *agent.Task) (fleet.Result, error) {
	verb, rest, _ := strings.Cut(t.Dispatch.Brief, " ")
	switch verb {
	case "ask":
		a, err := t.Ask(ctx, "which one?")
		return agent.Text(a.Text), err
	case "hang":
		<-ctx.Done()
		return fleet.Result{}, context.Cause(ctx)
	case "fail":
		return fleet.Result{TokensSpent: 3}, &agent.Fail{Code: subjects.CodeBudgetExhausted, Message: "too dear"}
	case "block":
		return fleet.Result{}, agent.Blocked("not mine")
	case "partial":
		return fleet.Result{
			Status: fleet.StatusPartial, Output: json.RawMessage(`"half"`), TokensSpent: 12,
			Remaining: []string{"the rest"}, NextSteps: []string{"go on"},
		}, nil
	case "hear":
		m, err := t.FollowUp(ctx, 0)
		return agent.Text(m.Text), err
	case "chunks":
		for i, text := range strings.Fields(rest) {
			if err := t.Artifact(ctx, fleet.Artifact{ArtifactID: "log", Parts: []fleet.Part{{Text: &text}}, Append: i > 0}); err != nil {
				return fleet.Result{}, err
			}
		}
	}
	return agent.Text(t.Dispatch.Brief), nil
}

// TestFleetBehindFleet has a whole fleet serve in another one, by its gateway.
func TestFleetBehindFleet(t *testing.T) {
	t.Parallel()
	far, near := newWorld(t), newWorld(t)
	far.agent("worker", agent.Config{Handler: agent.HandlerFunc(local)})
	near.remote("fleet", far.gateway()+"/agents/worker/.well-known/agent-card.json")
	r := near.result(near.dispatch("hello there"), fleet.StateDone)
	if output(r) != "hello there" {
		t.Errorf("output %s", r.Output)
	}
	id := near.dispatch("chunks a b")
	if r := near.result(id, fleet.StateDone); !strings.HasSuffix(output(r), "chunks a b") {
		t.Errorf("output %s", r.Output)
	}
	if got := near.artifacts(id); got != "log:a log:+b" {
		t.Errorf("artifacts %q", got)
	}
	r = near.result(near.dispatch("partial"), fleet.StatePartial)
	if r.TokensSpent != 12 || strings.Join(r.Remaining, "") != "the rest" || strings.Join(r.NextSteps, "") != "go on" {
		t.Errorf("partial %+v", r)
	}
	r = near.result(near.dispatch("fail"), fleet.StateError)
	if r.Error == nil || r.Error.Code != subjects.CodeBudgetExhausted {
		t.Errorf("failed with %+v", r.Error)
	}
	near.until(near.dispatch("block"), fleet.StateBlocked)
	id = near.dispatch("ask")
	near.until(id, fleet.StateInputRequired)
	must[fleet.TaskView](near, "task", "answer", fleet.TaskAnswer{TaskID: id, Text: "blue"})
	if r := near.result(id, fleet.StateDone); output(r) != "blue" {
		t.Errorf("output %s", r.Output)
	}
	id = near.dispatch("hear")
	near.until(id, fleet.StateWorking)
	must[fleet.TaskView](near, "task", "message", fleet.TaskMessage{TaskID: id, Text: "more"})
	if r := near.result(id, fleet.StateDone); output(r) != "more" {
		t.Errorf("output %s", r.Output)
	}
	id = near.dispatch("hang")
	bustest.Eventually(t, "the far task", func() bool { return far.count(fleet.StateWorking) == 1 })
	must[fleet.TaskView](near, "task", "cancel", fleet.TaskCancel{TaskID: id})
	bustest.Eventually(t, "the far task is canceled", func() bool { return far.count(fleet.StateWorking) == 0 && far.count(fleet.StateCanceled) == 1 })
}

// count is how many tasks are in a state.
func (w *world) count(state fleet.State) int {
	return must[fleet.TaskListReply](w, "task", "list", fleet.TaskList{State: state}).Total
}

// TestCycle has two fleets that know each other, and nobody else: a task does
// not go round for ever.
func TestCycle(t *testing.T) {
	t.Parallel()
	one, two := newWorld(t), newWorld(t)
	first, second := one.gateway(), two.gateway()
	one.remote("two", second)
	two.remote("one", first)
	r := one.result(one.dispatch("hello"), fleet.StateError)
	if r.Error == nil || !strings.Contains(r.Error.Message, "circles") {
		t.Errorf("failed with %+v", r.Error)
	}
	if n, m := one.count("")+two.count(""), one.count(fleet.StateError); n > 3 || m == 0 {
		t.Errorf("%d tasks, %d failed in the first fleet", n, m)
	}
}

// TestResume breaks the stream between two fleets: it is resumed behind the last
// event that was told on.
func TestResume(t *testing.T) {
	t.Parallel()
	far, near := newWorld(t), newWorld(t)
	gate := make(chan struct{})
	far.agent("worker", agent.Config{Handler: agent.HandlerFunc(func(ctx context.Context, t *agent.Task) (fleet.Result, error) {
		for i, text := range []string{"a", "b", "c", "d"} {
			if i == 2 {
				select {
				case <-gate:
				case <-ctx.Done():
					return fleet.Result{}, context.Cause(ctx)
				}
			}
			if err := t.Artifact(ctx, fleet.Artifact{ArtifactID: "log", Parts: []fleet.Part{{Text: &text}}, Append: i > 0}); err != nil {
				return fleet.Result{}, err
			}
		}
		return agent.Text("done"), nil
	})})
	address, err := url.Parse(far.gateway())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(address)
	proxy.FlushInterval = -1
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	resumed := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch {
		case bytes.Contains(body, []byte("SendStreamingMessage")):
			rw = &cut{rw, 4} // task, working, a, b
		case bytes.Contains(body, []byte("SubscribeToTask")):
			resumed <- r.Header.Get("Last-Event-ID")
			select {
			case <-gate:
			default:
				close(gate)
			}
		}
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	near.remote("fleet", s.URL)
	id := near.dispatch("count")
	r := near.result(id, fleet.StateDone)
	if got := near.artifacts(id); got != "log:a log:+b log:+c log:+d" || !strings.HasSuffix(output(r), "done") {
		t.Errorf("artifacts %q, output %s", got, r.Output)
	}
	if last := <-resumed; last != "4" {
		t.Errorf("resumed behind %q, want 4", last)
	}
}

// TestLegacyRemote has an agent of version 0.3 serve.
func TestLegacyRemote(t *testing.T) {
	t.Parallel()
	w, f := newWorld(t), newFar(t)
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	card := *f.card
	card.SupportedInterfaces = []*a2a.AgentInterface{{URL: s.URL + "/rpc", ProtocolBinding: a2a.TransportProtocolJSONRPC, ProtocolVersion: a2av0.Version}}
	mux.Handle("/rpc", a2av0.NewJSONRPCHandler(a2asrv.NewHandler(f)))
	producer, ok := a2av0.NewStaticAgentCardProducer(&card).(a2asrv.AgentCardJSONProducer)
	if !ok {
		t.Fatal("no card")
	}
	data, err := producer.CardJSON(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]json.RawMessage
	if err = json.Unmarshal(data, &members); err == nil {
		delete(members, "supportedInterfaces") // as an agent that has never heard of 1.0
		data, err = json.Marshal(members)
	}
	if err != nil {
		t.Fatal(err)
	}
	mux.HandleFunc("/.well-known/agent.json", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(data) })
	w.remote("old", s.URL)
	id := w.dispatch("chunks a b")
	if got := output(w.result(id, fleet.StateDone)); got != "0;1;" {
		t.Errorf("output %q", got)
	}
	id = w.dispatch("ask")
	w.until(id, fleet.StateInputRequired)
	must[fleet.TaskView](w, "task", "answer", fleet.TaskAnswer{TaskID: id, Text: "blue"})
	if got := output(w.result(id, fleet.StateDone)); got != "you said blue" {
		t.Errorf("output %q", got)
	}
}
