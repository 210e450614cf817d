package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// TestPushLeavesRoom: push notifications do not fill the outbox, from which
// humans are called, too; they go on once there is room.
func TestPushLeavesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Connect(t)
		if err := b.Provision(t.Context(), bus.Provisioning{WebhooksMaxBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		w := door(t)
		w.cfg.Bus = b
		p := newPusher(w)
		task := someTask()
		task.History = []*a2apb.Message{{Parts: []*a2apb.Part{{Content: &a2apb.Part_Text{Text: strings.Repeat("x", 16<<10)}}}}}
		f := frame{id: "1", msg: taskFrame(&picture{task: task}, nil)}
		c := &pushConfig{ID: "c", TaskID: "t1", URL: "https://hooks.example.org/a"}
		var err error
		n := 0
		for ; err == nil && n < 100; n++ {
			err = p.tell(t.Context(), fmt.Sprint(n), c, fleet.Trace{}, f)
		}
		if err == nil {
			t.Fatal("push notifications take more than there is room for")
		}
		human := fleet.Delivery{
			Header:     fleet.Header{Type: fleet.TypeDelivery, ProtocolVersion: fleet.Version},
			DeliveryID: "d", Order: "o", Endpoint: "human", Body: json.RawMessage(`"` + strings.Repeat("x", 100<<10) + `"`),
		}
		if _, err := b.Store(t.Context(), subjects.Webhook("o", "d"), fleet.MustEncode(&human), "d", nil); err != nil {
			t.Errorf("after %d push notifications a human is not called: %v", n, err)
		}
		if err := b.Purge(t.Context(), subjects.StreamWebhooks, subjects.Webhook("t1", "*")); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if err := p.tell(t.Context(), "later", c, fleet.Trace{}, f); err != nil {
			t.Errorf("with room again: %v", err)
		}
	})
}
