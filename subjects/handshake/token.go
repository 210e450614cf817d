package handshake

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
)

// How long tokens, sessions and keys last.
const (
	TokenLife   = time.Hour
	SessionLife = 24 * time.Hour // after the last renewal
)

// MinSecret is the shortest secret of a key, in bytes.
const MinSecret = 32

// Key signs tokens. Its id tells it from those before and after it.
type Key struct {
	ID      string    `json:"id"`
	Secret  []byte    `json:"secret"`
	Created time.Time `json:"created"`
}

// Keys are the keys that count, the newest first: it signs, all of them verify.
type Keys []Key

// Canonical encodes fields so that different fields never give the same bytes:
// each is preceded by its length (8 bytes, big endian).
func Canonical(fields ...string) []byte {
	n := 0
	for _, f := range fields {
		n += 8 + len(f)
	}
	b := make([]byte, 0, n)
	for _, f := range fields {
		b = binary.BigEndian.AppendUint64(b, uint64(len(f)))
		b = append(b, f...)
	}
	return b
}

const (
	tokenScheme  = "parley1"
	tokenPurpose = "parley/session-token/v1" //nolint:gosec // says what is signed
)

// NewToken is a token for session id that ends at expires (whole seconds), by
// the newest of keys. It panics without a key.
//
//	parley1.<key id>.<expires, Unix seconds>.<HMAC-SHA256, base64url>
//
// The HMAC covers Canonical("parley/session-token/v1", key id, session id,
// expires as written).
func NewToken(keys Keys, id subjects.SessionID, expires time.Time) string {
	k := keys[0]
	at := strconv.FormatInt(expires.Unix(), 10)
	return strings.Join([]string{tokenScheme, k.ID, at, tokenMAC(k, id, at)}, ".")
}

func tokenMAC(k Key, id subjects.SessionID, at string) string {
	h := hmac.New(sha256.New, k.Secret)
	_, _ = h.Write(Canonical(tokenPurpose, k.ID, string(id), at))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// CheckToken says whether token is one of session id at now: nil, auth_failed
// for a token that is not (of that session), session_expired for one that is
// over. It takes as long for a wrong token as for one of an unknown key, and
// its error never shows the token.
func CheckToken(keys Keys, id subjects.SessionID, token string, now time.Time) error {
	parts := strings.Split(token, ".")
	if len(parts) != 4 {
		parts = make([]string, 4)
	}
	k, known := Key{Secret: make([]byte, MinSecret)}, false
	if i := slices.IndexFunc(keys, func(k Key) bool { return k.ID == parts[1] }); i >= 0 {
		k, known = keys[i], true
	}
	same := hmac.Equal([]byte(tokenMAC(k, id, parts[2])), []byte(parts[3]))
	at, err := strconv.ParseInt(parts[2], 10, 64)
	if !same || !known || parts[0] != tokenScheme || err != nil {
		return subjects.Errorf(subjects.CodeAuthFailed, "the token is not one of session %s", id).At("/token").
			WithRemedy("use the token that session create or update answered")
	}
	if now.Unix() >= at {
		return subjects.Errorf(subjects.CodeSessionExpired, "the token of session %s is over since %s", id, time.Unix(at, 0).UTC().Format(time.RFC3339)).
			At("/token").WithRemedy("have the session's owner renew it: parley session update " + string(id))
	}
	return nil
}

// TokenKey is the id of the key that token claims to be signed with.
func TokenKey(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 4 {
		return ""
	}
	return parts[1]
}
