package bus_test

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
)

// TestJetStreamErrors holds the table against the server's own: no code is
// misspelt, and none that speaks of something missing, of a server that is
// not ready, or of too much at once is taken for a refusal.
func TestJetStreamErrors(t *testing.T) {
	t.Parallel()
	refusals := map[int]string{
		10068: "templates are gone",
		10036: "waiting does not make a cluster support it",
		10010: "waiting does not make a cluster",
		10035: "waiting does not make an account",
		10075: "of the system account alone",
		10063: "between replicas",
	}
	found := 0
	for _, e := range bustest.APIErrors() {
		got, known := bus.APIErrorOf(e.Code)
		if known {
			found++
		}
		var want []error
		switch e.Status {
		case 404:
			want = []error{bus.ErrNotFound}
		case 409, 429:
			want = []error{bus.ErrNoResponders}
		case 503:
			want = []error{bus.ErrNoResponders, bus.ErrFull}
		default:
			continue
		}
		ok := refusals[e.Code] != ""
		for _, w := range want {
			ok = ok || errors.Is(got, w)
		}
		if !ok {
			t.Errorf("%d, %q (%d), is %v, want one of %v", e.Code, e.Description, e.Status, got, want)
		}
	}
	if n := bus.APIErrorCodes(); found != n {
		t.Errorf("the server knows %d of the %d codes of the table", found, n)
	}
	for code, want := range map[int]error{
		10071: bus.ErrConflict,     // wrong last sequence
		10164: bus.ErrInProcess,    // wrong last sequence, in process
		10077: bus.ErrFull,         // maximum messages, bytes
		10047: bus.ErrFull,         // storage
		10043: bus.ErrNotFound,     // sequence
		10149: bus.ErrNotFound,     // consumer
		10059: bus.ErrNotFound,     // stream
		10176: bus.ErrNoResponders, // atomic batch is incomplete
		10058: bus.ErrExists,       // stream
		10148: bus.ErrExists,       // consumer
		10009: bus.ErrNoResponders, // not leader
		10118: bus.ErrNoResponders, // stream offline
		10057: bus.ErrRefused,      // delete failed, for whatever reason
		10194: bus.ErrRefused,      // stream offline: the server is too old for it
		10054: bus.ErrRefused,      // message too large
	} {
		if got, _ := bus.APIErrorOf(code); !errors.Is(got, want) {
			t.Errorf("%d is %v, want %v", code, got, want)
		}
	}
}

// TestAlertOfTLS: who has no certificate where one is wanted has the server's
// alert from the first read, or a broken connection from the first write.
func TestAlertOfTLS(t *testing.T) {
	t.Parallel()
	alert := &net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}
	if got := bus.MapError(fmt.Errorf("nats: %w", alert)); !errors.Is(got, bus.ErrTLS) {
		t.Errorf("an alert is %v, want ErrTLS", got)
	}
	if got := bus.MapError(&net.OpError{Op: "read", Err: errors.New("reset")}); errors.Is(got, bus.ErrTLS) {
		t.Errorf("a connection that was reset is %v, want another error", got)
	}
}
