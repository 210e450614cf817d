package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/identity"
)

// byIdentity reports whether whoever validates is let in by an identity. Then
// the simulated agents need some, too, and proofs can be tried.
func (v *validation) byIdentity() bool {
	return v.app.conf.Identity != "" || v.app.conf.IdentityKey != ""
}

// join connects as somebody of this validation.
func (v *validation) join(ctx context.Context, id subjects.AgentID) (*bus.Bus, error) {
	cfg := v.app.busConfig("parley validate "+string(id), id)
	cfg.Log = v.app.clientLog()
	var me *myself
	if v.byIdentity() {
		key, err := v.key(ctx, identity.Add{AgentID: id})
		if err != nil {
			return nil, err
		}
		me = &myself{id, key}
	}
	if err := me.use(&cfg, id); err != nil {
		return nil, err
	}
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	v.buses = append(v.buses, b)
	me.sign(b)
	return b, nil
}

// key gives somebody an identity for as long as the validation takes, or a new
// key for the one that an earlier validation has revoked.
func (v *validation) key(ctx context.Context, q identity.Add) (identity.Key, error) {
	r, err := call[identity.Issued](ctx, v.c, "identity", "add", &q)
	if subjects.CodeOf(err) == subjects.CodeIdempotencyConflict {
		r, err = call[identity.Issued](ctx, v.c, "identity", "rotate", &identity.Rotate{AgentID: q.AgentID})
	}
	if err != nil {
		return identity.Key{}, err
	}
	v.issued = append(v.issued, q.AgentID)
	return identity.ParseKey(r.value.Key)
}

// proofs are what the checks of proofs have in common.
type proofs struct {
	id   subjects.AgentID
	key  identity.Key
	used *identity.Proof // for a connection, which was let in
	bus  *bus.Bus        // by the identity
}

// prove is a proof of the checks' own identity for a connection.
func (p *proofs) prove(key identity.Key, at time.Time) *identity.Proof {
	proof := &identity.Proof{AgentID: p.id, Timestamp: identity.Timestamp(at), Nonce: rand.Text()}
	proof.Sign(key, identity.Connect, nil)
	return proof
}

// enter connects by a proof, once.
func (v *validation) enter(ctx context.Context, p *identity.Proof) (*bus.Bus, error) {
	cfg := v.app.busConfig("parley validate proof", p.AgentID)
	cfg.User, cfg.Password, cfg.Log = string(p.AgentID), p.Password(), v.app.clientLog()
	b, err := bus.Connect(ctx, cfg)
	if err == nil {
		v.buses = append(v.buses, b)
	}
	return b, err
}

// message sends a request with a proof as its headers, and says how it was
// refused.
func (v *validation) message(ctx context.Context, p *identity.Proof, body []byte) error {
	var h bus.Header
	if p != nil {
		h = bus.Header{
			subjects.HeaderAgent: {string(p.AgentID)}, subjects.HeaderTimestamp: {p.Timestamp},
			subjects.HeaderNonce: {p.Nonce}, subjects.HeaderSignature: {p.Signature},
		}
	}
	m, err := v.proofs.bus.Request(ctx, v.listing(), body, h)
	if err != nil {
		return err
	}
	_, err = fleet.DecodeReply[handshake.ListReply](m.Data)
	return err
}

// listing is what the messages of the checks ask for.
func (v *validation) listing() string { return subjects.API(v.proofs.id, "session", "list") }

// proofChecks try identities, where there are some, on the door and on messages.
func proofChecks() []check {
	const group = "authentication"
	var all []check
	add := func(name string, run func(ctx context.Context, v *validation) (string, error)) {
		all = append(all, check{group, name, func(ctx context.Context, v *validation) (string, error) {
			if !v.byIdentity() {
				return "", notHere("it is checked where you come by an identity: --identity")
			}
			return run(ctx, v)
		}})
	}
	add("a good proof is let in", func(ctx context.Context, v *validation) (string, error) {
		p := &v.proofs
		p.id = subjects.AgentID("validate-proof-" + v.id)
		var err error
		if p.key, err = v.key(ctx, identity.Add{AgentID: p.id}); err != nil {
			return "", err
		}
		p.used = p.prove(p.key, time.Now())
		p.bus, err = v.enter(ctx, p.used)
		return "let in", err
	})
	refused := func(name string, proof func(v *validation) *identity.Proof) {
		add(name, func(ctx context.Context, v *validation) (string, error) {
			if v.proofs.bus == nil {
				return "", errors.New("nobody was let in")
			}
			_, err := v.enter(ctx, proof(v))
			return refusedWith(err)
		})
	}
	refused("a bad proof is refused", func(v *validation) *identity.Proof {
		return v.proofs.prove(identity.Key{ID: v.proofs.key.ID, Secret: make([]byte, 32)}, time.Now())
	})
	refused("a replayed proof is refused", func(v *validation) *identity.Proof { return v.proofs.used })
	refused("an expired proof is refused", func(v *validation) *identity.Proof {
		return v.proofs.prove(v.proofs.key, time.Now().Add(-identity.Window-time.Minute))
	})
	refused("a proof in the form v0 is refused", func(v *validation) *identity.Proof {
		p := &identity.Proof{AgentID: v.proofs.id, Timestamp: identity.Timestamp(time.Now())}
		p.SignPlain(v.proofs.key.Secret)
		return p
	})
	add("a wrong host is refused", func(ctx context.Context, v *validation) (string, error) {
		elsewhere := proofs{id: subjects.AgentID("validate-elsewhere-" + v.id)}
		key, err := v.key(ctx, identity.Add{AgentID: elsewhere.id, AllowedHosts: []string{"192.0.2.1"}}) // nobody's address
		if err != nil {
			return "", err
		}
		_, err = v.enter(ctx, elsewhere.prove(key, time.Now()))
		return refusedWith(err)
	})
	return append(all, check{group, "messages are judged by their signatures", signedMessages})
}

// signedMessages sends one that is signed, the same again, one that was changed,
// one that is old and one that is not signed.
func signedMessages(ctx context.Context, v *validation) (string, error) {
	if !v.byIdentity() || v.proofs.bus == nil {
		return "", notHere("it is checked where you come by an identity: --identity")
	}
	body := []byte("{}")
	if err := v.message(ctx, nil, body); err == nil {
		return "", notHere("this fleet takes messages without signatures: PARLEY_REQUIRE_SIGNATURES")
	} else if _, err := refusedWith(err, subjects.CodeAuthFailed); err != nil {
		return "", err
	}
	sign := func(at time.Time) *identity.Proof {
		p := v.proofs.prove(v.proofs.key, at)
		p.Sign(v.proofs.key, v.listing(), body)
		return p
	}
	good := sign(time.Now())
	if err := v.message(ctx, good, body); err != nil {
		return "", err
	}
	for _, bad := range []struct {
		what  string
		proof *identity.Proof
		body  string
	}{
		{"replayed", good, "{}"},
		{"changed", sign(time.Now()), "{ }"},
		{"expired", sign(time.Now().Add(-identity.Window - time.Minute)), "{}"},
	} {
		if _, err := refusedWith(v.message(ctx, bad.proof, []byte(bad.body)), subjects.CodeAuthFailed); err != nil {
			return "", errors.Join(errors.New(bad.what), err)
		}
	}
	return "not signed, replayed, changed, expired: refused", nil
}
