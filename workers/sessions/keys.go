package sessions

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/handshake"
)

// keysKey is where the keys are kept. Nobody but workers reaches the store.
const keysKey = "session-keys"

const (
	keyLife    = 24 * time.Hour // a key signs that long
	reloadPace = time.Second    // between two looks for a key that is not known
	// A new key is tried to be stored so long, and again after the pause: offers
	// wait for it, and for 2 s in all.
	keyTry   = 500 * time.Millisecond
	keyPause = 10 * time.Second
)

// keyring holds the keys that all sessions workers share. A key that is a day
// old is followed by a new one, and counts until its last token is over.
type keyring struct {
	kv   *bus.KV
	now  func() time.Time // by the servers' clocks, which all workers share
	turn chan struct{}    // capacity 1: the one who reads or writes what is stored

	looked time.Time // when an unknown key was looked for; owned by who has the turn

	mu     sync.Mutex // guards all below, and is held for no store
	keys   handshake.Keys
	rev    uint64
	failed time.Time // when the last new key could not be stored
}

func newKeyring(kv *bus.KV, now func() time.Time) *keyring {
	return &keyring{kv: kv, now: now, turn: make(chan struct{}, 1)}
}

// known are the keys as far as they are known here, and their revision.
func (r *keyring) known() (handshake.Keys, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys, r.rev
}

func (r *keyring) learn(keys handshake.Keys, rev uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys, r.rev = keys, rev
}

// take waits for the turn.
func (r *keyring) take(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *keyring) release() { <-r.turn }

// load reads the keys, and makes the first one.
func (r *keyring) load(ctx context.Context) error {
	if err := r.take(ctx); err != nil {
		return err
	}
	defer r.release()
	return r.loadInTurn(ctx)
}

func (r *keyring) loadInTurn(ctx context.Context) error {
	for {
		e, err := r.kv.Get(ctx, keysKey)
		switch {
		case errors.Is(err, bus.ErrNotFound):
			err = r.write(ctx, handshake.Keys{r.newKey()}, 0)
		case err == nil:
			var keys handshake.Keys
			if bad := json.Unmarshal(e.Value, &keys); bad == nil && sound(keys) {
				r.learn(keys, e.Revision)
				return nil
			}
			// Its tokens count no longer; a new one is a renewal away.
			r.kv.Skip(e, errors.New("not the keys that sign the tokens of sessions"))
			err = r.write(ctx, handshake.Keys{r.newKey()}, e.Revision)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, bus.ErrExists) && !errors.Is(err, bus.ErrConflict) {
			return fmt.Errorf("read the session keys: %w", err)
		}
	}
}

// sound reports whether keys are what a worker writes.
func sound(keys handshake.Keys) bool {
	return len(keys) > 0 && !slices.ContainsFunc(keys, func(k handshake.Key) bool {
		return k.ID == "" || len(k.Secret) < handshake.MinSecret || k.Created.IsZero()
	})
}

// write stores keys after revision rev.
func (r *keyring) write(ctx context.Context, keys handshake.Keys, rev uint64) (err error) {
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
		crash.Point("after_session_key")
		r.learn(keys, rev)
	}
	return err
}

func (r *keyring) newKey() handshake.Key {
	secret, id := make([]byte, handshake.MinSecret), make([]byte, 4)
	_, _ = rand.Read(secret) // never fails
	_, _ = rand.Read(id)
	return handshake.Key{ID: hex.EncodeToString(id), Secret: secret, Created: r.now()}
}

// token makes a token, with a new key when the last one is old. While none can
// be stored the old one signs on, until its tokens would outlast it.
func (r *keyring) token(ctx context.Context, id subjects.SessionID, expires time.Time) (string, error) {
	keys, _ := r.known()
	age := r.now().Sub(keys[0].Created)
	must := age >= keyLife+handshake.TokenLife
	if age >= keyLife && (must || r.rested()) {
		next, err := r.rotate(ctx)
		switch {
		case err == nil:
			keys = next
		case must:
			return "", fmt.Errorf("change the session key: %w", err)
		default:
			r.rest()
		}
	}
	return handshake.NewToken(keys, id, expires), nil
}

// rested reports whether a new key may be tried to be stored.
func (r *keyring) rested() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed.IsZero() || r.now().Sub(r.failed) >= keyPause
}

// rest notes that a new key could not be stored.
func (r *keyring) rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.now()
}

// rotate puts a new key before the old ones, unless another worker was faster.
func (r *keyring) rotate(ctx context.Context) (handshake.Keys, error) {
	ctx, cancel := context.WithTimeout(ctx, keyTry)
	defer cancel()
	if err := r.take(ctx); err != nil {
		return nil, err
	}
	defer r.release()
	for {
		keys, rev := r.known()
		now := r.now()
		if now.Sub(keys[0].Created) < keyLife {
			return keys, nil
		}
		next := handshake.Keys{r.newKey()}
		for _, k := range keys {
			if now.Sub(k.Created) < keyLife+2*handshake.TokenLife {
				next = append(next, k)
			}
		}
		err := r.write(ctx, next, rev)
		if errors.Is(err, bus.ErrConflict) {
			err = r.loadInTurn(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
}

// check checks a token; one of a key that is not known may be of a new one.
func (r *keyring) check(ctx context.Context, id subjects.SessionID, token string, now time.Time) error {
	unknown := func() (bool, error) {
		keys, _ := r.known()
		err := handshake.CheckToken(keys, id, token, now)
		is := func(k handshake.Key) bool { return k.ID == handshake.TokenKey(token) }
		return subjects.CodeOf(err) == subjects.CodeAuthFailed && !slices.ContainsFunc(keys, is), err
	}
	if another, err := unknown(); !another {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, keyTry)
	defer cancel()
	if err := r.take(ctx); err != nil {
		return unavailable(err)
	}
	defer r.release()
	another, err := unknown() // it may have come meanwhile
	if !another || now.Sub(r.looked) < reloadPace {
		return err
	}
	r.looked = now
	if err := r.loadInTurn(ctx); err != nil {
		return err
	}
	_, err = unknown()
	return err
}
