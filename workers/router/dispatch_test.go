package router_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// A dispatch that is refused does not use its key up: once it is mended, it may
// come with the same.
func TestARefusedDispatchKeepsItsKey(t *testing.T) {
	t.Parallel()
	w := &world{t: t, srv: bustest.New(t, bustest.MaxPayload(fleet.MaxMessage))}
	w.bus = w.srv.Bus(t)
	w.router("r0")
	w.join("a", nil)
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	taken := w.send(dispatchJSON("x", `"task_id":"taken"`))
	for _, tt := range []struct {
		name, bad string
		want      subjects.Code
	}{
		{"too far", fmt.Sprintf(`{"task":{"idempotency_key":"too far"},"deadline":%q,"brief":"x"}`, in(40*24*time.Hour)), subjects.CodeInvalidMessage},
		{"past", fmt.Sprintf(`{"task":{"idempotency_key":"past"},"deadline":%q,"brief":"x"}`, in(-time.Minute)), subjects.CodeDeadlineExceeded},
		{"taken", `{"task":{"idempotency_key":"taken","task_id":"taken"},"brief":"y"}`, subjects.CodeIdempotencyConflict},
		{"too long", fmt.Sprintf(`{"task":{"idempotency_key":"too long"},"brief":%q}`, strings.Repeat("x", fleet.MaxMessage-100)), subjects.CodePayloadTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(tt.bad))
			if subjects.CodeOf(err) != tt.want {
				t.Fatalf("dispatch = %v, want %s", err, tt.want)
			}
			good := fmt.Sprintf(`{"task":{"idempotency_key":%q},"deadline":%q,"brief":"x"}`, tt.name, in(time.Hour))
			d, err := call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(good))
			if err != nil || d.Duplicate || d.TaskID == taken {
				t.Fatalf("the mended one = %+v, %v", d, err)
			}
			again, err := call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(good))
			if err != nil || !again.Duplicate || again.TaskID != d.TaskID {
				t.Errorf("the mended one again = %+v, %v, want task %s", again, err, d.TaskID)
			}
		})
	}
}

// A repeat is the task that it was at first, also when its deadline has passed
// meanwhile.
func TestARepeatAfterTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testARepeatAfterTheDeadline)
}

func testARepeatAfterTheDeadline(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	w.join("a", nil).answers(func(fleet.Dispatch) any { return fleet.Ack{} })
	deadline := time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano)
	dispatch := fmt.Sprintf(`{"task":{"idempotency_key":"k"},"deadline":%q,"brief":"x"}`, deadline)
	id := w.send(dispatch)
	w.outcome(id)
	d, err := call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(dispatch))
	if err != nil || !d.Duplicate || d.TaskID != id {
		t.Errorf("the same again = %+v, %v, want task %s", d, err, id)
	}
}

// What a dispatch leaves out is as the guide says.
func TestTermsThatADispatchLeavesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testTermsThatADispatchLeavesOut)
}

func testTermsThatADispatchLeavesOut(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	w.join("a", nil)
	got := w.events(w.send(`{"brief":"x"}`))[0].Facts
	want := fleet.Facts{
		From: "boss", Created: got.Created, Deadline: got.Created.Add(72 * time.Hour), Priority: fleet.Normal,
		Requirements: fleet.Requirements{RequiredMCP: []string{}, RequiredCapabilities: []string{}},
		Policy:       fleet.Policy{MaxRetries: 3, MaxLosses: 3, AlertRepeat: 30 * 60, GiveUpAfter: 24 * 3600},
		Timeout:      3600, PayloadHash: got.PayloadHash,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("terms (-want +got):\n%s", diff)
	}
}

// An idempotency key is stored for a day.
func TestKeysAreKeptForADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testKeysAreKeptForADay)
}

func testKeysAreKeptForADay(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	w.join("a", nil)
	w.send(dispatchJSON("x", `"idempotency_key":"k"`))
	kv, err := w.bus.KV(t.Context(), subjects.BucketIdem)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := kv.Keys(t.Context())
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys = %v, %v, want one", keys, err)
	}
	m, err := w.bus.Last(t.Context(), "KV_"+subjects.BucketIdem, "$KV."+subjects.BucketIdem+"."+keys[0])
	if err != nil {
		t.Fatal(err)
	}
	if ttl := m.Header.Get("Nats-TTL"); ttl != "86400s" {
		t.Errorf("its time to live is %q, want a day", ttl)
	}
}
