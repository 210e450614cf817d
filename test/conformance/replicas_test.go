package conformance_test

import (
	"bytes"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus/bustest"
	"parley/workers/gateway"
)

// TestFailover kills a gateway in the middle of streams: their clients resume
// at another one, with no event lost and none told twice.
func TestFailover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dying, kill := w.gateway(gateway.Config{})
	for _, b := range []binding{rpc{}, rest{}} {
		c := &client{T: t, w: w, b: b, at: dying, h: v10}
		task := c.send(now("gate failover-" + b.name()))
		w.await(t, task.GetId(), working)
		s := c.stream("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: task.GetId()})
		first := c.next(s)
		if b.name() == (rest{}).name() {
			kill()
			if _, err := s.next(); err == nil {
				t.Error("the stream of a gateway that was killed goes on")
			}
		}
		w.pass("failover-" + b.name())
		c.at, c.h = w.open, v10.with("Last-Event-ID", first.id)
		bustest.Eventually(t, "the end", func() bool { return c.get(task.GetId()).GetStatus().GetState() == completed })
		events := c.rest(c.stream("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: task.GetId()}))
		if got, want := story(events), "result. completed"; got != want {
			t.Errorf("%s resumed with %s, want %s", b.name(), got, want)
		}
		if got := first.id + " " + strings.Join(ids(events), " "); got != "2 2.1 3" {
			t.Errorf("%s: ids %s, want 2 2.1 3", b.name(), got)
		}
	}
}

// TestManyStreams opens 1 000 streams on one gateway: all are told of the end,
// and they cost little memory. Their clients, in the same process, count too.
func TestManyStreams(t *testing.T) {
	w := newWorld(t)
	c := &client{T: t, w: w, b: rest{}, at: w.open, h: v10}
	task := c.send(now("gate many"))
	w.await(t, task.GetId(), working)
	before := inUse()
	const n = 1000
	streams := make([]*http.Response, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range streams {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			res, err := send(t.Context(), http.MethodGet, w.open+"/a2a/tasks/"+task.GetId()+":subscribe", v10, "", nil) //nolint:bodyclose // closed below
			if err != nil {
				t.Error(err)
				return
			}
			first := make([]byte, 8)
			if _, err := res.Body.Read(first); err != nil || !bytes.HasPrefix(first, []byte("id: ")) {
				t.Errorf("stream %d begins with %q, %v", i, first, err)
			}
			streams[i] = res
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	used := inUse() - before
	t.Log(strconv.Itoa(n) + " streams, with their clients: " + strconv.FormatInt(used>>20, 10) + " MiB")
	if used > 150<<20 {
		t.Errorf("%d MiB in use, want at most 150", used>>20)
	}
	w.pass("many")
	for i, res := range streams {
		var rest bytes.Buffer
		if _, err := rest.ReadFrom(res.Body); err != nil || !strings.Contains(rest.String(), "TASK_STATE_COMPLETED") {
			t.Fatalf("stream %d ended with %v: %s", i, err, rest.String())
		}
		_ = res.Body.Close()
	}
}

// inUse is the memory that the process holds, stacks included.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
