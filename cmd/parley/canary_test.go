package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
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
		}, slog.New(slog.DiscardHandler))
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
		args []string
		say  string
	}{
		{[]string{"--sync", "2m"}, "UNSAFE"},
		{nil, "durability unverified: nobody has looked"},
		{[]string{"--monitor", "http://127.0.0.1:1"}, "durability unverified: a monitoring page does not answer"},
	} {
		j := s.start(t, append([]string{"serve", "--http", "off", "--workers", "registry"}, c.args...)...)
		j.stderr.waitFor(t, `"msg":"ready"`)
		if !strings.Contains(j.stderr.String(), c.say) {
			t.Errorf("serve %q does not say %q:\n%s", c.args, c.say, j.stderr.String())
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
