package auth_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"

	"parley/bus/auth"
	"parley/subjects"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func made(t *testing.T, tenants ...string) *auth.Directory {
	t.Helper()
	d, err := auth.Init(filepath.Join(t.TempDir(), "fleet"), func() time.Time { return noon }, tenants...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// again reads the directory from its files.
func again(t *testing.T, d *auth.Directory) *auth.Directory {
	t.Helper()
	n, err := d.Again()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// accounts reads the accounts' JWTs as a server does, by name.
func accounts(t *testing.T, d *auth.Directory) map[string]*jwt.AccountClaims {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(d.Accounts(), "*.jwt"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*jwt.AccountClaims{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		c, err := jwt.DecodeAccountClaims(string(data))
		if err != nil {
			t.Fatal(err)
		}
		all[c.Name] = c
	}
	return all
}

func TestFilesArePrivate(t *testing.T) {
	t.Parallel()
	d := made(t, "default")
	if err := d.Add("default", subjects.RoleAgent, "bob", time.Time{}); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(d.Path(), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if e.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(d.Path(), "keys")
	files, err := os.ReadDir(key)
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.Chmod(filepath.Join(key, f.Name()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err = again(t, d).Add("default", subjects.RoleAgent, "carol", time.Time{})
	if !errors.Is(err, auth.ErrNotPrivate) || !regexp.MustCompile(`/keys/\w+\.nk has mode 0644; chmod 600 /`).MatchString(err.Error()) {
		t.Errorf("with keys that others may read: %v", err)
	}
	if err := os.Chmod(d.Path(), 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Again(); !errors.Is(err, auth.ErrNotPrivate) || !strings.Contains(err.Error(), "mode 0750; chmod 700") {
		t.Errorf("a directory that others may read: %v", err)
	}
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	d := made(t, "red", "blue")
	if _, err := auth.Init(d.Path(), time.Now, "red"); !errors.Is(err, auth.ErrExists) {
		t.Errorf("Init of what is there: %v", err)
	}
	if _, err := auth.Open(t.TempDir(), time.Now); !errors.Is(err, auth.ErrNotFound) {
		t.Errorf("Open of what is not there: %v", err)
	}
	ends := noon.Add(time.Hour)
	for _, c := range []struct {
		tenant, role, id string
		want             error
	}{
		{"red", subjects.RoleAgent, "bob", nil},
		{"blue", subjects.RoleAgent, "bob", nil}, // another one
		{"red", subjects.RoleOrchestrator, "bob", auth.ErrExists},
		{"green", subjects.RoleAgent, "bob", auth.ErrNotFound},
		{"red", "king", "louis", auth.ErrNotFound},
	} {
		if err := again(t, d).Add(c.tenant, c.role, c.id, ends); !errors.Is(err, c.want) {
			t.Errorf("Add(%s, %s, %s) = %v, want %v", c.tenant, c.role, c.id, err, c.want)
		}
	}
	for _, id := range []string{"", "a.b", "router", "../x", "*", ">", "{{name()}}"} {
		if err := again(t, d).Add("red", subjects.RoleAgent, id, ends); subjects.CodeOf(err) != subjects.CodeInvalidID {
			t.Errorf("Add(%q) = %v, want %s", id, err, subjects.CodeInvalidID)
		}
	}
	for _, name := range []string{"", "../x", "a.b"} {
		if err := again(t, d).AddTenant(name); subjects.CodeOf(err) != subjects.CodeInvalidID {
			t.Errorf("AddTenant(%q) = %v, want %s", name, err, subjects.CodeInvalidID)
		}
	}
	if err := again(t, d).AddTenant("red"); !errors.Is(err, auth.ErrExists) {
		t.Errorf("AddTenant(red) = %v", err)
	}
	if id, role, err := auth.Identity(d.Creds("red", "bob")); id != "bob" || role != subjects.RoleAgent || err != nil {
		t.Errorf("Identity = %s, %s, %v", id, role, err)
	}
	if _, _, err := auth.Identity(d.ServerConf()); err == nil {
		t.Error("a configuration has an identity")
	}
	d = again(t, d)
	if got := d.Users("red"); len(got) != 3 || got[2].ID != "bob" || !got[2].Keys[0].Expires.Equal(ends) || got[2].Keys[0].Holds(ends) || !got[2].Keys[0].Holds(noon) {
		t.Errorf("users %+v", got)
	}
	if u, ok := d.Whose(d.Users("blue")[2].Keys[0].Public); !ok || u.Tenant != "blue" || u.ID != "bob" {
		t.Errorf("Whose = %+v, %v", u, ok)
	}
}

func TestRenewAndRevoke(t *testing.T) {
	t.Parallel()
	d := made(t, "red", "blue")
	for _, tenant := range []string{"red", "blue"} {
		if err := d.Add(tenant, subjects.RoleAgent, "bob", time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Renew("red", "bob", time.Time{}); err != nil {
		t.Fatal(err)
	}
	keys := d.Users("red")[2].Keys
	if len(keys) != 2 || keys[0].Public == keys[1].Public {
		t.Fatalf("keys %+v", keys)
	}
	revoked := func(key string) bool {
		return accounts(t, d)["red-clients"].IsClaimRevoked(&jwt.UserClaims{ClaimsData: jwt.ClaimsData{Subject: key, IssuedAt: noon.Unix()}})
	}
	if err := d.Revoke("red", "bob", true); err != nil {
		t.Fatal(err)
	}
	if !revoked(keys[0].Public) || revoked(keys[1].Public) {
		t.Error("the former key holds, or the new one does not")
	}
	if err := d.Revoke("red", "bob", false); err != nil || !revoked(keys[1].Public) {
		t.Errorf("the new key holds: %v", err)
	}
	if _, err := os.Stat(d.Creds("red", "bob")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the credentials are still there: %v", err)
	}
	if all := accounts(t, d); len(all["blue-clients"].Revocations) != 0 || len(all["red"].Revocations) != 0 {
		t.Error("another account has revocations")
	}
	if err := d.Revoke("red", "nobody", false); !errors.Is(err, auth.ErrNotFound) {
		t.Errorf("Revoke(nobody) = %v", err)
	}
}

// Whoever writes or reads a subject is on the other side of the wall from whom
// he writes to, or no passage is made.
func TestPassages(t *testing.T) {
	t.Parallel()
	all := accounts(t, made(t, "red"))
	workers, clients := all["red"], all["red-clients"]
	if len(all) != 3 || workers == nil || clients == nil {
		t.Fatalf("accounts %v", all)
	}
	if !workers.Limits.IsJSEnabled() || clients.Limits.IsJSEnabled() {
		t.Error("streams are in the clients' account, or not in the workers'")
	}
	for _, c := range []struct {
		subject string
		from    *jwt.AccountClaims // who exports it; nil: nobody
		kind    jwt.ExportType
	}{
		{"fleet.api.*.task.dispatch", workers, jwt.Service},
		{"fleet.dispatch.*", workers, jwt.Service},
		{"fleet.announce.*.*", workers, jwt.Service},
		{"fleet.heartbeat.*.*", workers, jwt.Service},
		{"fleet.result.*.*", workers, jwt.Service},
		{"fleet.offer.*.*", clients, jwt.Service},
		{"fleet.control.*.*", clients, jwt.Service},
		{"fleet.inbox.*.*", clients, jwt.Service},
		{"fleet.event.*", workers, jwt.Stream},
		{"fleet.outcome.*.*", workers, jwt.Stream},
		{"fleet.dlq.>", workers, jwt.Stream},
		{"fleet.task.*", nil, 0},
		{"fleet.audit", nil, 0},
		{"fleet.log.*.*", nil, 0},
		{"fleet.heartbeat.router.*", nil, 0},
		{"fleet.api.router.session.offer", nil, 0},
	} {
		for _, from := range []*jwt.AccountClaims{workers, clients} {
			to := workers
			if from == workers {
				to = clients
			}
			i := slices.IndexFunc(from.Exports, func(e *jwt.Export) bool { return string(e.Subject) == c.subject })
			j := slices.IndexFunc(to.Imports, func(e *jwt.Import) bool { return string(e.Subject) == c.subject })
			switch {
			case (i >= 0) != (from == c.from) || (j >= 0) != (i >= 0):
				t.Errorf("%s: exported by %s at %d, imported at %d", c.subject, from.Name, i, j)
			case i >= 0 && (from.Exports[i].Type != c.kind || to.Imports[j].Account != from.Subject):
				t.Errorf("%s: %+v", c.subject, from.Exports[i])
			}
		}
	}
	for _, a := range []*jwt.AccountClaims{workers, clients} {
		for _, e := range a.Exports {
			if s := string(e.Subject); strings.HasPrefix(s, "$") && s != "$SRV.>" || s == ">" || strings.HasPrefix(s, "fleet.>") {
				t.Errorf("%s exports %s", a.Name, s)
			}
		}
	}
}

// What a role may do is what the catalogue's generator says, for whoever it is.
func TestScopes(t *testing.T) {
	t.Parallel()
	all := accounts(t, made(t, "red"))
	for _, role := range []string{subjects.RoleAgent, subjects.RoleLeaf, subjects.RoleOrchestrator, subjects.RoleOperator, subjects.RoleWorker} {
		account := all["red-clients"]
		if role == subjects.RoleWorker {
			account = all["red"]
		}
		var scope *jwt.UserScope
		for _, s := range account.SigningKeys {
			if u, ok := s.(*jwt.UserScope); ok && u.Role == role {
				scope = u
			}
		}
		if scope == nil {
			t.Fatalf("%s has no signing key", role)
		}
		got := auth.Permissions(role, "bob")
		for _, list := range [][2]jwt.StringList{{scope.Template.Pub.Allow, got.Pub.Allow}, {scope.Template.Sub.Allow, got.Sub.Allow}} {
			for i, s := range list[0] {
				list[0][i] = strings.ReplaceAll(s, "{{name()}}", "bob")
			}
			slices.Sort(list[0])
			slices.Sort(list[1])
			if !slices.Equal(list[0], list[1]) {
				t.Errorf("%s: %v, want %v", role, list[0], list[1])
			}
		}
		if (scope.Template.Resp != nil) != subjects.Responds(role) {
			t.Errorf("%s: responses %v", role, scope.Template.Resp)
		}
		for _, s := range got.Pub.Allow {
			if role != subjects.RoleWorker && (strings.HasPrefix(s, "$JS") || s == ">" || strings.HasPrefix(s, "_INBOX")) {
				t.Errorf("%s may publish %s", role, s)
			}
		}
	}
}

// The configuration limits what the one that ships limits.
func TestServerConf(t *testing.T) {
	t.Parallel()
	d := made(t, "red")
	got, err := os.ReadFile(d.ServerConf())
	if err != nil {
		t.Fatal(err)
	}
	limits, err := os.ReadFile("../../deploy/nats/limits.conf")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(limits)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && !strings.Contains(string(got), line) {
			t.Errorf("no %q in\n%s", line, got)
		}
	}
	for _, want := range []string{"host: 127.0.0.1\n", "sync_interval: always", "include operator.conf"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
