package identity

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

const (
	// Window is how far a proof's time may be from the fleet's.
	Window = 5 * time.Minute
	// Connect is the subject that the proof of a connection is for.
	Connect = "$PARLEY.connect"
	// MinSecret is the shortest secret of a key, in bytes.
	MinSecret = 32
	// MaxKeys is how many keys of an identity count at a time.
	MaxKeys = 2
	// WorkersKey is the id of the key that the fleet's workers share. They
	// speak for others: what somebody has asked for at one of their doors.
	WorkersKey = "workers"
)

// Forms of signatures, and what a record may ask for.
const (
	V0 = "v0"
	V1 = "v1"
)

const (
	purpose  = "parley/agent-msg/v1"
	maxProof = 8 << 10 // bytes of a proof as a password
)

// Key signs and verifies. It never shows its secret.
type Key struct {
	ID     string
	Secret []byte
}

// String names the key.
func (k Key) String() string { return k.ID }

// GoString names the key.
func (k Key) GoString() string { return "identity.Key(" + k.ID + ")" }

// MarshalText names the key, in logs and wherever else it is written.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.ID), nil }

// Word is the key with its secret, <id>.<base64url of the secret>, for files and
// variables that are its owner's alone.
func (k Key) Word() string { return k.ID + "." + base64.RawURLEncoding.EncodeToString(k.Secret) }

// ParseKey reads a Word. Its error never shows the secret.
func ParseKey(text string) (Key, error) {
	id, secret, _ := strings.Cut(strings.TrimSpace(text), ".")
	b, err := base64.RawURLEncoding.DecodeString(secret)
	if !subjects.ValidToken(id) || err != nil || len(b) < MinSecret {
		return Key{}, subjects.Errorf(subjects.CodeInvalidMessage, "the key is not <key id>.<secret, base64url, %d bytes or more>", MinSecret).
			WithRemedy("use the one that parley identity add or rotate gave")
	}
	return Key{ID: id, Secret: b}, nil
}

// Proof says who speaks, and proves it. As JSON it is the identity of the
// session protocol, with a time and a nonce.
type Proof struct {
	AgentID      subjects.AgentID   `json:"agent_id"`
	SessionID    subjects.SessionID `json:"session_id,omitempty"`
	Timestamp    string             `json:"timestamp"` // Unix seconds, ten digits, or 2006-01-02T15:04:05Z
	Nonce        string             `json:"nonce,omitempty"`
	Signature    string             `json:"signature"`
	AgentType    string             `json:"agent_type,omitempty"`
	Capabilities []string           `json:"capabilities,omitzero"`
	AllowedHosts []string           `json:"allowed_hosts,omitzero"`
	Version      string             `json:"version,omitempty"`
	Unknown      fleet.Unknown      `json:",unknown"`
}

// Timestamp is a proof's time as it is written.
func Timestamp(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// Sign proves with key that p is about subject and body. p needs a nonce that
// was never used.
func (p *Proof) Sign(k Key, subject string, body []byte) {
	p.Signature = strings.Join([]string{V1, k.ID, base64.RawURLEncoding.EncodeToString(mac1(k.Secret, p, k.ID, subject, body))}, ".")
}

// SignPlain is Sign in the protocol's own form, which covers less (see V0).
func (p *Proof) SignPlain(secret []byte) { p.Signature = hex.EncodeToString(mac0(secret, p)) }

// mac0 is HMAC-SHA256(agent_id + session_id + timestamp, secret).
func mac0(secret []byte, p *Proof) []byte {
	h := hmac.New(sha256.New, secret)
	_, _ = h.Write([]byte(string(p.AgentID) + string(p.SessionID) + p.Timestamp))
	return h.Sum(nil)
}

func mac1(secret []byte, p *Proof, keyID, subject string, body []byte) []byte {
	key, err := hkdf.Key(sha256.New, secret, nil, purpose, sha256.Size)
	if err != nil {
		panic("identity: " + err.Error()) // 32 bytes are never too many
	}
	sum := sha256.Sum256(body)
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(handshake.Canonical(purpose, string(p.AgentID), string(p.SessionID), p.Timestamp, p.Nonce, subject, keyID, hex.EncodeToString(sum[:])))
	return h.Sum(nil)
}

// Form is V1 or V0, by what the signature looks like.
func (p *Proof) Form() string {
	if strings.HasPrefix(p.Signature, V1+".") {
		return V1
	}
	return V0
}

// KeyID is the key that p names, "" in the form v0.
func (p *Proof) KeyID() string {
	if p.Form() == V0 {
		return ""
	}
	id, _, _ := strings.Cut(p.Signature[len(V1)+1:], ".")
	return id
}

// Once is what must not come twice: the agent and the nonce, or in the form v0,
// which covers none, the signature.
func (p *Proof) Once() string {
	if p.Form() == V0 {
		return string(p.AgentID) + ".v0-" + p.Signature
	}
	return string(p.AgentID) + "." + p.Nonce
}

// Fingerprint tells one message from another.
func Fingerprint(subject string, body []byte) string {
	sum := sha256.Sum256(handshake.Canonical(subject, string(body)))
	return hex.EncodeToString(sum[:16])
}

// Password is p as the password or token of a connection: its JSON in
// base64url, so that it fits wherever a word does.
func (p *Proof) Password() string {
	return base64.RawURLEncoding.EncodeToString(fleet.MustEncode(p))
}

// ParsePassword reads a Password, or the JSON itself.
func ParsePassword(text string) (*Proof, error) {
	data := []byte(text)
	if len(text) <= maxProof && !strings.HasPrefix(text, "{") {
		if b, err := base64.RawURLEncoding.DecodeString(text); err == nil {
			data = b
		}
	}
	if len(data) > maxProof || len(data) == 0 || data[0] != '{' {
		return nil, subjects.Errorf(subjects.CodeAuthFailed, "the password or token is no identity").
			WithRemedy("use what parley identity password prints, fresh for each connection")
	}
	return DecodeProof(data)
}

// DecodeProof reads a proof and refuses every one that could be read in two
// ways.
func DecodeProof(data []byte) (*Proof, error) {
	p, err := fleet.DecodeRequest[Proof](data)
	if err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	return &p, nil
}

var (
	plainAgent  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	unixSeconds = regexp.MustCompile(`^[0-9]{10}$`)
	nonceForm   = regexp.MustCompile(`^[A-Za-z0-9_-]{16,64}$`)
	mac1Form    = regexp.MustCompile(`^v1\.[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{43}$`)
	mac0Form    = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

const rfc3339 = "2006-01-02T15:04:05Z"

// time reads the timestamp, in exactly one of its two forms.
func (p *Proof) time() (time.Time, error) {
	if unixSeconds.MatchString(p.Timestamp) {
		n, err := strconv.ParseInt(p.Timestamp, 10, 64)
		return time.Unix(n, 0).UTC(), err
	}
	t, err := time.Parse(rfc3339, p.Timestamp)
	if err == nil && t.Format(rfc3339) != p.Timestamp {
		err = strconv.ErrSyntax
	}
	return t, err
}

// check holds p to the strict forms, in which no two proofs run together.
func (p *Proof) check() error {
	bad := func(pointer, expected string) error {
		return subjects.Errorf(subjects.CodeInvalidMessage, "%s", expected).At(pointer)
	}
	v1 := p.Form() == V1
	if !subjects.ValidToken(string(p.AgentID)) {
		return subjects.Errorf(subjects.CodeInvalidID, "agent_id is no identifier").At("/agent_id")
	}
	if !v1 && !plainAgent.MatchString(string(p.AgentID)) {
		return bad("/agent_id", "expected lower-case letters, digits and -, since the signature is of the form v0")
	}
	if p.SessionID != "" {
		if _, err := subjects.ParseSessionID(string(p.SessionID)); err != nil {
			return subjects.Errorf(subjects.CodeInvalidID, "session_id is no session").At("/session_id")
		}
	}
	if _, err := p.time(); err != nil {
		return bad("/timestamp", "expected ten digits, or a time such as 2026-11-21T09:00:00Z")
	}
	switch {
	case p.Nonce == "" && v1:
		return bad("/nonce", "expected a nonce, got nothing")
	case p.Nonce != "" && !nonceForm.MatchString(p.Nonce):
		return bad("/nonce", "expected 16 to 64 of the characters A-Z a-z 0-9 _ -")
	case v1 && !mac1Form.MatchString(p.Signature):
		return bad("/signature", "expected v1.<key id>.<43 characters of base64url>")
	case !v1 && !mac0Form.MatchString(p.Signature):
		return bad("/signature", "expected v1.<key id>.<43 characters of base64url>, or 64 lower-case hex digits")
	}
	return nil
}
