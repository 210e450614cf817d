package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"parley/bus"
	"parley/bus/embedded"
	"parley/subjects"
	"parley/subjects/identity"
	"parley/workers/callout"
)

// myself is the identity that a client has. A nil one is nobody in particular.
type myself struct {
	AgentID subjects.AgentID
	key     identity.Key
}

// identityFile is the form of a file with an identity.
type identityFile struct {
	AgentID subjects.AgentID `json:"agent_id"`
	Key     string           `json:"key"`
}

// identity reads the settings' identity; nil where there is none.
func (a *app) identity() (*myself, error) {
	c := a.conf
	switch {
	case c.Identity == "" && c.IdentityKey == "":
		return nil, nil //nolint:nilnil // nobody is a value here
	case c.Identity == "":
		key, err := identity.ParseKey(c.IdentityKey)
		return &myself{key: key}, err
	}
	if err := private("--identity", c.Identity); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(c.Identity)
	if err != nil {
		return nil, usage("--identity: %w", err).next("name the file that parley identity add wrote")
	}
	var f identityFile
	if err := json.Unmarshal(data, &f); err != nil || f.AgentID == "" {
		return nil, usage("--identity %s is no identity", c.Identity).next("name the file that parley identity add wrote")
	}
	if c.IdentityKey != "" {
		f.Key = c.IdentityKey
	}
	key, err := identity.ParseKey(f.Key)
	return &myself{f.AgentID, key}, err
}

// password proves anew who connects.
func (m *myself) password() string {
	p := identity.Proof{AgentID: m.AgentID, Timestamp: identity.Timestamp(time.Now()), Nonce: rand.Text()}
	p.Sign(m.key, identity.Connect, nil)
	return p.Password()
}

// use connects as id by the identity, unless other credentials are given.
func (m *myself) use(c *bus.Config, id subjects.AgentID) error {
	if m == nil {
		return nil
	}
	if m.AgentID == "" {
		m.AgentID = id
	}
	if m.AgentID != id {
		return usage("the identity is of %s, and you act as %s", m.AgentID, id).next("leave --as and --id out, or give the identity of " + string(id))
	}
	if c.Creds == "" && c.NKey == "" && c.User == "" && c.Token == "" && c.Context == "" {
		c.Credentials = func() (user, password string) { return string(m.AgentID), m.password() }
	}
	return nil
}

// sign signs what b sends.
func (m *myself) sign(b *bus.Bus) {
	if m != nil {
		b.SetSigner(callout.Signer(m.AgentID, m.key, b.Now))
	}
}

// askWho makes the embedded broker ask who connects, if it is to, and gives the
// file with the workers' own key.
func (a *app) askWho() (guard *embedded.Callout, nkey string, err error) {
	if !a.conf.Callout {
		return nil, "", nil
	}
	if guard, err = embedded.NewCallout(a.keysDir()); err != nil {
		return nil, "", failed("%w", err)
	}
	if !has(a.conf.Workers, "callout") {
		return nil, "", usage("--callout needs the worker callout, which --workers leaves out").next("parley up --callout, without --workers")
	}
	a.conf.CalloutIssuer, a.conf.CalloutXKey, a.conf.CalloutAccount = guard.Issuer, "", embedded.Clients
	return guard, guard.Worker, nil
}

func (a *app) keysDir() string { return filepath.Join(a.conf.Data, "callout") }

// operatorFile is the identity by which a person of this machine lets others in.
func (a *app) operatorFile() string { return filepath.Join(a.keysDir(), "operator.identity.json") }

// firstOperator gives the operator of this machine an identity, unless it has
// one.
func (a *app) firstOperator(ctx context.Context) error {
	if !a.conf.Callout {
		return nil
	}
	if info, err := os.Stat(a.operatorFile()); err == nil && info.Size() == 0 { // it was killed before it knew what to write
		if err := os.Remove(a.operatorFile()); err != nil {
			return failed("%w", err)
		}
	}
	write, drop, err := writeIdentity(a.operatorFile())
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	id := subjects.AgentID(a.conf.Operators[0])
	key, err := a.identities.Issue(ctx, id, subjects.RoleOperator)
	if err != nil {
		drop()
		return failed("give the operator an identity: %w", err)
	}
	if err := write(id, key.Word()); err != nil {
		drop()
		return failed("%w", err)
	}
	return nil
}

// writeIdentity makes a file for its owner's eyes only, which must be new.
func writeIdentity(path string) (write func(id subjects.AgentID, key string) error, drop func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, usage("write the identity: %w", err).next("name another file with --file, or take that one away")
	}
	write = func(id subjects.AgentID, key string) error {
		data, err := json.MarshalIndent(identityFile{id, key}, "", "  ")
		if err != nil {
			return err
		}
		if _, err = f.Write(append(data, '\n')); err == nil {
			err = f.Sync()
		}
		if err = firstOf(err, f.Close()); err != nil {
			return fmt.Errorf("write the identity: %w", err)
		}
		return nil
	}
	drop = func() {
		_ = f.Close()
		_ = os.Remove(path)
	}
	return write, drop, nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
