package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// Refresh writes the accounts again, by the catalogue as it is now.
func (d *Directory) Refresh() error {
	tokens := map[string]string{}
	order := []string{d.index.System}
	system := jwt.NewAccountClaims(d.index.System)
	system.Name = "SYS"
	system.Limits.DisallowBearer = true
	system.Exports = systemExports()
	all := []*jwt.AccountClaims{system}
	for _, t := range d.index.Tenants {
		workers, clients := t.claims()
		all = append(all, workers, clients)
		order = append(order, t.Workers, t.Clients)
	}
	operator, err := d.key(d.index.Operator)
	if err != nil {
		return err
	}
	defer operator.Wipe()
	for _, c := range all {
		var found jwt.ValidationResults
		c.Validate(&found)
		if errs := found.Errors(); len(errs) > 0 {
			return fmt.Errorf("account %s: %w", c.Name, errors.Join(errs...))
		}
		token, encodeErr := c.Encode(operator)
		if encodeErr != nil {
			return fmt.Errorf("account %s: %w", c.Name, encodeErr)
		}
		if err := d.write(filepath.Join("accounts", c.Subject+".jwt"), []byte(token)); err != nil {
			return err
		}
		tokens[c.Subject] = token
	}
	trusted, err := d.OperatorJWT()
	if err != nil {
		return err
	}
	if err := d.write(confFile, []byte(operatorConf(d.path, trusted, order, tokens))); err != nil {
		return err
	}
	return d.save()
}

// systemExports let monitoring tools of the system's account see the accounts,
// as nats-server's own tools make them.
func systemExports() jwt.Exports {
	return jwt.Exports{
		{
			Name: "account-monitoring-services", Subject: "$SYS.REQ.ACCOUNT.*.*", Type: jwt.Service,
			ResponseType: jwt.ResponseTypeStream, AccountTokenPosition: 4,
		},
		{Name: "account-monitoring-streams", Subject: "$SYS.ACCOUNT.*.>", Type: jwt.Stream, AccountTokenPosition: 3},
	}
}

func (d *Directory) save() error {
	data, err := json.MarshalIndent(d.index, "", "  ")
	if err != nil {
		return err
	}
	return d.write(indexFile, append(data, '\n'))
}

func (d *Directory) writeOperator() error {
	c := jwt.NewOperatorClaims(d.index.Operator)
	c.Name, c.SystemAccount = "parley", d.index.System
	operator, err := d.key(d.index.Operator)
	if err != nil {
		return err
	}
	defer operator.Wipe()
	token, err := c.Encode(operator)
	if err != nil {
		return err
	}
	return d.write(operatorFile, []byte(token+"\n"))
}

// writeSystemUser makes who may change accounts on servers that run.
func (d *Directory) writeSystemUser() error {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	defer pair.Wipe()
	public, err := pair.PublicKey()
	if err != nil {
		return err
	}
	c := jwt.NewUserClaims(public)
	c.Name = "sys"
	return d.writeCreds(d.SystemCreds(), c, pair, d.index.System)
}

// newKey makes a key, keeps its seed and returns its public half.
func (d *Directory) newKey(create func() (nkeys.KeyPair, error)) (string, error) {
	pair, err := create()
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	public, err := pair.PublicKey()
	if err != nil {
		return "", err
	}
	seed, err := pair.Seed()
	if err != nil {
		return "", err
	}
	return public, d.write(d.keyFile(public), append(seed, '\n'))
}

func (*Directory) keyFile(public string) string { return filepath.Join("keys", public+".nk") }

func (d *Directory) key(public string) (nkeys.KeyPair, error) {
	path := filepath.Join(d.path, d.keyFile(public))
	if err := Private(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the key is not here, which changing identities needs: %w", err)
		}
		return nil, err
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	defer clear(seed)
	return nkeys.ParseDecoratedNKey(seed)
}

func (d *Directory) write(name string, data []byte) error {
	return writeFile(filepath.Join(d.path, name), data)
}

// writeFile replaces a file at once: no reader sees half of it.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // of mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// operatorConf is what a server must have of the directory.
func operatorConf(path, operator string, order []string, tokens map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Whom this server trusts. parley auth writes this file again with every change.

operator: %s
system_account: %s

# Where the server keeps the accounts. What is newer counts: what it was told
# (parley auth push), or what stands below.
resolver: {
  type: full
  dir: %q
  allow_delete: false
  interval: "2m"
}
resolver_preload: {
`, operator, order[0], filepath.Join(path, "accounts"))
	for _, account := range order {
		fmt.Fprintf(&b, "  %s: %s\n", account, tokens[account])
	}
	b.WriteString("}\n")
	return b.String()
}

// storePerTenant is what the streams of a tenant may reserve, in GB: by default
// they take half of it.
const storePerTenant = 20

// serverConf is a whole configuration for one machine.
func serverConf(path string, tenants int) string {
	return fmt.Sprintf(`# One NATS server that lets in whom this directory names: nats-server -c nats.conf
#
# It listens on the loopback alone. Change what you like: parley auth writes this
# file once. For a cluster, give every server a copy of it and of operator.conf,
# with directories, names and routes of its own.

server_name: parley

host: 127.0.0.1
port: 4222
http: 127.0.0.1:8222  # monitoring: /healthz /varz /jsz

max_payload: 4MB      # a record holds a message of 1 MiB, and more
max_pending: 256MB    # so much may wait for one client before it counts as slow
write_deadline: 10s
lame_duck_duration: 30s  # a server that stops tells its clients to go elsewhere first
lame_duck_grace_period: 5s

include operator.conf

jetstream {
  store_dir: %q
  sync_interval: always  # no acknowledgement before the disk has it
  max_file_store: %dGB   # what streams may reserve, for each tenant %d; without it, 75 %% of what is free at the start
  max_memory_store: 64MB # Parley keeps nothing in memory
}
`, filepath.Join(path, "data"), storePerTenant*tenants, storePerTenant)
}
