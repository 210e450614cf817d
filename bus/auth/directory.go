package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"parley/subjects"
)

// DefaultTenant is the tenant of who names none.
const DefaultTenant = "default"

// Names of the identities that every tenant begins with: its workers, and a
// human who sees and changes every task.
const (
	Worker   = "worker"
	Operator = "operator"
)

var (
	// ErrExists is returned for what is to be made and is there already.
	ErrExists = errors.New("already exists")
	// ErrNotFound is returned for a directory, a tenant or an identity that
	// nobody has made.
	ErrNotFound = errors.New("not found")
)

// Directory is everything about the identities of a fleet. It is not safe for
// concurrent use, nor by two processes that change it.
type Directory struct {
	path  string
	index index
	now   func() time.Time
}

// index is the file auth.json: who there is. It holds no secret.
type index struct {
	Operator string    `json:"operator"` // its public key, as all of them here
	System   string    `json:"system"`   // account
	Tenants  []*tenant `json:"tenants"`
}

type tenant struct {
	Name    string            `json:"name"`
	Workers string            `json:"workers"` // account
	Clients string            `json:"clients"` // account
	Signers map[string]string `json:"signers"` // by role
	Users   []*User           `json:"users"`
}

// User is an identity.
type User struct {
	Tenant string `json:"-"`
	ID     string `json:"id"`
	Role   string `json:"role"`
	Keys   []Key  `json:"keys"` // the last one is in the credentials file
}

// Key is what an identity proves itself with, for a while.
type Key struct {
	Public  string    `json:"public"`
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires,omitzero"`
	Revoked time.Time `json:"revoked,omitzero"`
}

// Holds reports whether a server lets the key in at a time.
func (k Key) Holds(now time.Time) bool {
	return k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}

const (
	indexFile    = "auth.json"
	operatorFile = "operator.jwt"
	confFile     = "operator.conf"
	serverFile   = "nats.conf"
	systemUser   = "sys.creds"
)

// Init makes a directory with an operator, the system's account, and tenants,
// each with its Worker and its Operator. It must be absent or empty.
func Init(path string, now func() time.Time, tenants ...string) (*Directory, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if old, err := os.ReadDir(path); err == nil && len(old) > 0 {
		return nil, fmt.Errorf("%s is not empty: %w", path, ErrExists)
	}
	d := &Directory{path: path, now: now}
	for _, dir := range []string{"", "keys", "creds", "accounts"} {
		if err := os.MkdirAll(filepath.Join(path, dir), 0o700); err != nil {
			return nil, err
		}
		if err := os.Chmod(filepath.Join(path, dir), 0o700); err != nil { //nolint:gosec // a directory
			return nil, err
		}
	}
	operator, err := d.newKey(nkeys.CreateOperator)
	if err != nil {
		return nil, err
	}
	system, err := d.newKey(nkeys.CreateAccount)
	if err != nil {
		return nil, err
	}
	d.index.Operator, d.index.System = operator, system
	if err := d.writeOperator(); err != nil {
		return nil, err
	}
	if err := d.writeSystemUser(); err != nil {
		return nil, err
	}
	for _, name := range tenants {
		if err := d.addTenant(name); err != nil {
			return nil, err
		}
	}
	if err := d.write(serverFile, []byte(serverConf(path, len(d.index.Tenants)))); err != nil {
		return nil, err
	}
	return d, d.Refresh()
}

// Open reads a directory. Who changes it needs its directory keys.
func Open(path string, now func() time.Time) (*Directory, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	d := &Directory{path: path, now: now}
	data, err := os.ReadFile(filepath.Join(path, indexFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s holds no identities: %w", path, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	if err := Private(path); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &d.index); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(path, indexFile), err)
	}
	return d, nil
}

// Again reads the directory as it is now.
func (d *Directory) Again() (*Directory, error) { return Open(d.path, d.now) }

// Path is where the directory is.
func (d *Directory) Path() string { return d.path }

// ServerConf is the path of a configuration that nats-server starts with.
func (d *Directory) ServerConf() string { return filepath.Join(d.path, serverFile) }

// Accounts is the directory in which a server finds and keeps the accounts.
func (d *Directory) Accounts() string { return filepath.Join(d.path, "accounts") }

// System is the public key of the system's account.
func (d *Directory) System() string { return d.index.System }

// OperatorJWT is what a server trusts.
func (d *Directory) OperatorJWT() (string, error) {
	data, err := os.ReadFile(filepath.Join(d.path, operatorFile))
	return string(bytes.TrimSpace(data)), err
}

// Creds is the path of an identity's credentials file.
func (d *Directory) Creds(tenant, id string) string {
	return filepath.Join(d.path, "creds", tenant, id+".creds")
}

// SystemCreds is the path of the credentials of the system's account.
func (d *Directory) SystemCreds() string { return filepath.Join(d.path, "creds", systemUser) }

// Tenants lists the tenants.
func (d *Directory) Tenants() []string {
	var names []string
	for _, t := range d.index.Tenants {
		names = append(names, t.Name)
	}
	return names
}

// Users lists the identities of a tenant, of all where it is empty.
func (d *Directory) Users(tenant string) []User {
	var list []User
	for _, t := range d.index.Tenants {
		for _, u := range t.Users {
			if tenant == "" || tenant == t.Name {
				known := *u
				known.Tenant = t.Name
				list = append(list, known)
			}
		}
	}
	return list
}

// Whose tells whom a public key is of.
func (d *Directory) Whose(key string) (User, bool) {
	for _, u := range d.Users("") {
		if slices.ContainsFunc(u.Keys, func(k Key) bool { return k.Public == key }) {
			return u, true
		}
	}
	return User{}, false
}

func (d *Directory) tenant(name string) (*tenant, error) {
	for _, t := range d.index.Tenants {
		if t.Name == name {
			return t, nil
		}
	}
	return nil, fmt.Errorf("tenant %s: %w", name, ErrNotFound)
}

func (t *tenant) user(id string) *User {
	for _, u := range t.Users {
		if u.ID == id {
			return u
		}
	}
	return nil
}

// AddTenant makes a tenant with its Worker and its Operator.
func (d *Directory) AddTenant(name string) error {
	if err := d.addTenant(name); err != nil {
		return err
	}
	return d.Refresh()
}

func (d *Directory) addTenant(name string) error {
	if !subjects.ValidToken(name) {
		return subjects.Errorf(subjects.CodeInvalidID, "tenant %q is not an identifier", name).
			WithRemedy("use 1 to 64 of the characters A-Z a-z 0-9 _ -")
	}
	if _, err := d.tenant(name); err == nil || name+".creds" == systemUser {
		return fmt.Errorf("tenant %s: %w", name, ErrExists)
	}
	t := &tenant{Name: name, Signers: map[string]string{}}
	var err error
	if t.Workers, err = d.newKey(nkeys.CreateAccount); err != nil {
		return err
	}
	if t.Clients, err = d.newKey(nkeys.CreateAccount); err != nil {
		return err
	}
	for _, role := range append(clientRoles(), subjects.RoleWorker) {
		if t.Signers[role], err = d.newKey(nkeys.CreateAccount); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(d.path, "creds", name), 0o700); err != nil {
		return err
	}
	d.index.Tenants = append(d.index.Tenants, t)
	if err := d.add(t, subjects.RoleWorker, Worker, time.Time{}); err != nil {
		return err
	}
	return d.add(t, subjects.RoleOperator, Operator, time.Time{})
}

// Add makes an identity, whose credentials end at expires unless that is zero.
func (d *Directory) Add(tenant, role, id string, expires time.Time) error {
	t, err := d.tenant(tenant)
	if err != nil {
		return err
	}
	if err := d.add(t, role, id, expires); err != nil {
		return err
	}
	return d.save()
}

func (d *Directory) add(t *tenant, role, id string, expires time.Time) error {
	if _, err := subjects.ParseAgentID(id); err != nil {
		return err
	}
	if t.Signers[role] == "" {
		return fmt.Errorf("role %q: %w", role, ErrNotFound)
	}
	if t.user(id) != nil {
		return fmt.Errorf("%s of tenant %s: %w", id, t.Name, ErrExists)
	}
	u := &User{ID: id, Role: role}
	if err := d.issue(t, u, expires); err != nil {
		return err
	}
	t.Users = append(t.Users, u)
	return nil
}

// Renew gives an identity, also a revoked one, new credentials. The former ones
// hold until they end or are revoked.
func (d *Directory) Renew(tenant, id string, expires time.Time) error {
	t, u, err := d.find(tenant, id)
	if err != nil {
		return err
	}
	if err := d.issue(t, u, expires); err != nil {
		return err
	}
	return d.save()
}

func (d *Directory) find(tenant, id string) (*tenant, *User, error) {
	t, err := d.tenant(tenant)
	if err != nil {
		return nil, nil, err
	}
	u := t.user(id)
	if u == nil {
		return nil, nil, fmt.Errorf("%s of tenant %s: %w", id, tenant, ErrNotFound)
	}
	return t, u, nil
}

// Revoke ends the credentials of an identity: the former ones alone, or all.
// Servers that run hear of it by Push.
func (d *Directory) Revoke(tenant, id string, former bool) error {
	_, u, err := d.find(tenant, id)
	if err != nil {
		return err
	}
	keys := u.Keys
	if former {
		keys = keys[:len(keys)-1]
	}
	now := d.now().UTC().Truncate(time.Second)
	for i := range keys {
		if keys[i].Revoked.IsZero() {
			keys[i].Revoked = now
		}
	}
	if !former {
		if err := os.Remove(d.Creds(tenant, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return d.Refresh()
}

// issue makes a key of u and its credentials file.
func (d *Directory) issue(t *tenant, u *User, expires time.Time) error {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	defer pair.Wipe()
	public, err := pair.PublicKey()
	if err != nil {
		return err
	}
	now := d.now().UTC().Truncate(time.Second)
	c := jwt.NewUserClaims(public)
	c.Name, c.IssuerAccount = u.ID, t.Clients
	if u.Role == subjects.RoleWorker {
		c.IssuerAccount = t.Workers
	}
	c.SetScoped(true)
	c.Tags.Add(roleTag + u.Role)
	if !expires.IsZero() {
		c.Expires = expires.Unix()
	}
	if err := d.writeCreds(d.Creds(t.Name, u.ID), c, pair, t.Signers[u.Role]); err != nil {
		return err
	}
	u.Keys = append(u.Keys, Key{Public: public, Issued: now, Expires: expires.UTC()})
	return nil
}

// writeCreds signs c and writes it with its seed.
func (d *Directory) writeCreds(path string, c *jwt.UserClaims, pair nkeys.KeyPair, signer string) error {
	by, err := d.key(signer)
	if err != nil {
		return err
	}
	defer by.Wipe()
	token, err := c.Encode(by)
	if err != nil {
		return err
	}
	seed, err := pair.Seed()
	if err != nil {
		return err
	}
	data, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		return err
	}
	return writeFile(path, data)
}

// roleTag is followed by the role of a user, in its claims. It is for readers:
// what the user may do is its signer's.
const roleTag = "role:"

// Identity is whom a credentials file is of. The role is "" where somebody else
// has made the file.
func Identity(path string) (id, role string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	token, err := jwt.ParseDecoratedJWT(data)
	if err != nil {
		return "", "", fmt.Errorf("%s holds no credentials", path)
	}
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return "", "", fmt.Errorf("%s holds no credentials of a user", path)
	}
	for _, tag := range c.Tags {
		if r, ok := strings.CutPrefix(tag, roleTag); ok {
			role = r
		}
	}
	return c.Name, role, nil
}
