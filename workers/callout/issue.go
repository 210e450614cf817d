package callout

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/identity"
	"parley/workers"
)

// tries is how often a change is tried while others change the same.
const tries = 20

// Issue gives an identity its only key; it is added if it is not there. It is
// how the first operator gets in.
func (i *Identities) Issue(ctx context.Context, id subjects.AgentID, role string) (identity.Key, error) {
	now := i.bus.Now()
	k, sealed := i.key(id, nil, now)
	_, err := i.change(ctx, id, id, "issue", func(r *identity.Record, exists bool) error {
		if !exists {
			r.AgentID, r.Role, r.Signatures, r.Created = id, role, identity.V1, now
		}
		r.Add(sealed, 0)
		r.Revoked, r.By = nil, id
		return nil
	})
	return k, err
}

// change stores what f makes of a record, the zero one if there is none, and
// with it what by has done there.
func (i *Identities) change(ctx context.Context, id, by subjects.AgentID, verb string, f func(r *identity.Record, exists bool) error) (*identity.Record, error) {
	key := recordKey + string(id)
	for range tries {
		var r identity.Record
		e, err := i.kv.Get(ctx, key)
		exists := err == nil
		switch {
		case err != nil && !errors.Is(err, bus.ErrNotFound):
			return nil, unavailable(err)
		case exists:
			old, derr := fleet.DecodeStored[identity.Record](e.Value)
			if derr != nil {
				return nil, derr
			}
			r = *old
		}
		if err := f(&r, exists); err != nil {
			return nil, err
		}
		var rev uint64
		kv := i.kv.Telling(told(by, verb, &r))
		if exists {
			rev, err = kv.Update(ctx, key, fleet.MustEncode(&r), e.Revision)
		} else {
			rev, err = kv.Create(ctx, key, fleet.MustEncode(&r), 0)
		}
		switch {
		case err == nil:
			crash.Point("after_identity")
			i.take(bus.Entry{Key: key, Value: fleet.MustEncode(&r), Revision: rev})
			i.log.Info("identity changed", slog.String("agent_id", string(r.AgentID)), slog.String("verb", verb), slog.String("by", string(by)))
			return &r, nil
		case !errors.Is(err, bus.ErrConflict) && !errors.Is(err, bus.ErrExists):
			return nil, unavailable(err)
		}
	}
	return nil, unavailable(bus.ErrConflict)
}

// told is what the audit is told of a change.
func told(by subjects.AgentID, verb string, r *identity.Record) []byte {
	keys := make([]string, len(r.Keys))
	for n := range r.Keys {
		keys[n] = r.Keys[n].ID
	}
	return workers.Line("", by, handshake.EventIdentity, struct {
		AgentID subjects.AgentID `json:"agent_id"`
		Verb    string           `json:"verb"`
		Role    string           `json:"role"`
		Keys    []string         `json:"key_ids"`
	}{r.AgentID, verb, r.Role, keys})
}

// key makes a key, of a secret that is there already or of a new one.
func (i *Identities) key(id subjects.AgentID, secret []byte, now time.Time) (identity.Key, identity.Sealed) {
	name := make([]byte, 4)
	_, _ = rand.Read(name) // never fails
	if secret == nil {
		secret = make([]byte, identity.MinSecret)
		_, _ = rand.Read(secret)
	}
	k := identity.Key{ID: "k" + hex.EncodeToString(name), Secret: secret}
	return k, identity.Sealed{ID: k.ID, Secret: i.seal.close(id, k.ID, secret), Created: now}
}
