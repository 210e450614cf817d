package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// TestCanary: a store that takes no write is not ready, after as long as an
// election may take; and is again with the first write that goes through.
func TestCanary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no write")
		var breaks atomic.Bool
		c := newCanary(func(ctx context.Context) error {
			if !breaks.Load() {
				return nil
			}
			<-ctx.Done() // it says nothing at all
			return broken
		}, nil, slog.New(slog.DiscardHandler))
		bustest.Run(t, c.Run)
		synctest.Wait()
		breaks.Store(true)
		time.Sleep(canaryLimit - canaryEvery)
		if err := c.Ready(); err != nil {
			t.Errorf("not ready after %s: %v", canaryLimit-canaryEvery, err)
		}
		time.Sleep(2 * canaryEvery)
		if err := c.Ready(); !errors.Is(err, broken) {
			t.Errorf("Ready = %v, want %v", err, broken)
		}
		breaks.Store(false)
		time.Sleep(2 * canaryEvery)
		if err := c.Ready(); err != nil {
			t.Errorf("not ready once it is mended: %v", err)
		}
	})
}

// TestCanaryOfStreams: each stream of this process's workers has its turn within a
// minute; one that commits nothing is tried each time from then on, and the
// process is not ready while it does not.
func TestCanaryOfStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("FLEET_CONTEXT is wedged")
		var breaks atomic.Bool
		var mu sync.Mutex
		tried := map[string]int{}
		c := newCanary(func(context.Context) error { return nil }, func(ctx context.Context, stream string) error {
			mu.Lock()
			tried[stream]++
			mu.Unlock()
			if stream != subjects.StreamContext || !breaks.Load() {
				return nil
			}
			<-ctx.Done()
			return broken
		}, slog.New(slog.DiscardHandler))
		all := 0
		for _, w := range workerNames() {
			c.watch(bus.Written(w)...)
		}
		bustest.Run(t, c.Run)
		time.Sleep(time.Minute - time.Second)
		mu.Lock()
		for _, n := range tried {
			all += n
		}
		if len(tried) != len(c.streams) || all > len(c.streams)+canaryRound {
			t.Errorf("%d of %d streams were tried in a minute, %d times together", len(tried), len(c.streams), all)
		}
		mu.Unlock()
		breaks.Store(true)
		time.Sleep(time.Minute + canaryLimit + canaryTry)
		if err := c.Ready(); !errors.Is(err, broken) {
			t.Errorf("Ready = %v, want %v", err, broken)
		}
		breaks.Store(false)
		time.Sleep(2 * canaryEvery)
		if err := c.Ready(); err != nil {
			t.Errorf("not ready once it is mended: %v", err)
		}
	})
}

// TestEveryStreamIsTried by whichever worker writes it, or takes what is in it.
func TestEveryStreamIsTried(t *testing.T) {
	t.Parallel()
	list, err := bustest.New(t).Bus(t).Streams(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	by := map[string][]string{}
	for _, w := range workerNames() {
		for _, stream := range bus.Written(w) {
			by[stream] = append(by[stream], w)
		}
	}
	for i := range list {
		if len(by[list[i].Name]) == 0 {
			t.Errorf("nobody tries %s", list[i].Name)
		}
		delete(by, list[i].Name)
	}
	if len(by) > 0 {
		t.Errorf("what is tried is not there: %v", by)
	}
	for worker, stream := range map[string]string{
		"router": subjects.StreamInbox, "sessions": subjects.StreamContext, "runs": subjects.StreamRuns, "webhooks": subjects.StreamWebhooks,
		"audit": subjects.StreamAudit, "mesh": subjects.StreamMesh, "schedules": "KV_" + subjects.BucketSchedules,
	} {
		if !slices.Contains(bus.Written(worker), stream) {
			t.Errorf("a worker %s does not try %s", worker, stream)
		}
	}
}

// monitored is a monitoring page that says how its server syncs.
func monitored(t *testing.T, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/varz" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestMonitor: workers do not start on a server that is less safe than they
// are told, and say so where nobody knows.
func TestMonitor(t *testing.T) {
	t.Parallel()
	safe := monitored(t, `{"server_name":"n1","jetstream":{"config":{"sync_interval":120000000000,"sync_always":true}}}`)
	lazy := monitored(t, `{"server_name":"n2","jetstream":{"config":{"sync_interval":120000000000}}}`)
	url := bustest.New(t).URL()
	s := newShell(t, "NATS_URL="+url)
	got := s.run(t, "serve", "--http", "off", "--monitor", safe+","+lazy)
	got.check(t, exitFailed, "", "the servers are not as safe as --sync says")
	got.check(t, exitFailed, "", "server n2 acknowledges writes before they are on the disk (sync_interval 2m0s)")

	for _, c := range []struct {
		args      []string
		say, page string
	}{
		{[]string{"--sync", "2m"}, `"msg":"UNSAFE"`, `"unsafe":["--sync says that servers acknowledge before they flush`},
		{nil, `"msg":"not known to be safe"`, `"unsafe":["durability unverified: nobody has looked`},
		{[]string{"--monitor", "http://127.0.0.1:1"}, `"msg":"not known to be safe"`, `"unsafe":["durability unverified: a monitoring page does not answer`},
		{[]string{"--monitor", safe, "--provision", "off"}, `"msg":"not known to be safe"`, `"unsafe":["streams unverified: --provision off`},
		{[]string{"--monitor", safe}, "", `{"status":"ok","workers":`},
	} {
		j := s.start(t, append([]string{"serve", "--http", "127.0.0.1:0", "--workers", "registry"}, c.args...)...)
		log := j.stderr.waitFor(t, `"msg":"ready"`)
		if !strings.Contains(log, c.say) || c.say == "" && strings.Contains(log, "safe") {
			t.Errorf("serve %q does not say %q:\n%s", c.args, c.say, log)
		}
		if code, body := get(t, regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(log[strings.Index(log, `"msg":"ready"`):])+"/readyz"); code != http.StatusOK || !strings.Contains(body, c.page) {
			t.Errorf("/readyz of serve %q: %d %s, want %q", c.args, code, body, c.page)
		}
	}
	check := func(monitor string) finding {
		t.Helper()
		return findings(t, s, exitFailed, "--monitor", monitor)["sync"]
	}
	if f := check(lazy); f.OK || !strings.Contains(f.Found, "n2") {
		t.Errorf("of a lazy server: %+v", f)
	}
	if f := check(safe); !f.OK {
		t.Errorf("of a safe server: %+v", f)
	}
}
