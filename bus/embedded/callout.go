package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"parley/subjects"
)

// Callout makes a server ask the fleet who may connect. The workers alone, who
// answer, are let in without, by a key of theirs. Everybody else belongs into the
// account Clients.
type Callout struct {
	Issuer string // seed of the account key by which answers are known
	Worker string // file with the workers' key

	public map[string]string
}

// NewCallout reads the keys in dir, and makes those that are not there.
func NewCallout(dir string) (*Callout, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of keys: %w", err)
	}
	c := &Callout{Worker: filepath.Join(dir, "worker.nk"), public: map[string]string{}}
	for _, k := range []struct {
		name, file string
		create     func() (nkeys.KeyPair, error)
	}{
		{"issuer", filepath.Join(dir, "issuer.nk"), nkeys.CreateAccount},
		{"worker", c.Worker, nkeys.CreateUser},
	} {
		seed, public, err := keyFile(k.file, k.create)
		if err != nil {
			return nil, fmt.Errorf("the key in %s: %w", k.file, err)
		}
		c.public[k.name] = public
		if k.name == "issuer" {
			c.Issuer = seed
		}
	}
	return c, nil
}

// keyFile reads a seed, or makes it.
func keyFile(path string, create func() (nkeys.KeyPair, error)) (seed, public string, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		var pair nkeys.KeyPair
		if pair, err = create(); err == nil {
			if data, err = pair.Seed(); err == nil {
				err = os.WriteFile(path, data, 0o600)
			}
		}
	}
	if err != nil {
		return "", "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", "", err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", "", fmt.Errorf("others may read it (mode %o): chmod 600 %s", mode, path)
	}
	pair, err := nkeys.FromSeed(data)
	if err != nil {
		return "", "", errors.New("it is not a seed")
	}
	public, err = pair.PublicKey()
	return string(data), public, err
}

// options makes a server ask.
func (c *Callout) options(o *server.Options) {
	o.Nkeys = []*server.NkeyUser{{Nkey: c.public["worker"]}}
	o.AuthCallout = &server.AuthCallout{
		Issuer: c.public["issuer"], Account: server.DEFAULT_GLOBAL_ACCOUNT,
		AuthUsers: []string{c.public["worker"]},
	}
	o.AuthTimeout = 5
}

// Clients is the account of whom the callout lets in. The workers and all
// streams are in another one, the server's own.
const Clients = "CLIENTS"

// wall makes the clients' account, and the passages between it and that of the
// workers.
func wall(ns *server.Server) error {
	workers := ns.GlobalAccount()
	clients, err := ns.RegisterAccount(Clients)
	if err != nil {
		return err
	}
	for _, p := range subjects.Passages() {
		from, to := workers, clients // who exports, who imports
		if !p.ServedByWorkers() {
			from, to = clients, workers
		}
		if err := pass(p, from, to); err != nil {
			return fmt.Errorf("let %s pass: %w", p.Subject, err)
		}
	}
	return nil
}

func pass(p subjects.Passage, from, to *server.Account) error {
	if !p.Request {
		if err := from.AddStreamExport(p.Subject, []*server.Account{to}); err != nil {
			return err
		}
		return to.AddStreamImport(from, p.Subject, "")
	}
	answers := server.Singleton
	if p.Repeated {
		answers = server.Streamed
	}
	if err := from.AddServiceExportWithResponse(p.Subject, answers, []*server.Account{to}); err != nil {
		return err
	}
	return to.AddServiceImport(from, p.Subject, p.Subject)
}
