package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// calloutPoints are the crash points of identities: the first operator gets one,
// one is added, renewed, revoked; :2 and so on the next of them.
var calloutPoints = []string{
	"after_seal_key", "after_identity", "after_nonce", "after_v1", "after_identity:2", "after_identity:3", "after_identity:4",
}

// TestCalloutCrash has a `parley up --callout` die as it makes the key that seals,
// as it gives the first operator an identity, at the first connection that proves
// one, and as identities are added, renewed and revoked, and start again, or lose
// acknowledgements. The operator gets in; so does who was added, by the newest key
// alone, until that is revoked.
func TestCalloutCrash(t *testing.T) {
	sweep(t, calloutPoints, func(t *testing.T, point string) {
		s := &calloutSite{t: t, dir: t.TempDir()}
		address := freeAddress(t)
		s.url = "nats://" + address
		up := func(name, binary string, env ...string) *process {
			return start(t, s.dir, program{
				name: name, path: binary, env: append(env, "PARLEY_LOG_FORMAT=json"),
				args: []string{"up", "--callout", "--workers", "callout,registry", "--port", address[strings.LastIndex(address, ":")+1:], "--http", "off", "-o", "json"},
			})
		}
		first := up("up-1", crashBinary(t), crashEnv(point))
		ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
		defer cancel()
		acted := make(chan error, 1)
		go func() { acted <- s.identities(ctx) }()
		if dies(t, first, point) {
			up("up-2", parleyBinary(t))
		}
		if err := <-acted; err != nil {
			t.Fatal(err)
		}
		checkLost(t, first, point, "$KV.FLEET_IDENTITIES.")
	})
}

// identities adds bot, renews and revokes it, and sees each time who gets in.
func (s *calloutSite) identities(ctx context.Context) error {
	operator := filepath.Join(s.dir, "data", "parley", "callout", "operator.identity.json")
	// asks repeats a command until its end is one of those wanted; "" is success.
	asks := func(identity string, args []string, want ...string) (end string, err error) {
		for {
			out, err := s.try(ctx, identity, append(args, "--timeout", "5s")...) // nobody waits long for an answer that was lost
			for _, end := range want {
				if end == "" && err == nil || end != "" && err != nil && strings.Contains(out, end) {
					return end, nil
				}
			}
			if perr := pause(ctx, 100*time.Millisecond); perr != nil {
				return "", fmt.Errorf("parley %s: want %q: %w (last: %w)\n%s", strings.Join(args, " "), want, perr, err, out)
			}
		}
	}
	one, two := filepath.Join(s.dir, "one.json"), filepath.Join(s.dir, "two.json")
	added, err := asks(operator, []string{"identity", "add", "bot", "--role", "orchestrator", "--file", one}, "", "idempotency_conflict")
	if err == nil && added != "" { // it was added, and its key is lost
		_, err = asks(operator, []string{"identity", "rotate", "bot", "--overlap", "0", "--file", one}, "")
	}
	for _, step := range []struct {
		identity string
		args     []string
		want     string
	}{
		{one, []string{"agent", "ls"}, ""},
		{operator, []string{"identity", "rotate", "bot", "--overlap", "0", "--file", two}, ""},
		{two, []string{"agent", "ls"}, ""},
		{one, []string{"agent", "ls"}, "auth_failed"},
		{operator, []string{"identity", "revoke", "bot"}, ""},
		{two, []string{"agent", "ls"}, "auth_failed"},
	} {
		if err == nil {
			_, err = asks(step.identity, step.args, step.want)
		}
	}
	return err
}
