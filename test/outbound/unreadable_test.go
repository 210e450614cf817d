package outbound_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent/remote"
)

// What agents answer that the SDK cannot read: names, states and roles of their own.
const (
	oddTask   = `{"task":{"id":"1ae0","context_id":"1ae0","status":{"state":"completed","message":{"message_id":"m","role":2,"parts":[{"text":"done"}]}}}}`
	oddRPC    = `{"jsonrpc":"2.0","id":"1","result":` + oddTask + `}`
	noState   = `{"jsonrpc":"2.0","id":"1","result":{"task":{"id":"x","contextId":"y","status":{"state":"HUNGRY"}}}}`
	nullParts = `{"jsonrpc":"2.0","id":"1","result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[null]}}}`
	working   = `{"jsonrpc":"2.0","id":"1","result":{"task":{"id":"x","contextId":"y","status":{"state":"TASK_STATE_WORKING"}}}}`
)

// TestUnreadable: a message whose answer came and cannot be read is sent once, and
// the attempt fails for good: the agent has done the work, or will.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	all := newWorld(t)
	for i, c := range []struct {
		name    string
		binding a2a.TransportProtocol
		silent  bool
		status  int
		media   string
		answer  string
		sends   int
	}{
		{"an event", a2a.TransportProtocolJSONRPC, false, 200, "text/event-stream", "data: " + oddRPC + "\n\n", 1},
		{"an event that is not JSON", a2a.TransportProtocolJSONRPC, false, 200, "text/event-stream", "data: {\n\n", 1},
		{"an unknown state", a2a.TransportProtocolJSONRPC, false, 200, "text/event-stream", "data: " + noState + "\n\n", 1},
		{"an empty part", a2a.TransportProtocolJSONRPC, false, 200, "text/event-stream", "data: " + nullParts + "\n\n", 1},
		{"JSON in place of a stream", a2a.TransportProtocolJSONRPC, false, 200, "application/json", oddRPC, 1},
		{"a page in place of a stream", a2a.TransportProtocolJSONRPC, false, 200, "text/html", "<html>", 1},
		{"an answer", a2a.TransportProtocolJSONRPC, true, 200, "application/json", oddRPC, 1},
		{"an answer that is not JSON", a2a.TransportProtocolJSONRPC, true, 200, "text/html", "<html>", 1},
		{"an answer over HTTP+JSON", a2a.TransportProtocolHTTPJSON, true, 200, "application/json", oddTask, 1},
		{"an event over HTTP+JSON", a2a.TransportProtocolHTTPJSON, false, 200, "text/event-stream", "data: " + oddTask + "\n\n", 1},
		{"a status of its own", a2a.TransportProtocolJSONRPC, true, 404, "application/json", `{"error":{"code":-38000}}`, 1},
		{"an internal error without words", a2a.TransportProtocolJSONRPC, true, 500, "text/html", "<html>", 3},
		{"something after the task is known", a2a.TransportProtocolJSONRPC, false, 200, "text/event-stream", "data: " + working + "\n\ndata: {\n\n", 1},
	} {
		far := subjects.AgentID(fmt.Sprintf("far%d", i))
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, f := all.in(t), newFar(t, c.binding)
			f.card.Capabilities.Streaming = !c.silent
			f.breaks(func(rw http.ResponseWriter, r *http.Request, method string, _ int) http.ResponseWriter {
				if !strings.HasPrefix(method, "Send") && !strings.Contains(r.URL.Path, "message:") && (method == "" || c.binding != a2a.TransportProtocolJSONRPC) {
					return rw
				}
				rw.Header().Set("Content-Type", c.media)
				rw.WriteHeader(c.status)
				_, _ = io.WriteString(rw, c.answer)
				return nil
			})
			w.remote(far, f.url)
			r := w.result(w.dispatch("echo", pinned(far), func(d *fleet.Dispatch) { d.Task.MaxRetries = new(0) }), fleet.StateError)
			if r.Error == nil || r.Error.Code != subjects.CodeAgentError || c.sends == 1 && r.Error.Retryable || strings.Contains(r.Error.Message, "silent") {
				t.Errorf("failed with %+v", r.Error)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.sends != c.sends {
				t.Errorf("the message was sent %d times, want %d", f.sends, c.sends)
			}
		})
	}
}

// TestUnreadableCard: a card at its former path that cannot be read is what
// discovering it fails with, not that there is none at the new path.
func TestUnreadableCard(t *testing.T) {
	t.Parallel()
	f := newFar(t)
	f.breaks(func(rw http.ResponseWriter, r *http.Request, _ string, _ int) http.ResponseWriter {
		if r.URL.Path == "/.well-known/agent.json" {
			_, _ = io.WriteString(rw, `{"name":"far","capabilities":{"extensions":false}}`)
		} else {
			http.NotFound(rw, r)
		}
		return nil
	})
	id, err := remote.NewIdentity("far", f.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := remote.New(remote.Config{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = r.Discover(t.Context()); err == nil || strings.Contains(err.Error(), "404") || !strings.Contains(err.Error(), "extensions") {
		t.Errorf("discover: %v", err)
	}
}
