package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"parley/bus/auth"
	"parley/subjects"
)

// identities makes a directory with an agent, and a shell that knows it.
func identities(t *testing.T) (s *shell, dir string) {
	t.Helper()
	s = newShell(t)
	dir = filepath.Join(t.TempDir(), "fleet")
	s.run(t, "auth", "init", dir).check(t, 0, "parley up --auth "+dir, "")
	s.run(t, "auth", "add-agent", "claude", "--auth", dir).check(t, 0, "creds "+filepath.Join(dir, "creds", "default", "claude.creds"), "")
	return s, dir
}

func TestAuthCommands(t *testing.T) {
	t.Parallel()
	s, dir := identities(t)
	at := func(args ...string) ran {
		return s.run(t, append([]string{"auth", "--auth", dir, "--timeout", "500ms"}, args...)...)
	}
	for noun, role := range map[string]string{"orchestrator": subjects.RoleOrchestrator, "human": subjects.RoleOperator, "service": subjects.RoleWorker, "leaf": subjects.RoleLeaf} {
		at("add-"+noun, "a-"+noun, "--expires", "1h").check(t, 0, "", "")
		id, got, err := auth.Identity(filepath.Join(dir, "creds", "default", "a-"+noun+".creds"))
		if id != "a-"+noun || got != role || err != nil {
			t.Errorf("add-%s made %s, %s, %v", noun, id, got, err)
		}
	}
	at("init", dir).check(t, exitUsage, "", "already exists")
	at("add-human", "alice").check(t, 0, "", "--operators operator,alice")
	at("add-agent", "claude").check(t, exitUsage, "", "parley auth renew ID")
	at("add-agent", "a.b").check(t, codeExit(subjects.CodeInvalidID), "", "invalid_id")
	at("add-agent", "bob", "--tenant", "none").check(t, exitUsage, "", "tenant none: not found")
	at("renew", "nobody").check(t, exitUsage, "", "not found")
	at("renew", "claude", "-o", "json").check(t, 0, `"inbox_prefix": "_INBOX_claude"`, "")
	// Nobody is there to be told: it is written down, and the command fails.
	at("add-tenant", "blue", "--server", "nats://127.0.0.1:1").check(t, exitFailed, "blue/operator.creds", "it is written down")
	at("revoke", "claude", "--server", "nats://u:canary@127.0.0.1:1").check(t, exitFailed, "", "parley auth push")
	out := at("revoke", "claude", "--server", "nats://u:canary@127.0.0.1:1")
	if strings.Contains(out.stderr, "canary") {
		t.Errorf("the error shows a password:\n%s", out.stderr)
	}
	var list []struct{ Tenant, ID, Kind, State string }
	if err := json.Unmarshal([]byte(at("ls", "-o", "json").stdout), &list); err != nil {
		t.Fatal(err)
	}
	states := map[string]int{}
	for _, l := range list {
		states[l.Tenant+" "+l.State]++
		if l.ID == "claude" && (l.State != "revoked" || l.Kind != "agent") {
			t.Errorf("claude is %+v", l)
		}
	}
	if states["default revoked"] != 2 || states["default valid"] != 7 || states["blue valid"] != 2 {
		t.Errorf("the list has %v", states)
	}
	at("ls", "--tenant", "blue").check(t, 0, "operator", "")
	s.run(t, "auth", "ls").check(t, exitUsage, "", "parley auth init DIR")
	s.run(t, "auth", "add-agent", "x").check(t, exitUsage, "", "parley auth init DIR")
	s.run(t, "up", "--auth", dir, "--tenant", "none", "--port", "-1", "--http", "off").check(t, exitUsage, "", `there is no tenant "none"`)
	s.run(t, "up", "--auth", t.TempDir(), "--port", "-1", "--http", "off").check(t, exitUsage, "", "parley auth init DIR")
}

// Who one is follows from the credentials, unless that is said.
func TestCredentialsSayWho(t *testing.T) {
	t.Parallel()
	s, dir := identities(t)
	j, url := s.up(t, "--auth", dir, "--save-context")
	if out := j.stdout.String(); !strings.Contains(out, "for whom "+dir+" names") || strings.Contains(out, "open") {
		t.Errorf("the banner says\n%s", out)
	}
	creds := func(id string) string { return filepath.Join(dir, "creds", "default", id+".creds") }
	s.run(t, "task", "send", "--server", url, "--creds", creds("claude"), "x").check(t, 0, "", "")
	s.run(t, "task", "ls", "--server", url, "--creds", creds("claude"), "-o", "json").check(t, 0, `"claude"`, "")
	s.run(t, "task", "ls", "--server", url, "--creds", creds("operator"), "-o", "json").check(t, 0, `"claude"`, "")
	s.run(t, "task", "ls", "--server", url, "--creds", creds("worker"), "-o", "json").check(t, 0, `"claude"`, "") // of nobody: the operator, as ever
	s.run(t, "task", "ls", "--context", "parley", "-o", "json").check(t, 0, `"claude"`, "")
	s.run(t, "task", "ls", "--server", url, "--creds", creds("claude"), "--as", "operator").check(t, codeExit(subjects.CodeForbidden), "", "forbidden")
	s.run(t, "task", "ls", "--server", url).check(t, codeExit(subjects.CodeAuthFailed), "", "auth_failed")
	s.run(t, "task", "ls", "--server", url, "--creds", creds("nobody")).check(t, exitUsage, "", "nobody.creds")
	s.run(t, "auth", "push", "--auth", dir, "--server", url).check(t, 0, "", "")
}

// A file of secrets that others may read is refused, with its name, its mode and
// what to do.
func TestSecretFilesArePrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("whatever-it-is-0123456789\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	want := path + " has mode 0640; chmod 600 " + path
	s := newShell(t)
	for _, args := range [][]string{
		{"task", "ls", "--creds", path},
		{"task", "ls", "--nkey", path},
		{"task", "ls", "--tlskey", path},
		{"up", "--http-key", path},
		{"up", "--a2a-key", path},
		{"up", "--a2a-tokens", path},
		{"up", "--a2e-tokens", path},
	} {
		s.run(t, args...).check(t, exitUsage, "", want)
	}
	variables := 0
	for _, v := range settings(&config{}) {
		for _, f := range secretFlags {
			if v.flag == f {
				variables++
				newShell(t, v.env+"_FILE="+path).run(t, "version").check(t, exitUsage, "", v.env+"_FILE: ")
				newShell(t, v.env+"_FILE="+path).run(t, "version").check(t, exitUsage, "", want)
				newShell(t, v.env+"_FILE="+path, v.env+"=x").run(t, "version").check(t, exitUsage, "", "are both set")
				newShell(t, v.env+"_FILE="+path+"0").run(t, "version").check(t, exitUsage, "", path+"0")
			}
		}
	}
	if variables != len(secretFlags) {
		t.Errorf("%d variables, want %d", variables, len(secretFlags))
	}
	home := newShell(t)
	file := filepath.Join(home.home(), ".config", "parley", "config.json")
	for text, bad := range map[string]bool{`{"password":"x"}`: true, `{"log_level":"info"}`: false} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, 0o644); err != nil {
			t.Fatal(err)
		}
		if got := home.run(t, "version"); (got.code != 0) != bad || bad && !strings.Contains(got.stderr, "mode 0644; chmod 600") {
			t.Errorf("%s: exit %d %s", text, got.code, got.stderr)
		}
	}
	hooks := filepath.Join(t.TempDir(), "webhooks.json")
	if err := os.WriteFile(hooks, []byte(`{"endpoints":[{"name":"x","url":"https://example.com","secret_file":"`+path+`"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, "up", "--port", "-1", "--http", "off", "--sync", "1m", "--webhooks-file", hooks).check(t, exitUsage, "", want)
}

// No setting that names a file of secrets is left out of those that are looked
// at.
func TestSecretFilesAreListed(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`^file with .*\b(credentials|key|keys|seed|secret|secrets|token|tokens)\b`)
	for _, v := range settings(&config{}) {
		if secret.MatchString(v.desc) && !slices.Contains(secretFiles, v.flag) {
			t.Errorf("--%s is a %s, and everybody may read it", v.flag, v.desc)
		}
	}
}

// A secret in a file counts as one in the environment, without its newline.
func TestSecretsFromFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("pass word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loadConfig(&process{environ: []string{"HOME=" + t.TempDir(), "PARLEY_PASSWORD_FILE=" + path}})
	if err != nil || c.Password != "pass word" {
		t.Errorf("the password is %q, %v", c.Password, err)
	}
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadConfig(&process{environ: []string{"HOME=" + t.TempDir(), "PARLEY_PASSWORD_FILE=" + path}}); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("an empty file: %v", err)
	}
	s := newShell(t)
	s.run(t, "task", "ls", "--password", "canary", "--server", "nats://127.0.0.1:1").check(t, codeExit(subjects.CodeUnavailable), "", "PARLEY_PASSWORD_FILE")
}
