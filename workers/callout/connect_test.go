package callout_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/identity"
	"parley/workers/callout"
)

func TestConnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	k := w.add(t, identity.Add{AgentID: "bot"})
	b, err := w.dial(t, prove("bot", k, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	w.audited(t, "bot", handshake.EventAuthGranted, "")
	// What the catalogue allows bot, and nothing else.
	if err := b.Publish(subjects.Heartbeat("bot", "main"), []byte("{}"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Store(t.Context(), subjects.Announce("bot", "main"), []byte("{}"), "", nil); err != nil {
		t.Errorf("own announce: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), bustest.Patience)
	defer cancel()
	if _, err := b.Store(short, subjects.Announce("eve", "main"), []byte("{}"), "", nil); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("announce of another: %v, want ErrDenied", err)
	}
	if _, err := b.StreamState(short, subjects.StreamTasks); err == nil {
		t.Error("it reaches JetStream's API")
	}
	// A token will do, so will the JSON; a name that is not the proof's will not.
	if _, err := w.dialWith(t, "", prove("bot", k, time.Now()).Password()); err != nil {
		t.Errorf("as a token: %v", err)
	}
	if _, err := w.dialWith(t, "bot", string(fleet.MustEncode(prove("bot", k, time.Now())))); err != nil {
		t.Errorf("as JSON: %v", err)
	}
	if _, err := w.dialWith(t, "eve", prove("bot", k, time.Now()).Password()); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("as another user: %v, want ErrDenied", err)
	}
	if _, err := w.dialWith(t, "bot", "guess"); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("with a password: %v, want ErrDenied", err)
	}
}

func TestConnectRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	key := map[subjects.AgentID]identity.Key{}
	for _, q := range []identity.Add{
		{AgentID: "bot"},
		{AgentID: "plain", Signatures: identity.V0},
		{AgentID: "here", AllowedHosts: []string{"192.0.2.7", "127.0.0.0/8"}},
		{AgentID: "mac", AllowedHosts: []string{"vps", "mac"}},
		{AgentID: "vps", AllowedHosts: []string{"vps", "192.0.2.0/24", "nowhere"}},
		{AgentID: "nohost", AllowedHosts: []string{}},
		{AgentID: "able", Capabilities: []string{"shell"}},
	} {
		key[q.AgentID] = w.add(t, q)
	}
	now := time.Now()
	good := func(id subjects.AgentID) *identity.Proof { return prove(id, key[id], now) }

	t.Run("bad signature", func(t *testing.T) {
		t.Parallel()
		w.refused(t, prove("bot", identity.Key{ID: key["bot"].ID, Secret: make([]byte, 32)}, now), subjects.CodeAuthFailed)
	})
	t.Run("unknown", func(t *testing.T) {
		t.Parallel()
		w.refused(t, prove("eve", key["bot"], now), subjects.CodeAuthFailed)
	})
	t.Run("another's key", func(t *testing.T) {
		t.Parallel()
		w.refused(t, prove("mac", key["bot"], now), subjects.CodeAuthFailed)
	})
	t.Run("old", func(t *testing.T) {
		t.Parallel()
		w.refused(t, prove("bot", key["bot"], now.Add(-identity.Window-10*time.Second)), subjects.CodeAuthFailed)
	})
	t.Run("early", func(t *testing.T) {
		t.Parallel()
		w.refused(t, prove("bot", key["bot"], now.Add(identity.Window+time.Minute)), subjects.CodeAuthFailed)
	})
	t.Run("nearly old", func(t *testing.T) {
		t.Parallel()
		if _, err := w.dial(t, prove("bot", key["bot"], now.Add(-identity.Window+2*time.Minute))); err != nil {
			t.Error(err)
		}
	})
	t.Run("for a message", func(t *testing.T) {
		t.Parallel()
		p := good("bot")
		p.Sign(key["bot"], subjects.Dispatch("bot"), nil)
		w.refused(t, p, subjects.CodeAuthFailed)
	})
	t.Run("replayed", func(t *testing.T) {
		t.Parallel()
		p := good("bot")
		if _, err := w.dial(t, p); err != nil {
			t.Fatal(err)
		}
		w.refused(t, p, subjects.CodeAuthFailed)
	})
	t.Run("hosts", func(t *testing.T) {
		t.Parallel()
		for _, id := range []subjects.AgentID{"here", "mac"} {
			if _, err := w.dial(t, good(id)); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		w.refused(t, good("vps"), subjects.CodeHostNotAllowed)
		w.refused(t, good("nohost"), subjects.CodeHostNotAllowed)
	})
	t.Run("claims", func(t *testing.T) {
		t.Parallel()
		p := good("able")
		p.Capabilities = []string{"shell", "root"}
		w.refused(t, p, subjects.CodeForbidden)
		p = good("able")
		p.Capabilities = []string{"shell"}
		if _, err := w.dial(t, p); err != nil {
			t.Errorf("what it has: %v", err)
		}
	})
	t.Run("v0 by default", func(t *testing.T) {
		t.Parallel()
		p := &identity.Proof{AgentID: "bot", Timestamp: identity.Timestamp(now)}
		p.SignPlain(key["bot"].Secret)
		w.refused(t, p, subjects.CodeAuthFailed)
	})
	t.Run("v0 until v1 was seen", func(t *testing.T) {
		t.Parallel()
		at := now
		next := func() *identity.Proof {
			at = at.Add(time.Second)
			p := &identity.Proof{AgentID: "plain", Timestamp: identity.Timestamp(at)}
			p.SignPlain(key["plain"].Secret)
			return p
		}
		first := next()
		if _, err := w.dial(t, first); err != nil {
			t.Fatal(err)
		}
		w.refused(t, first, subjects.CodeAuthFailed) // it counts once, as every other
		if _, err := w.dial(t, next()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.dial(t, good("plain")); err != nil {
			t.Fatal(err)
		}
		w.refused(t, next(), subjects.CodeAuthFailed)
	})
}

func TestRotateAndRevoke(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	w.start(t) // whichever is asked must know
	old := w.add(t, identity.Add{AgentID: "bot"})
	rotate := func(overlap time.Duration) identity.Key {
		r, err := ask[identity.Issued](t, w.worker, "rotate", &identity.Rotate{AgentID: "bot", OverlapSeconds: overlap.Seconds()})
		if err != nil {
			t.Fatal(err)
		}
		k, err := identity.ParseKey(r.Key)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	both := func(k identity.Key, what string) {
		t.Helper()
		for range 4 {
			if _, err := w.dial(t, prove("bot", k, time.Now())); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	next := rotate(time.Hour)
	both(old, "old key within the overlap")
	both(next, "new key")
	last := rotate(0)
	for _, k := range []identity.Key{old, next} {
		w.refused(t, prove("bot", k, time.Now()), subjects.CodeAuthFailed)
	}
	both(last, "last key")
	if _, err := ask[identity.View](t, w.worker, "revoke", &identity.Revoke{AgentID: "bot", Reason: "lost"}); err != nil {
		t.Fatal(err)
	}
	for range 4 { // from the moment on, at both
		w.refused(t, prove("bot", last, time.Now()), subjects.CodeAuthFailed)
	}
	view, err := ask[identity.View](t, w.worker, "get", &identity.Ref{AgentID: "bot"})
	if err != nil || view.Revoked == nil || view.Revoked.Reason != "lost" || len(view.Keys) != 1 || view.Keys[0].Secret != nil {
		t.Errorf("get = %+v, %v, want it revoked, with a key without its secret", view, err)
	}
	both(rotate(time.Hour), "a key after the revocation")
	w.refused(t, prove("bot", last, time.Now()), subjects.CodeAuthFailed) // the overlap is no pardon
}

// A proof counts once, whoever of many is asked, and however many try at once.
func TestReplicasShareNonces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 3 {
		w.start(t)
	}
	k := w.add(t, identity.Add{AgentID: "bot"})
	p := prove("bot", k, time.Now())
	var wg sync.WaitGroup
	var mu sync.Mutex
	in := 0
	for range 12 {
		wg.Go(func() {
			if _, err := w.dial(t, p); err == nil {
				mu.Lock()
				defer mu.Unlock()
				in++
			} else if !errors.Is(err, bus.ErrDenied) {
				t.Errorf("connect = %v, want ErrDenied", err)
			}
		})
	}
	wg.Wait()
	if in != 1 {
		t.Errorf("one proof let in %d, want 1", in)
	}
}

// A flood of wrong proofs keeps nobody out who has a right one, and leaves a
// bounded audit.
func TestFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	k := w.add(t, identity.Add{AgentID: "bot"})
	var wg sync.WaitGroup
	const attackers, each = 6, 25
	for n := range attackers {
		wg.Go(func() {
			for range each {
				wrong := identity.Key{ID: k.ID, Secret: bytes.Repeat([]byte{byte(n)}, 32)}
				if _, err := w.dial(t, prove("bot", wrong, time.Now())); err == nil {
					t.Error("a wrong proof lets in")
				}
			}
		})
	}
	for range 10 {
		if _, err := w.dial(t, prove("bot", k, time.Now())); err != nil {
			t.Errorf("amid the flood: %v", err)
		}
	}
	wg.Wait()
	nonces, err := w.worker.StreamState(t.Context(), "KV_"+subjects.BucketNonces)
	if err != nil || nonces.LastSeq != 10 {
		t.Errorf("%d nonces were stored (%v), want 10: wrong proofs must cost the store nothing", nonces.LastSeq, err)
	}
}

// Nobody answers: nobody gets in.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, stop := w.start(t)
	k := w.add(t, identity.Add{AgentID: "bot"})
	stop()
	if _, err := w.dial(t, prove("bot", k, time.Now())); err == nil {
		t.Error("connected, with nobody to allow it")
	}
}

// The connection of somebody who was revoked ends with its time; that of
// somebody else goes on.
func TestConnectionEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ttl = 2 * time.Second
	w.start(t)
	conns := map[subjects.AgentID]*bus.Bus{}
	for _, id := range []subjects.AgentID{"bot", "other"} {
		k := w.add(t, identity.Add{AgentID: id})
		c := w.server.Config()
		c.InboxPrefix = subjects.InboxPrefix(id)
		c.Credentials = func() (string, string) { return string(id), prove(id, k, time.Now()).Password() }
		b, err := bus.Connect(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		conns[id] = b
	}
	if _, err := ask[identity.View](t, w.worker, "revoke", &identity.Revoke{AgentID: "bot"}); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "bot to be out", func() bool { return !conns["bot"].Connected() })
	w.audited(t, "bot", handshake.EventAuthRefused, subjects.CodeAuthFailed)
	bustest.Eventually(t, "other to have come back", func() bool {
		msgs, _, err := w.worker.History(t.Context(), subjects.StreamLog, subjects.Log("", "other"), 1, 100)
		return err == nil && len(msgs) >= 2 && conns["other"].Connected()
	})
}

func TestAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	w.add(t, identity.Add{AgentID: "bot", Capabilities: []string{"shell"}})
	if _, err := askAs[identity.Issued](t, w.worker, "bot", "add", &identity.Add{AgentID: "eve"}); subjects.CodeOf(err) != subjects.CodeForbidden {
		t.Errorf("add by an agent: %v, want forbidden", err)
	}
	for what, c := range map[string]struct {
		verb string
		req  any
		want subjects.Code
	}{
		"twice":            {"add", &identity.Add{AgentID: "bot"}, subjects.CodeIdempotencyConflict},
		"update of nobody": {"add", &identity.Add{AgentID: "eve", Update: true}, subjects.CodeNotFound},
		"reserved":         {"add", &identity.Add{AgentID: "router"}, subjects.CodeInvalidID},
		"role":             {"add", &identity.Add{AgentID: "eve", Role: "worker"}, subjects.CodeInvalidMessage},
		"short secret":     {"add", &identity.Add{AgentID: "eve", Secret: []byte("short")}, subjects.CodeInvalidMessage},
		"rotate nobody":    {"rotate", &identity.Rotate{AgentID: "eve"}, subjects.CodeNotFound},
		"rotate for ever":  {"rotate", &identity.Rotate{AgentID: "bot", OverlapSeconds: 1e9}, subjects.CodeInvalidMessage},
		"revoke nobody":    {"revoke", &identity.Revoke{AgentID: "eve"}, subjects.CodeNotFound},
		"get nobody":       {"get", &identity.Ref{AgentID: "eve"}, subjects.CodeNotFound},
	} {
		if _, err := ask[json.RawMessage](t, w.worker, c.verb, c.req); subjects.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %s", what, err, c.want)
		}
	}
	r, err := ask[identity.Issued](t, w.worker, "add", &identity.Add{AgentID: "bot", Update: true, MaxTier: "sonnet"})
	if err != nil || r.Key != "" || r.Identity.MaxTier != "sonnet" || r.Identity.Capabilities != nil || len(r.Identity.Keys) != 1 {
		t.Errorf("update = %+v, %v, want the new terms and the old key", r, err)
	}
	list, err := ask[identity.ListReply](t, w.worker, "list", &identity.List{})
	if err != nil || len(list.Identities) != 1 || list.Identities[0].AgentID != "bot" {
		t.Errorf("list = %+v, %v", list, err)
	}
}

// What is stored opens with the key that seals alone.
func TestSecretsAreSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const sealKey = "a key that seals, of thirty-two bytes and more"
	b := w.connectWorker(t)
	w.run(t, b, open(t, b, callout.Terms{SealKey: sealKey}))
	secret := []byte("a secret that an agent has already, from elsewhere")
	r, err := ask[identity.Issued](t, w.worker, "add", &identity.Add{AgentID: "bot", Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	k, err := identity.ParseKey(r.Key)
	if err != nil || !bytes.Equal(k.Secret, secret) {
		t.Fatalf("key = %v, %v, want the secret given", k, err)
	}
	if _, err := w.dial(t, prove("bot", k, time.Now())); err != nil {
		t.Fatal(err)
	}
	kv, err := w.worker.KV(t.Context(), subjects.BucketIdentities)
	if err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(t.Context(), "id.bot")
	if err != nil {
		t.Fatal(err)
	}
	var rec identity.Record
	if err := json.Unmarshal(e.Value, &rec); err != nil {
		t.Fatal(err)
	}
	if sealed := rec.Keys[0].Secret; bytes.Contains(sealed, secret[:8]) || bytes.Contains(e.Value, secret[:8]) {
		t.Error("the secret is stored as it is")
	}
	// Moved to somebody else it opens nothing.
	rec.AgentID = "eve"
	data, err := json.Marshal(&rec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "id.eve", data); err != nil {
		t.Fatal(err)
	}
	w.refused(t, prove("eve", k, time.Now()), subjects.CodeAuthFailed)
	// Nor does another key that seals.
	other := w.connectWorker(t)
	if _, err := callout.Open(t.Context(), other, callout.Terms{SealKey: strings.Repeat("x", 31)}, quiet()); err == nil {
		t.Error("a short key that seals is taken")
	}
	if said := fmt.Sprintf("%v %+v", k, r.Identity); strings.Contains(said, "a secret that") {
		t.Errorf("it shows: %s", said)
	}
}
