package conformance_test

import (
	"bytes"
	"context"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"parley/bus/bustest"
	"parley/workers/agent"
	"parley/workers/gateway"
	"parley/workers/registry"
	"parley/workers/router"
)

// echo is an agent of the official SDK that says it again.
type echo struct{}

func (echo) Execute(_ context.Context, x *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		if !yield(a2a.NewSubmittedTask(x, x.Message), nil) ||
			!yield(a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil), nil) ||
			!yield(a2a.NewArtifactEvent(x, a2a.NewTextPart("hello")), nil) {
			return
		}
		yield(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil), nil)
	}
}

func (echo) Cancel(context.Context, *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(func(a2a.Event, error) bool) {}
}

// BenchmarkSend measures a blocking SendMessage to an agent that echoes: through
// gateway, router and agent with every record on the disk, and at the official
// SDK's own server, which keeps tasks in memory.
func BenchmarkSend(b *testing.B) {
	for _, server := range []struct {
		name  string
		start func(b *testing.B) string
	}{{"parley", startParley}, {"sdk-in-memory", startSDK}} {
		for _, callers := range []int{1, 64} {
			b.Run(server.name+"/callers="+map[int]string{1: "1", 64: "64"}[callers], func(b *testing.B) {
				benchSend(b, server.start(b), callers)
			})
		}
	}
}

func startSDK(b *testing.B) string {
	b.Helper()
	s := httptest.NewServer(a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(echo{})))
	b.Cleanup(s.Close)
	return s.URL
}

func startParley(b *testing.B) string {
	b.Helper()
	srv := bustest.New(b, bustest.SyncAlways)
	fleet := srv.Bus(b)
	r, err := router.New(router.Config{Bus: fleet})
	if err != nil {
		b.Fatal(err)
	}
	g, err := registry.New(registry.Config{Bus: fleet})
	if err != nil {
		b.Fatal(err)
	}
	a, err := agent.New(agent.Config{ID: "echo", Bus: fleet, MaxParallel: 128, Handler: agent.Echo{}})
	if err != nil {
		b.Fatal(err)
	}
	w, err := gateway.New(gateway.Config{Bus: fleet})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(b.Context()))
	var all sync.WaitGroup
	for _, run := range []func(context.Context) error{r.Run, g.Run, a.Run, w.Run} {
		all.Go(func() { _ = run(ctx) })
	}
	mux := http.NewServeMux()
	for pattern, h := range w.Handlers() {
		mux.Handle(pattern, h)
	}
	s := httptest.NewServer(mux)
	b.Cleanup(func() { s.Close(); stop(); all.Wait() })
	bustest.Eventually(b, "ready", func() bool { return r.Ready() == nil && g.Ready() == nil && w.Ready() == nil })
	return s.URL + "/a2a"
}

func benchSend(b *testing.B, url string, callers int) {
	b.Helper()
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hello"}]}}}`)
	one := func() time.Duration {
		begin := time.Now()
		res, err := send(b.Context(), http.MethodPost, url, v10, "application/json", body)
		if err != nil {
			b.Error(err)
			return 0
		}
		defer res.Body.Close()
		var got bytes.Buffer
		if _, err := io.Copy(&got, res.Body); err != nil || !strings.Contains(got.String(), "TASK_STATE_COMPLETED") {
			b.Errorf("%v: %s", err, got.String())
		}
		return time.Since(begin)
	}
	for range 20 { // the agent is known by now
		one()
	}
	var mu sync.Mutex
	var took []time.Duration
	work := make(chan struct{})
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for range work {
				d := one()
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		})
	}
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sends/s")
}
