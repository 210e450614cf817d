//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
)

// gatewayOf answers as a gateway does: all that stream s of the good evidence
// tells, from behind an event on; every second connection breaks in the middle.
func gatewayOf(t *testing.T) http.Handler {
	t.Helper()
	const status = `{"statusUpdate":{"taskId":"s","status":{"state":"TASK_STATE_%s"}}}`
	all := [][2]string{
		{"1", `{"task":{"id":"s","status":{"state":"TASK_STATE_SUBMITTED"}}}`},
		{"2", fmt.Sprintf(status, "WORKING")},
		{"3", `{"artifactUpdate":{"taskId":"s"}}`},
		{"4", fmt.Sprintf(status, "SUBMITTED")},
		{"6", fmt.Sprintf(status, "WORKING")},
		{"7", `{"artifactUpdate":{"taskId":"s"}}`},
		{"7.1", `{"artifactUpdate":{"taskId":"s"}}`},
		{"8", fmt.Sprintf(status, "COMPLETED")},
	}
	calls := 0 // one after the other
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		body, err := io.ReadAll(r.Body)
		after := r.Header.Get("Last-Event-ID")
		begin := slices.IndexFunc(all, func(e [2]string) bool { return e[0] == after }) + 1
		if err != nil || begin == 0 && !bytes.Contains(body, []byte("SendStreamingMessage")) {
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32004,"message":"the task has ended"}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for n, e := range all[begin:] {
			if n == 2 && calls%2 == 1 {
				fmt.Fprintf(w, "id: %s\ndata: {\"jsonrpc\"", e[0])
				return
			}
			fmt.Fprintf(w, ": keep-alive\n\nid: %s\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":%s}\n\n", e[0], e[1])
		}
	})
}

// TestListener: whatever breaks, and however its client is, a stream is told
// whole, and its journal is what the checker wants.
func TestListener(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(gatewayOf(t))
			defer server.Close()
			s := &listener{rng: rand.New(rand.NewPCG(seed, 1)), send: rpc("SendStreamingMessage", map[string]any{})}
			for try := 0; s.ended == "" && try < 100; try++ {
				_ = s.listen(t.Context(), server.URL)
			}
			f := traffic()
			f.ops[0].end.Body = s.told()
			f.checkStreams()
			if s.task != "s" || s.ended != "completed" || len(f.found) > 0 {
				t.Errorf("task %s ended as %q, told %+v: %v", s.task, s.ended, s.legs, f.found)
			}
		})
	}
}
