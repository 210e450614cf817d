package a2anats_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"parley/bus"
	"parley/bus/bustest"
	"parley/workers/gateway/a2anats"
)

// TestResumedStreamEndsWithAQuestion: a stream that began with a message ends when
// its task asks something, also where it was taken up at another gateway.
func TestResumedStreamEndsWithAQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Connect(t)
		answer := func(op string, frames ...[3]string) {
			t.Helper()
			_, err := b.Subscribe(a2anats.Subject(a2anats.Root, "alice", op), "", func(m bus.Msg) {
				for _, f := range frames {
					if err := m.Respond([]byte(f[2]), bus.Header{a2anats.HeaderFrame: {f[0]}, a2anats.HeaderEvent: {f[1]}}); err != nil {
						t.Error(err)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		answer(
			"SendStreamingMessage",
			[3]string{a2anats.FrameEvent, "1", `{"task":{"id":"t1","contextId":"c1","status":{"state":"TASK_STATE_WORKING"}}}`},
			[3]string{a2anats.FrameError, "", `{"error":{"status":"UNAVAILABLE","message":"the gateway is stopping","details":[{"reason":"UNAVAILABLE"}]}}`},
		)
		answer(
			"SubscribeToTask", // it stays while the question waits
			[3]string{a2anats.FrameEvent, "2", `{"statusUpdate":{"taskId":"t1","contextId":"c1","status":{"state":"TASK_STATE_INPUT_REQUIRED"}}}`},
		)
		c, err := a2anats.New(a2anats.Config{Bus: b, From: "alice"})
		if err != nil {
			t.Fatal(err)
		}
		began, events := time.Now(), 0
		hello := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("hello"))
		for _, err := range c.SendStreamingMessage(t.Context(), nil, &a2a.SendMessageRequest{Message: hello}) {
			if err != nil {
				t.Fatal(err)
			}
			events++
		}
		if took := time.Since(began); events != 2 || took >= a2anats.Silence {
			t.Errorf("%d events, and an end after %s, want 2 and an end with the question", events, took)
		}
	})
}
