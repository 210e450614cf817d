package callout_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/netip"
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

// world is a server that asks who may connect, with the fleet's own connection.
type world struct {
	server     *bustest.Server
	seed, xkey string
	worker     *bus.Bus
	ttl        time.Duration
	names      resolver
}

type resolver map[string]string

func (r resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if a, ok := r[host]; ok {
		return []netip.Addr{netip.MustParseAddr(a)}, nil
	}
	return nil, errors.New("no such host")
}

const workerPassword = "the password of workers"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{ttl: time.Hour, names: resolver{"mac": "127.0.0.1", "vps": "192.0.2.1"}}
	var public, xpublic string
	w.seed, public = bustest.AccountKey(t)
	w.xkey, xpublic = bustest.CurveKey(t)
	w.server = bustest.New(t, bustest.Callout(public, xpublic, bustest.User{Name: "worker", Password: workerPassword}))
	w.worker = w.connectWorker(t)
	if err := w.worker.Provision(t.Context(), bus.Provisioning{}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) connectWorker(t *testing.T) *bus.Bus {
	t.Helper()
	c := w.server.Config()
	c.User, c.Password = "worker", workerPassword
	b, err := bus.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// open is what a process of the fleet knows of identities, kept up to date.
func open(t *testing.T, b *bus.Bus, terms callout.Terms) *callout.Identities {
	t.Helper()
	ids, err := callout.Open(t.Context(), b, terms, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	bustest.Run(t, ids.Run)
	return ids
}

// start runs a callout worker on a connection of its own.
func (w *world) start(t *testing.T) (b *bus.Bus, stop func()) {
	t.Helper()
	b = w.connectWorker(t)
	return b, w.run(t, b, open(t, b, callout.Terms{}))
}

func (w *world) run(t *testing.T, b *bus.Bus, ids *callout.Identities) (stop func()) {
	t.Helper()
	worker, err := callout.New(callout.Config{Bus: b, Identities: ids, Issuer: w.seed, XKey: w.xkey, TTL: w.ttl, Resolver: w.names})
	if err != nil {
		t.Fatal(err)
	}
	return bustest.Serve(t, worker)
}

// ask asks the API as the operator.
func ask[T any](t *testing.T, b *bus.Bus, verb string, req any) (T, error) {
	t.Helper()
	return askAs[T](t, b, "operator", verb, req)
}

func askAs[T any](t *testing.T, b *bus.Bus, from subjects.AgentID, verb string, req any) (T, error) {
	t.Helper()
	m, err := b.Request(t.Context(), subjects.API(from, "identity", verb), fleet.MustEncode(req), nil)
	if err != nil {
		t.Fatal(err)
	}
	return fleet.DecodeReply[T](m.Data)
}

// add adds an identity and returns its key.
func (w *world) add(t *testing.T, q identity.Add) identity.Key {
	t.Helper()
	r, err := ask[identity.Issued](t, w.worker, "add", &q)
	if err != nil {
		t.Fatal(err)
	}
	k, err := identity.ParseKey(r.Key)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// prove makes a proof for a connection at a time.
func prove(id subjects.AgentID, k identity.Key, at time.Time) *identity.Proof {
	p := &identity.Proof{AgentID: id, Timestamp: identity.Timestamp(at), Nonce: rand.Text()}
	p.Sign(k, identity.Connect, nil)
	return p
}

// dial connects with a proof, once.
func (w *world) dial(t *testing.T, p *identity.Proof) (*bus.Bus, error) {
	t.Helper()
	return w.dialWith(t, string(p.AgentID), p.Password())
}

func (w *world) dialWith(t *testing.T, user, password string) (*bus.Bus, error) {
	t.Helper()
	c := w.server.Config()
	c.User, c.Password, c.InboxPrefix = user, password, subjects.InboxPrefix(subjects.AgentID(user))
	if user == "" {
		c.Password, c.Token = "", password
	}
	b, err := bus.Connect(t.Context(), c)
	if err == nil {
		t.Cleanup(b.Close)
	}
	return b, err
}

// refused wants a connection to be refused, and the audit to have heard why.
func (w *world) refused(t *testing.T, p *identity.Proof, code subjects.Code) {
	t.Helper()
	if _, err := w.dial(t, p); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("connect = %v, want ErrDenied", err)
		return
	}
	w.audited(t, p.AgentID, handshake.EventAuthRefused, code)
}

// audited waits for a line about who with a code.
func (w *world) audited(t *testing.T, who subjects.AgentID, event string, code subjects.Code) {
	t.Helper()
	bustest.Eventually(t, "an audit line "+event+" "+string(code)+" of "+string(who), func() bool {
		msgs, _, err := w.worker.History(t.Context(), subjects.StreamLog, subjects.Log("", who), 1, 1000)
		if err != nil {
			return false
		}
		for _, m := range msgs {
			l, err := handshake.DecodeLogLine(m.Data)
			if err != nil {
				t.Fatal(err)
			}
			if l.EventType != event {
				continue
			}
			d, err := fleet.DecodeRequest[struct {
				Code subjects.Code `json:"code"`
			}](l.Data)
			if err == nil && d.Code == code {
				return true
			}
		}
		return false
	})
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
