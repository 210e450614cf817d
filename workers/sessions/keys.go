package sessions

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/handshake"
)

// keysKey is where the keys are kept. Nobody but workers reaches the store.
const keysKey = "session-keys"

const (
	keyLife    = 24 * time.Hour // a key signs that long
	reloadPace = time.Second    // between two looks for a key that is not known
)

// keyring holds the keys that all sessions workers share. A key that is a day
// old is followed by a new one, and counts until its last token is over.
type keyring struct {
	kv  *bus.KV
	now func() time.Time // by the servers' clocks, which all workers share

	mu     sync.Mutex // guards all below
	keys   handshake.Keys
	rev    uint64
	looked time.Time
}

// load reads the keys, and makes the first one.
func (r *keyring) load(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loadLocked(ctx)
}

func (r *keyring) loadLocked(ctx context.Context) error {
	for {
		e, err := r.kv.Get(ctx, keysKey)
		switch {
		case errors.Is(err, bus.ErrNotFound):
			err = r.writeLocked(ctx, handshake.Keys{r.newKey()}, 0)
		case err == nil:
			var keys handshake.Keys
			if err := json.Unmarshal(e.Value, &keys); err != nil || len(keys) == 0 {
				return fmt.Errorf("read the session keys: %w", errors.Join(err, errors.New("they are not what a worker writes")))
			}
			r.keys, r.rev = keys, e.Revision
			return nil
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, bus.ErrExists) && !errors.Is(err, bus.ErrConflict) {
			return fmt.Errorf("read the session keys: %w", err)
		}
	}
}

// writeLocked stores keys after revision rev.
func (r *keyring) writeLocked(ctx context.Context, keys handshake.Keys, rev uint64) (err error) {
	data, err := json.Marshal(keys) //nolint:gosec // only workers can read where it goes
	if err != nil {
		return err
	}
	if rev == 0 {
		rev, err = r.kv.Create(ctx, keysKey, data, 0)
	} else {
		rev, err = r.kv.Update(ctx, keysKey, data, rev)
	}
	if err == nil {
		r.keys, r.rev = keys, rev
	}
	return err
}

func (r *keyring) newKey() handshake.Key {
	secret, id := make([]byte, handshake.MinSecret), make([]byte, 4)
	_, _ = rand.Read(secret) // never fails
	_, _ = rand.Read(id)
	return handshake.Key{ID: hex.EncodeToString(id), Secret: secret, Created: r.now()}
}

// token makes a token, with a new key when the last one is old.
func (r *keyring) token(ctx context.Context, id subjects.SessionID, expires time.Time) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for now := r.now(); now.Sub(r.keys[0].Created) >= keyLife; {
		next := handshake.Keys{r.newKey()}
		for _, k := range r.keys {
			if now.Sub(k.Created) < keyLife+2*handshake.TokenLife {
				next = append(next, k)
			}
		}
		err := r.writeLocked(ctx, next, r.rev)
		if errors.Is(err, bus.ErrConflict) {
			err = r.loadLocked(ctx) // another worker was faster
		}
		if err != nil {
			return "", fmt.Errorf("change the session key: %w", err)
		}
	}
	return handshake.NewToken(r.keys, id, expires), nil
}

// check checks a token; one of a key that is not known may be of a new one.
func (r *keyring) check(ctx context.Context, id subjects.SessionID, token string, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := handshake.CheckToken(r.keys, id, token, now)
	if subjects.CodeOf(err) != subjects.CodeAuthFailed || now.Sub(r.looked) < reloadPace {
		return err
	}
	for _, k := range r.keys {
		if k.ID == handshake.TokenKey(token) {
			return err
		}
	}
	r.looked = now
	if lerr := r.loadLocked(ctx); lerr != nil {
		return lerr
	}
	return handshake.CheckToken(r.keys, id, token, now)
}
