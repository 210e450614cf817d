package identity

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"

	"parley/subjects"
)

// Terms are what a proof is judged by.
type Terms struct {
	Keys   []Key     // that count now; none for somebody who is not known
	Plain  bool      // the form v0 will do
	SeenV1 bool      // the agent has used v1, so v0 is a step back
	At     time.Time // when it came
}

// Verify judges a proof about subject and body: nil, or auth_failed. Whether
// the agent is unknown or the signature wrong cannot be told from its error,
// nor from its time. It does not know what came before: see Proof.Once.
func Verify(t Terms, p *Proof, subject string, body []byte) error {
	if err := p.check(); err != nil {
		return err
	}
	at, _ := p.time()
	if off := t.At.Sub(at); off > Window || off < -Window {
		return subjects.Errorf(subjects.CodeAuthFailed, "the time of the signature is not within %s of the fleet's, which is %s",
			Window, t.At.UTC().Format(time.RFC3339)).At("/timestamp").WithRemedy("set the clock, and sign anew")
	}
	if !t.proven(p, subject, body) {
		return subjects.Errorf(subjects.CodeAuthFailed, "the signature does not prove who sends this").At("/signature").
			WithRemedy("sign with a key of this identity that still counts: parley identity get shows their ids")
	}
	if p.Form() == V0 && t.SeenV1 {
		return subjects.Errorf(subjects.CodeAuthFailed, "the signature is of the form v0, and this agent has used v1").At("/signature").
			WithRemedy("sign with v1")
	}
	if p.Form() == V0 && !t.Plain {
		return subjects.Errorf(subjects.CodeAuthFailed, "the signature is of the form v0, which is not taken from this agent").At("/signature").
			WithRemedy("sign with v1, or have an operator allow it: parley identity add --update --signatures v0")
	}
	return nil
}

// proven compares with every place that a key may have, so that it takes the
// same time for none and for all.
func (t Terms) proven(p *Proof, subject string, body []byte) bool {
	var sent []byte
	if p.Form() == V1 {
		sent, _ = base64.RawURLEncoding.DecodeString(p.Signature[strings.LastIndexByte(p.Signature, '.')+1:])
	} else {
		sent, _ = hex.DecodeString(p.Signature)
	}
	ok := false
	for i := range MaxKeys {
		k, known := Key{Secret: make([]byte, MinSecret)}, false
		if i < len(t.Keys) {
			k, known = t.Keys[i], true
		}
		want := mac0(k.Secret, p)
		if p.Form() == V1 {
			known = known && k.ID == p.KeyID()
			want = mac1(k.Secret, p, p.KeyID(), subject, body)
		}
		same := hmac.Equal(want, sent)
		ok = ok || same && known
	}
	return ok
}
