package callout

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/identity"
)

// sealKey is where the key that seals is kept, unless somebody gives one.
// Nobody but workers reaches the store.
const sealKey = "identity-seal"

// MinSealKey is the shortest key that seals, in bytes.
const MinSealKey = 32

// errSealed is what is known of a secret that this process cannot open.
var errSealed = errors.New("the secret cannot be opened: it was sealed with another key (PARLEY_SEAL_KEY)")

// seal keeps secrets from whoever reads the store.
type seal struct {
	aead    cipher.AEAD
	workers identity.Key // that workers sign with
}

// newSeal makes the seal of a key; "" is the one that all workers share.
func newSeal(ctx context.Context, b *bus.Bus, key string) (*seal, error) {
	if key == "" {
		var err error
		if key, err = sharedKey(ctx, b); err != nil {
			return nil, fmt.Errorf("read the key that seals: %w", err)
		}
	}
	if len(key) < MinSealKey {
		return nil, fmt.Errorf("the key that seals has %d bytes, fewer than %d", len(key), MinSealKey)
	}
	derive := func(purpose string) []byte {
		k, err := hkdf.Key(sha256.New, []byte(key), nil, purpose, 32)
		if err != nil {
			panic("callout: " + err.Error()) // 32 bytes are never too many
		}
		return k
	}
	block, err := aes.NewCipher(derive("parley/identity-seal/v1"))
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &seal{aead: aead, workers: identity.Key{ID: identity.WorkersKey, Secret: derive("parley/workers-key/v1")}}, nil
}

// sharedKey reads the key that is kept, or makes it.
func sharedKey(ctx context.Context, b *bus.Bus) (string, error) {
	kv, err := b.KV(ctx, subjects.BucketWorkers)
	if err != nil {
		return "", err
	}
	fresh := rand.Text() + rand.Text()
	switch _, err = kv.Create(ctx, sealKey, []byte(fresh), 0); {
	case err == nil:
		crash.Point("after_seal_key")
		return fresh, nil
	case !errors.Is(err, bus.ErrExists):
		return "", err
	}
	e, err := kv.Get(ctx, sealKey)
	if err == nil && len(e.Value) < MinSealKey { // what it has sealed cannot be opened any more
		kv.Skip(e, errors.New("no key that seals; identities need new keys: parley identity rotate"))
		_, err = kv.Update(ctx, sealKey, []byte(fresh), e.Revision)
		e.Value = []byte(fresh)
		if errors.Is(err, bus.ErrConflict) { // another process was faster
			e, err = kv.Get(ctx, sealKey)
		}
	}
	return string(e.Value), err
}

// place is what a sealed secret belongs to, and nothing else opens.
func place(id subjects.AgentID, key string) []byte { return []byte(string(id) + "." + key) }

func (s *seal) close(id subjects.AgentID, key string, secret []byte) []byte {
	nonce := make([]byte, s.aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return s.aead.Seal(nonce, nonce, secret, place(id, key))
}

func (s *seal) open(id subjects.AgentID, k *identity.Sealed) (identity.Key, error) {
	n := s.aead.NonceSize()
	if len(k.Secret) < n {
		return identity.Key{}, errSealed
	}
	secret, err := s.aead.Open(nil, k.Secret[:n], k.Secret[n:], place(id, k.ID))
	if err != nil {
		return identity.Key{}, errSealed
	}
	return identity.Key{ID: k.ID, Secret: secret}, nil
}
