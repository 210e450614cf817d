package bus_test

import (
	"strings"
	"testing"
	"time"

	"parley/bus"
)

func TestRedacted(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"nats://a:1": "nats://a:1", "nats://u:p@a:1,tls://token@b:2": "nats://…@a:1,tls://…@b:2",
		"u:p@a:1": "…@a:1", "nats://u:p@ss@a:1": "nats://…@a:1", " nats://u:p@a:1 , nats://c": " nats://…@a:1 , nats://c", "": "",
	} {
		if got := bus.Redacted(in); got != want {
			t.Errorf("Redacted(%q) = %q, want %q", in, got, want)
		}
	}
}

// No error of Connect shows what stands before the host.
func TestConnectErrorsAreRedacted(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"nats://user:canary@127.0.0.1:1", "nats://canary@127.0.0.1:1", "nats://user:canary@127.0.0.1:port", "x://user:canary@[::1"} {
		b, err := bus.Connect(t.Context(), bus.Config{URL: url, ConnectTimeout: 200 * time.Millisecond})
		if err == nil {
			b.Close()
		}
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("Connect(%s) = %v", url, err)
		}
	}
}
