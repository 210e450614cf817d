package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// pushing is a gateway on a bus of its own that knows one task, of which there
// are as many records as its last one counts; where that is nil, there is no task.
func pushing(t *testing.T) (w *Worker, now *atomic.Pointer[fleet.Event]) {
	t.Helper()
	w, now = onBus(t), new(atomic.Pointer[fleet.Event])
	now.Store(recorded("t1", 1, fleet.StateWorking))
	kv, err := w.cfg.Bus.KV(t.Context(), subjects.BucketPush)
	if err != nil {
		t.Fatal(err)
	}
	w.push = newPusher(w)
	withHooks(w)
	w.push.kv = kv
	answers(t, w, "task", "events", func([]byte) any {
		last := now.Load()
		if last == nil {
			return fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeNotFound, "there is no such task")}
		}
		reply := fleet.TaskEventsReply{}
		if last.Seq == 0 {
			return reply
		}
		for seq := range last.Seq - 1 {
			reply.Events = append(reply.Events, *recorded(last.TaskID, seq+1, fleet.StateWorking))
		}
		reply.Events = append(reply.Events, *last)
		return reply
	})
	return w, now
}

func (w *Worker) made(t *testing.T, c *call, in *a2apb.TaskPushNotificationConfig) string {
	t.Helper()
	in.TaskId = "t1"
	out, err := w.createPush(t.Context(), c, in)
	if err != nil {
		t.Fatal(err)
	}
	return out.GetId()
}

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
			err = p.tell(t.Context(), strconv.Itoa(n), c, fleet.Trace{}, f)
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

// TestReplacedPushConfigHearsAll: what happened before a config took the place of
// another one, and was not told yet, is told.
func TestReplacedPushConfigHearsAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, now := pushing(t)
		in := &a2apb.TaskPushNotificationConfig{Id: "mine", Url: "https://hooks.example.org/a"}
		w.made(t, &call{from: anonymous}, in)
		w.push.busy["t1"] = true // the pusher has other things to do
		bustest.Run(t, func(ctx context.Context) error {
			if err := w.push.run(ctx); ctx.Err() == nil {
				return err
			}
			return nil
		})
		synctest.Wait()
		now.Store(recorded("t1", 2, fleet.StateDone))
		w.push.mark("t1", 2)
		w.made(t, &call{from: anonymous}, in)
		w.push.done(t.Context(), "t1", nil)
		<-time.After(time.Minute)
		s, err := w.cfg.Bus.StreamState(t.Context(), subjects.StreamWebhooks)
		if err != nil || s.Msgs == 0 {
			t.Errorf("the outbox has %d deliveries, %v: the end of the task is told to nobody", s.Msgs, err)
		}
		all, err := w.push.list(t.Context(), anonymous, "t1")
		if err != nil || len(all) != 1 || !all[0].Done {
			t.Errorf("configs %+v, %v, want one that is done", all, err)
		}
	})
}

// TestPushConfigsWithoutID: what is made twice without an id is one config, with
// an idempotency key or without.
func TestPushConfigsWithoutID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := pushing(t)
		config := func(token string) *a2apb.TaskPushNotificationConfig {
			return &a2apb.TaskPushNotificationConfig{
				Url: "https://hooks.example.org/a", Token: token, Authentication: &a2apb.AuthenticationInfo{Scheme: "Bearer", Credentials: "s"},
			}
		}
		first := w.made(t, &call{from: anonymous}, config("a"))
		for _, key := range []string{"", "k1", "k1", "k2"} {
			if id := w.made(t, &call{from: anonymous, key: key}, config("a")); id != first {
				t.Errorf("under the key %q it is the config %s, want %s again", key, id, first)
			}
		}
		if id := w.made(t, &call{from: anonymous}, config("b")); id == first {
			t.Error("another token is the same config")
		}
		if all, err := w.push.list(t.Context(), anonymous, "t1"); err != nil || len(all) != 2 {
			t.Errorf("%d configs, %v, want 2", len(all), err)
		}
	})
}

// TestDeletedPushConfigs: what is left of configs that were deleted, or whose
// tasks are gone, goes.
func TestDeletedPushConfigs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, now := pushing(t)
		for _, id := range []string{"deleted", "dropped"} {
			w.made(t, &call{from: anonymous}, &a2apb.TaskPushNotificationConfig{Id: id, Url: "https://hooks.example.org/a"})
		}
		if _, err := w.deletePush(t.Context(), &call{from: anonymous}, &a2apb.DeleteTaskPushNotificationConfigRequest{TaskId: "t1", Id: "deleted"}); err != nil {
			t.Fatal(err)
		}
		bustest.Run(t, func(ctx context.Context) error {
			if err := w.push.run(ctx); ctx.Err() == nil {
				return err
			}
			return nil
		})
		synctest.Wait()
		now.Store(nil)
		w.push.mark("t1", 0)
		<-time.After(time.Minute)
		for _, id := range []string{"deleted", "dropped"} {
			m, err := w.cfg.Bus.Last(t.Context(), "KV_"+subjects.BucketPush, "$KV."+subjects.BucketPush+"."+pushKey("t1", id))
			if err != nil || len(m.Data) > 0 || m.Header.Get("Nats-TTL") == "" {
				t.Errorf("%s: %s with %v, %v, want a mark that goes", id, m.Data, m.Header, err)
			}
		}
	})
}

// TestPushConfigsUnread: a gateway that hears no more of push notification configs
// ends, to be started again.
func TestPushConfigsUnread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		kv, err := b.KV(t.Context(), subjects.BucketPush)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Put(t.Context(), "t1.x", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		w, err := New(Config{Bus: b, Push: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		<-time.After(time.Second)
		if err := w.Ready(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Request(t.Context(), "$JS.API.STREAM.DELETE.KV_"+subjects.BucketPush, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Provision(t.Context(), bus.Provisioning{}); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err == nil {
				t.Error("Run = nil, want why it ended")
			}
		case <-time.After(time.Hour):
			t.Errorf("the gateway goes on, Ready = %v", w.Ready())
			cancel()
			<-ended
		}
	})
}

// TestPushOfWhatIsReadLater: what a record says is told, too, where who is asked for
// the records does not know it yet, or none of them.
func TestPushOfWhatIsReadLater(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]*fleet.Event{"an earlier one": recorded("t1", 1, fleet.StateWorking), "none": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, now := pushing(t)
				w.feed.heardOf = w.push.mark
				w.made(t, &call{from: anonymous}, &a2apb.TaskPushNotificationConfig{Id: "mine", Url: "https://hooks.example.org/a"})
				runPush(t, w)
				end := recorded("t1", 2, fleet.StateDone)
				now.Store(first)
				tell(w, end)
				<-time.After(5 * time.Second)
				now.Store(end)
				<-time.After(time.Minute)
				if all, err := w.push.list(t.Context(), anonymous, "t1"); err != nil || len(all) != 1 || !all[0].Done {
					t.Errorf("configs %+v, %v, want one that is told the end", all, err)
				}
			})
		})
	}
}

// runPush has w push until the test ends.
func runPush(t *testing.T, w *Worker) {
	t.Helper()
	bustest.Run(t, func(ctx context.Context) error {
		if err := w.push.run(ctx); ctx.Err() == nil {
			return err
		}
		return nil
	})
	synctest.Wait()
}

// said is what w logs from then on.
func (w *Worker) said() *lines {
	var out lines
	w.log = slog.New(slog.NewTextHandler(&out, nil))
	return &out
}

// lines are what somebody logs.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// with are those that have part in them.
func (l *lines) with(part string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return found
}

// TestPushWaitsForRoom: that push notifications wait for room in the outbox is said,
// and nobody is asked for what could not be told.
func TestPushWaitsForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := door(t)
		log := w.said()
		w.cfg.Bus = bustest.NewFake(t).Connect(t)
		b := w.cfg.Bus
		if err := b.Provision(t.Context(), bus.Provisioning{WebhooksMaxBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		var asked atomic.Int64
		answers(t, w, "task", "events", func(data []byte) any {
			asked.Add(1)
			req, err := fleet.DecodeRequest[fleet.TaskEvents](data)
			if err != nil {
				t.Error(err)
			}
			return fleet.TaskEventsReply{Events: []fleet.Event{*recorded(req.TaskID, 1, fleet.StateWorking)}}
		})
		kv, err := b.KV(t.Context(), subjects.BucketPush)
		if err != nil {
			t.Fatal(err)
		}
		w.push = newPusher(w)
		withHooks(w)
		w.push.kv = kv
		fill(t, b, 100)
		for n := range 10 {
			task := subjects.TaskID(fmt.Sprint("t", n))
			c := &pushConfig{ID: "c", TaskID: task, From: anonymous, URL: "https://hooks.example.org/a", Until: time.Now().Add(time.Hour)}
			if err := w.push.set(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		runPush(t, w)
		<-time.After(10 * time.Second)
		if n := asked.Load(); n > 20 {
			t.Errorf("routers were asked for records %d times in 10 s", n)
		}
		if n := len(log.with("push notifications wait")); n != 1 {
			t.Errorf("it was said %d times, want once", n)
		}
		if err := b.Purge(t.Context(), subjects.StreamWebhooks, subjects.Webhook("o", "*")); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		if s, err := b.StreamState(t.Context(), subjects.StreamWebhooks); err != nil || s.Msgs != 10 {
			t.Errorf("with room again the outbox has %d deliveries, %v, want 10", s.Msgs, err)
		}
	})
}

// fill leaves so many bytes of the push notifications' share of the outbox.
func fill(t *testing.T, b *bus.Bus, left int) {
	t.Helper()
	for size, n := 64<<10, 0; ; n++ {
		s, err := b.StreamState(t.Context(), subjects.StreamWebhooks)
		if err != nil {
			t.Fatal(err)
		}
		rest := int(pushShare*float64(s.MaxBytes)) - int(s.Bytes)
		if rest <= left {
			return
		}
		id := subjects.DeliveryID(fmt.Sprint("f", n))
		if _, err := b.Store(t.Context(), subjects.Webhook("o", id), []byte(strings.Repeat("x", max(min(size, rest-left-100), 1))), "", nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPushConfigsLost: how many configs went with something that they were not told
// is said, whether the records of their tasks went first or their time was over.
func TestPushConfigsLost(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		left *fleet.Event // of the records
		wait time.Duration
	}{
		"records gone": {}, "time over": {left: &fleet.Event{}}, "records gone as the time is over": {wait: time.Hour - 30*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, now := pushing(t)
				log := w.said()
				for _, id := range []string{"a", "b", "deleted"} {
					c := &pushConfig{ID: id, TaskID: "t1", From: anonymous, URL: "https://hooks.example.org/a", Sent: 1, Until: time.Now().Add(time.Hour)}
					if err := w.push.set(t.Context(), c); err != nil {
						t.Fatal(err)
					}
				}
				runPush(t, w)
				if err := w.push.remove(t.Context(), anonymous, "t1", "deleted"); err != nil {
					t.Fatal(err)
				}
				<-time.After(tt.wait)
				now.Store(tt.left) // the end is never read
				w.push.mark("t1", 0)
				<-time.After(2 * time.Hour)
				if got := log.with("nobody was told"); len(got) != 1 || !strings.Contains(got[0], "configs=2") {
					t.Errorf("it says %q, want one line that counts 2", got)
				}
			})
		})
	}
}

// withHooks has the gateway believe for an hour that a worker delivers notifications.
func withHooks(w *Worker) {
	then := time.Now().Add(time.Hour)
	w.hooks.value, w.hooks.at = then, then
}
