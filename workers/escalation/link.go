package escalation

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
)

// LinkPath is where Handler answers, before the token.
const LinkPath = "/escalation/"

// skew is how far the clocks of replicas may be apart.
const skew = 5 * time.Minute

// claims is what a link says. It is for one answer: with the alert's first one
// every link of that alert has been used.
type claims struct {
	Alert   string `json:"a"`
	Call    int    `json:"n"`
	Contact string `json:"c"`
	Issued  int64  `json:"i"`
	Expires int64  `json:"e"`
}

func (c claims) by() string { return c.Contact + " by link" }

// makeKey finds the key that signs links, or makes it: all replicas have one.
func (w *Worker) makeKey(ctx context.Context) error {
	if len(w.cfg.Key) > 0 {
		w.key.Store(&w.cfg.Key)
		return nil
	}
	fresh := make([]byte, 32)
	if _, err := rand.Read(fresh); err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	if _, err := w.kv.Create(ctx, secretKey, fresh, 0); err != nil && !errors.Is(err, bus.ErrExists) {
		return fmt.Errorf("keep the key of links: %w", err)
	}
	crash.Point("after_link_key")
	e, err := w.kv.Get(ctx, secretKey)
	if err != nil {
		return fmt.Errorf("read the key of links: %w", err)
	}
	if len(e.Value) != len(fresh) { // nobody of us made it, and links of before do not count any more
		w.kv.Skip(e, errors.New("not the key that signs links"))
		if _, err := w.kv.Update(ctx, secretKey, fresh, e.Revision); err != nil && !errors.Is(err, bus.ErrConflict) {
			return fmt.Errorf("keep the key of links: %w", err)
		}
		return w.makeKey(ctx)
	}
	w.key.Store(&e.Value)
	return nil
}

func (w *Worker) mac(payload string) []byte {
	h := hmac.New(sha256.New, *w.key.Load())
	h.Write([]byte("parley escalation link 1\n" + payload))
	return h.Sum(nil)
}

// sign makes the token of a link.
func (w *Worker) sign(c claims) string {
	payload := base64.RawURLEncoding.EncodeToString(fleet.MustEncode(c))
	return payload + "." + base64.RawURLEncoding.EncodeToString(w.mac(payload))
}

// check reads a token: auth_failed if it is not ours, or too old.
func (w *Worker) check(token string, now time.Time) (claims, error) {
	var c claims
	if w.key.Load() == nil {
		return c, subjects.Errorf(subjects.CodeUnavailable, "this worker is starting and cannot read links yet").
			WithRemedy("try the link again").RetryAfter(time.Second)
	}
	forged := subjects.Errorf(subjects.CodeAuthFailed, "this link is not one that we made").WithRemedy("use the newest link as it was sent")
	payload, signature, _ := strings.Cut(token, ".")
	mac, err := base64.RawURLEncoding.Strict().DecodeString(signature)
	if err != nil || !hmac.Equal(mac, w.mac(payload)) {
		return c, forged
	}
	data, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil || json.Unmarshal(data, &c) != nil {
		return c, forged
	}
	switch {
	case now.Add(-skew).Unix() > c.Expires:
		return c, subjects.Errorf(subjects.CodeAuthFailed, "this link has expired at %s", time.Unix(c.Expires, 0).UTC().Format(time.RFC3339)).
			WithRemedy("use a newer link, or parley escalation ls")
	case now.Add(skew).Unix() < c.Issued:
		return c, subjects.Errorf(subjects.CodeAuthFailed, "this link is from the future: a clock is wrong by more than %s", skew)
	}
	return c, nil
}
