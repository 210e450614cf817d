package outbound_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent/remote"
)

// TestBindings has a remote agent serve over each binding: streaming, a
// question, a failure, a cancel.
func TestBindings(t *testing.T) {
	t.Parallel()
	all := newWorld(t)
	for i, b := range []a2a.TransportProtocol{a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON, a2a.TransportProtocolGRPC} {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			w, f, far := all.in(t), newFar(t, b), subjects.AgentID(fmt.Sprintf("far%d", i))
			const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
			w.remote(far, f.url)
			progress := w.listen(far)

			id := w.dispatch("chunks a b c", pinned(far), func(d *fleet.Dispatch) { d.Traceparent = trace })
			r := w.result(id, fleet.StateDone)
			if of := fleet.TraceOf(id, trace).In(fleet.SpanAttempt, 1); !slices.Contains(f.traceparents(), of) {
				t.Errorf("the agent was told of the traces %q, not of the attempt's %s", f.traceparents(), of)
			}
			if got := output(r); got != "0;1;2;" {
				t.Errorf("output %q", got)
			}
			if got := w.artifacts(id); got != "log:0; log:+1; log:+2;" {
				t.Errorf("artifacts %q", got)
			}
			bustest.Eventually(t, "progress", func() bool { return strings.Contains(strings.Join(progress(), "|"), "at work") })
			if m := f.heard()[0]; m.ID != "parley-"+string(id)+"-1" || m.ContextID != m.ID {
				t.Errorf("the message has id %q and context %q", m.ID, m.ContextID)
			}

			id = w.dispatch("ask", pinned(far))
			w.until(id, fleet.StateInputRequired)
			q := w.events(id)[len(w.events(id))-1].Data.Question
			if q == nil || q.Text != "which one?" {
				t.Fatalf("question %+v", q)
			}
			must[fleet.TaskView](w, "task", "answer", fleet.TaskAnswer{TaskID: id, Text: "blue"})
			if got := output(w.result(id, fleet.StateDone)); got != "you said blue" {
				t.Errorf("output %q", got)
			}

			r = w.result(w.dispatch("fail", pinned(far)), fleet.StateError)
			if r.Error == nil || r.Error.Code != subjects.CodeAgentError || !strings.HasPrefix(r.Error.Message, "it broke") {
				t.Errorf("failed with %+v", r.Error)
			}
			w.until(w.dispatch("reject", pinned(far)), fleet.StateBlocked)

			id = w.dispatch("gate never", pinned(far))
			bustest.Eventually(t, "an artifact", func() bool { return w.artifacts(id) != "" })
			must[fleet.TaskView](w, "task", "cancel", fleet.TaskCancel{TaskID: id})
			bustest.Eventually(t, "the remote task is canceled", func() bool { return f.cancels() == 1 })
		})
	}
}

// TestOutcomes checks what becomes of results.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	w, f := newWorld(t), newFar(t)
	w.remote("far", f.url)
	if r := w.result(w.dispatch("tokens"), fleet.StateDone); string(r.Output) != `{"sum":7}` || r.TokensSpent != 41 {
		t.Errorf("output %s, %d tokens", r.Output, r.TokensSpent)
	}
	if r := w.result(w.dispatch("nothing"), fleet.StateDone); output(r) != "all well" {
		t.Errorf("output %s", r.Output)
	}
	if r := w.result(w.dispatch("message hello"), fleet.StateDone); output(r) != "hello" {
		t.Errorf("output %s", r.Output)
	}
	schema := func(d *fleet.Dispatch) {
		d.Task.ResultSchema = json.RawMessage(`{"type":"object","required":["sum"]}`)
	}
	if r := w.result(w.dispatch("tokens", schema), fleet.StateDone); string(r.Output) != `{"sum":7}` {
		t.Errorf("output %s", r.Output)
	}
	r := w.result(w.dispatch("echo", schema), fleet.StateError)
	if r.Error == nil || r.Error.Code != subjects.CodeResultInvalid {
		t.Errorf("prose where JSON was asked for: %+v", r.Error)
	}
	id := w.dispatch("auth")
	w.until(id, fleet.StateInputRequired)
	events := w.events(id)
	if q := events[len(events)-1].Data.Question; !strings.Contains(q.Text, "authorization") || !strings.Contains(q.Text, "log in") {
		t.Errorf("question %q", q.Text)
	}
	long := strings.Repeat("é", 150_000)
	if r := w.result(w.dispatch("echo "+long), fleet.StateDone); !strings.Contains(output(r), long) {
		t.Errorf("a long output has %d bytes", len(output(r)))
	}
}

// TestSilent has an agent serve that does not stream.
func TestSilent(t *testing.T) {
	t.Parallel()
	w, f := newWorld(t), newFar(t)
	f.card.Capabilities.Streaming = false
	w.remote("far", f.url)
	id := w.dispatch("gate one")
	bustest.Eventually(t, "it is asked for the task", func() bool { return f.count("GetTask") > 1 })
	f.pass("one")
	if got := output(w.result(id, fleet.StateDone)); got != "0;" {
		t.Errorf("output %q", got)
	}
	if got := w.artifacts(id); got != "log:0;" {
		t.Errorf("artifacts %q", got)
	}
	if n := f.count("SendStreamingMessage") + f.count("SubscribeToTask"); n != 0 {
		t.Errorf("%d streams were asked for", n)
	}
}

// TestDisconnect breaks streams in the middle: the task goes on by
// SubscribeToTask, and nothing is told twice.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	for _, subscribes := range []bool{true, false} {
		t.Run(fmt.Sprintf("subscribe %t", subscribes), func(t *testing.T) {
			t.Parallel()
			w, f := newWorld(t), newFar(t)
			f.breaks(func(rw http.ResponseWriter, r *http.Request, method string, n int) http.ResponseWriter {
				switch {
				case method == "SendStreamingMessage":
					return &cut{rw, 3} // task, status, artifact
				case method == "SubscribeToTask" && !subscribes:
					rw.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(rw, `{"jsonrpc":"2.0","id":"1","error":{"code":-32601,"message":"no"}}`)
					return nil
				case method == "SubscribeToTask" && n == 1:
					return &cut{rw, 1}
				}
				return rw
			})
			w.remote("far", f.url)
			id := w.dispatch("gate one two")
			bustest.Eventually(t, "it goes on", func() bool {
				return subscribes && f.count("SubscribeToTask") > 1 || !subscribes && f.count("GetTask") > 0
			})
			f.pass("one")
			bustest.Eventually(t, "the second chunk", func() bool { return strings.Contains(w.artifacts(id), "1;") })
			f.pass("two")
			if got := output(w.result(id, fleet.StateDone)); got != "0;1;" {
				t.Errorf("output %q", got)
			}
			if got := w.artifacts(id); got != "log:0; log:+1;" {
				t.Errorf("artifacts %q", got)
			}
			if n := f.count("SendStreamingMessage"); n != 1 {
				t.Errorf("the message was sent %d times", n)
			}
		})
	}
}

// TestLostAnswer loses the answer to the first message: it is sent again under
// the same id, since the agent lists no tasks.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	w, f := newWorld(t), newFar(t)
	f.breaks(func(rw http.ResponseWriter, r *http.Request, method string, n int) http.ResponseWriter {
		if method == "SendStreamingMessage" && n == 1 {
			panic(http.ErrAbortHandler)
		}
		if method == "SendStreamingMessage" && r.Header.Get("Idempotency-Key") == "" {
			t.Error("the message has no idempotency key")
		}
		return rw
	})
	w.remote("far", f.url)
	id := w.dispatch("echo again")
	if got := output(w.result(id, fleet.StateDone)); got != "echo again" {
		t.Errorf("output %q", got)
	}
	if got := len(f.heard()); got != 1 {
		t.Errorf("the agent was given %d messages", got)
	}
}

// TestHang has an agent say nothing more: the stream is taken up anew, and the
// attempt ends with its time.
func TestHang(t *testing.T) {
	t.Parallel()
	w, f := newWorld(t), newFar(t)
	w.remote("far", f.url, func(c *remote.Config) { c.Idle = 100 * time.Millisecond })
	id := w.dispatch("gate never", func(d *fleet.Dispatch) { d.Task.TimeoutSeconds = 6 })
	r := w.result(id, fleet.StateError)
	if r.Error == nil || r.Error.Code != subjects.CodeAgentTimeout {
		t.Errorf("failed with %+v", r.Error)
	}
	if f.count("GetTask") == 0 || f.count("SubscribeToTask") == 0 {
		t.Errorf("calls: %d GetTask, %d SubscribeToTask", f.count("GetTask"), f.count("SubscribeToTask"))
	}
	bustest.Eventually(t, "the remote task is canceled", func() bool { return f.cancels() == 1 })
	if got := w.artifacts(id); got != "log:0;" {
		t.Errorf("artifacts %q", got)
	}
}

// TestMalformed has an agent answer what is not A2A.
func TestMalformed(t *testing.T) {
	t.Parallel()
	all := newWorld(t)
	n := 0
	for name, answer := range map[string]string{
		"no JSON":         "data: {\n\n",
		"no event":        `data: {"jsonrpc":"2.0","id":"1","result":{}}` + "\n\n",
		"no task id":      `data: {"jsonrpc":"2.0","id":"1","result":{"task":{"id":"","status":{"state":"TASK_STATE_WORKING"}}}}` + "\n\n",
		"no state":        `data: {"jsonrpc":"2.0","id":"1","result":{"task":{"id":"x","contextId":"y","status":{}}}}` + "\n\n",
		"unknown state":   `data: {"jsonrpc":"2.0","id":"1","result":{"task":{"id":"x","contextId":"y","status":{"state":"HUNGRY"}}}}` + "\n\n",
		"null artifact":   `data: {"jsonrpc":"2.0","id":"1","result":{"artifactUpdate":{"taskId":"x","contextId":"y","artifact":null}}}` + "\n\n",
		"null in a part":  `data: {"jsonrpc":"2.0","id":"1","result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[null]}}}` + "\n\n",
		"nothing":         "",
		"endless comment": strings.Repeat(": alive\n\n", 1000),
	} {
		n++
		far := subjects.AgentID(fmt.Sprintf("far%d", n))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, f := all.in(t), newFar(t)
			f.breaks(func(rw http.ResponseWriter, _ *http.Request, method string, _ int) http.ResponseWriter {
				if method == "" {
					return rw
				}
				rw.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(rw, answer)
				return nil
			})
			w.remote(far, f.url, func(c *remote.Config) { c.Patience = 500 * time.Millisecond })
			r := w.result(w.dispatch("echo", pinned(far)), fleet.StateError)
			if r.Error == nil || r.Error.Code != subjects.CodeAgentError && r.Error.Code != subjects.CodeResultInvalid {
				t.Errorf("failed with %+v", r.Error)
			}
		})
	}
}

// TestHealth takes the agent down: it is offered nothing until it is back, and
// its skills are those of its card.
func TestHealth(t *testing.T) {
	t.Parallel()
	w, f := newWorld(t), newFar(t)
	w.remote("far", f.url)
	needs := func(name string) func(*fleet.Dispatch) {
		return func(d *fleet.Dispatch) { d.Requirements.RequiredCapabilities = []string{name} }
	}
	w.result(w.dispatch("echo", needs("sums")), fleet.StateDone)
	f.setDown(true)
	bustest.Eventually(t, "it is announced as down", func() bool {
		a := w.view("far")
		return a != nil && a.Draining && a.Announce.MCPHealth["a2a"] == fleet.HealthError
	})
	id := w.dispatch("echo back")
	if v := must[fleet.TaskView](w, "task", "get", fleet.TaskRef{TaskID: id}); v.State != fleet.StateQueued {
		t.Errorf("the task is %s", v.State)
	}
	f.mu.Lock()
	f.card.Skills = append(f.card.Skills, a2a.AgentSkill{ID: "poems", Name: "Poems", Description: "rhymes", Tags: []string{"art"}})
	f.mu.Unlock()
	f.setDown(false)
	w.result(id, fleet.StateDone)
	bustest.Eventually(t, "the new skill", func() bool { return len(w.view("far").Announce.Capabilities.Skills) == 2 })
	w.result(w.dispatch("echo", needs("poems")), fleet.StateDone)
}

// TestFollowUp passes a follow-up on to the remote task, at once. (What the SDK's
// server does of one to a task at work is to drop it.)
func TestFollowUp(t *testing.T) {
	t.Parallel()
	w, f := newWorld(t), newFar(t)
	w.remote("far", f.url)
	id := w.dispatch("gate never")
	bustest.Eventually(t, "an artifact", func() bool { return w.artifacts(id) != "" })
	must[fleet.TaskView](w, "task", "message", fleet.TaskMessage{TaskID: id, Text: "and hurry"})
	bustest.Eventually(t, "the follow-up is sent", func() bool { return f.count("SendMessage") > 0 })
	f.pass("never")
	w.until(id, fleet.StateDone)
}

// TestSecrets sends a secret of the environment to the agent's host, and to no
// other.
func TestSecrets(t *testing.T) {
	t.Parallel()
	w, f := newWorld(t), newFar(t)
	f.breaks(func(rw http.ResponseWriter, r *http.Request, _ string, _ int) http.ResponseWriter {
		if r.Header.Get("X-API-Key") != "s3cret" {
			http.Error(rw, "who are you", http.StatusUnauthorized)
			return nil
		}
		return rw
	})
	with := func(value string) func(*remote.Config) {
		return func(c *remote.Config) {
			c.Identity.Transports.Card.Auth = &remote.Auth{Type: remote.AuthAPIKey, Header: "X-API-Key", ValueEnv: "FAR_KEY"}
			c.Getenv = func(name string) string {
				if name == "FAR_KEY" {
					return value
				}
				return ""
			}
		}
	}
	w.remote("far", f.url, with("s3cret"))
	w.result(w.dispatch("echo"), fleet.StateDone)
	w.start("wrong", w.driver(f.url, with("guess")))
	bustest.Eventually(t, "the other one is refused", func() bool {
		a := w.view("wrong")
		return a != nil && a.Draining && a.Announce.MCPHealth["a2a"] == fleet.HealthError
	})
}
