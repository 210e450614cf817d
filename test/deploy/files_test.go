package deploy_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// tool is the path of a program that a test is made of.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s on this machine", name)
	}
	return path
}

// systemd itself reads the units, and judges how well they are confined.
func TestUnits(t *testing.T) {
	t.Parallel()
	analyze := tool(t, "systemd-analyze")
	units, err := filepath.Glob("../../deploy/systemd/*.service")
	if err != nil || len(units) != 2 {
		t.Fatalf("units: %q, %v", units, err)
	}
	start := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/(parley serve|nats-server -c /etc/nats/nats\.conf)$`)
	for _, unit := range units {
		text := read(t, unit)
		if len(start.FindAllString(text, -1)) != 1 {
			t.Errorf("%s starts something strange", unit)
		}
		// The programs need not be installed here, nor their pages.
		path := filepath.Join(t.TempDir(), filepath.Base(unit))
		if err := os.WriteFile(path, []byte(start.ReplaceAllString(text, "ExecStart=/bin/true")), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
		if out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=15", path).CombinedOutput(); err != nil {
			t.Errorf("%s is exposed more than 1.5 of 10: %v\n%s", unit, err, out)
		}
	}
}

// What the first lines of the units say to do puts in place what they and their
// variables name, for those who have to read it.
func TestUnitsAreInstalled(t *testing.T) {
	t.Parallel()
	from, root := t.TempDir(), t.TempDir()
	if err := os.CopyFS(filepath.Join(from, "deploy"), os.DirFS("../../deploy")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.crt", "server.crt", "server.key"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "etc", "systemd", "system"), 0o700); err != nil {
		t.Fatal(err)
	}
	here := regexp.MustCompile(`(?m)^#   ((?:mkdir|cp|ln|install) .*)$`)
	for _, unit := range []string{"nats", "parley"} {
		var script strings.Builder
		script.WriteString("set -eu\numask 022\n")
		for _, m := range here.FindAllStringSubmatch(read(t, "../../deploy/systemd/"+unit+".service"), -1) {
			script.WriteString(strings.ReplaceAll(m[1], " /etc/", " "+root+"/etc/") + "\n")
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script.String())
		cmd.Dir = from
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s\n%s", unit, err, script.String(), out)
		}
		if got := read(t, filepath.Join(root, "etc", "systemd", "system", unit+".service")); got != read(t, "../../deploy/systemd/"+unit+".service") {
			t.Errorf("systemd has another %s.service", unit)
		}
	}
	if conf := read(t, filepath.Join(root, "etc", "nats", "nats.conf")); !strings.Contains(conf, "\ninclude cluster.conf\n") {
		t.Errorf("nats-server is started with\n%s", conf)
	}
	for path, mode := range map[string]os.FileMode{
		"nats/nats.env":   0o600,
		"nats/tls/ca.crt": 0o644, "nats/tls/server.crt": 0o644, "nats/tls/server.key": 0o400,
		"parley": 0o755, "parley/parley.env": 0o600,
		// parley.service is nobody's of this machine
		strings.TrimPrefix(variable(t, "../../deploy/systemd/parley.env", "PARLEY_TLSCA"), "/etc/"): 0o644,
	} {
		if info, err := os.Stat(filepath.Join(root, "etc", path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %o", path, info, err, mode)
		}
	}
}

// variable is what a file of variables has for a name.
func variable(t *testing.T, path, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `=(.*)$`).FindStringSubmatch(read(t, path))
	if m == nil {
		t.Fatalf("%s has no %s", path, name)
	}
	return m[1]
}

// Keys that the script makes where the guide has it make them are for nobody
// else: not in a commit, not in an image.
func TestKeysStayHere(t *testing.T) {
	t.Parallel()
	git := tool(t, "git")
	if _, err := os.Stat("../../.git"); err != nil {
		t.Skip("this is no clone")
	}
	ignored := strings.Fields(read(t, "../../.dockerignore"))
	for _, m := range regexp.MustCompile(`(?m)certificates\.sh ([\w/.-]+)`).FindAllStringSubmatch(read(t, "../../docs/guide/operations.md"), -1) {
		key := m[1] + "/ca.key"
		cmd := exec.CommandContext(t.Context(), git, "-c", "safe.directory=*", "check-ignore", "--quiet", key)
		cmd.Dir = "../.."
		if err := cmd.Run(); err != nil {
			t.Errorf("git add takes %s: %v", key, err)
		}
		if !slices.Contains(ignored, m[1]) && !slices.Contains(ignored, "**/*.key") {
			t.Errorf("an image is built with %s", key)
		}
	}
}

// nats.env, the values of the unit, and compose.yaml set what the configurations
// ask for.
func TestVariablesAreNamed(t *testing.T) {
	t.Parallel()
	asked := regexp.MustCompile(`\$(NATS_[A-Z0-9_]+)`)
	var want []string
	for _, m := range asked.FindAllStringSubmatch(read(t, "../../deploy/nats/accounts.conf")+read(t, "../../deploy/nats/callout.conf")+read(t, "../../deploy/nats/cluster.conf"), -1) {
		want = append(want, m[1])
	}
	slices.Sort(want)
	want = slices.Compact(want)
	const leafs = "NATS_EDGE1_SEED" // the cluster's servers do not have it
	for path, set := range map[string]*regexp.Regexp{
		"../../deploy/systemd/nats.env":       regexp.MustCompile(`(?m)^#(NATS_[A-Z0-9_]+)=$`), // one that is set and empty is a password
		"../../deploy/container/compose.yaml": regexp.MustCompile(`(?m)^    (NATS_[A-Z0-9_]+): `),
	} {
		var got []string
		for _, m := range set.FindAllStringSubmatch(read(t, path), -1) {
			got = append(got, m[1])
		}
		slices.Sort(got)
		got = slices.DeleteFunc(got, func(name string) bool { return name == leafs })
		if !slices.Equal(got, want) {
			t.Errorf("%s sets %q, the configurations ask for %q", path, got, want)
		}
	}
}

// The image is the static program alone, and not root's. No container engine is
// needed to see that.
func TestContainerfile(t *testing.T) {
	t.Parallel()
	text := read(t, "../../deploy/container/Containerfile")
	build, final, ok := strings.Cut(text, "\nFROM scratch\n")
	if !ok || strings.Contains(final, "\nFROM ") || strings.Contains(final, "\nRUN ") {
		t.Fatal("the image is not made from scratch")
	}
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "./cmd/parley"} {
		if !strings.Contains(build, want) {
			t.Errorf("the program is built without %s", want)
		}
	}
	for _, want := range []string{"\nUSER 65532:65532\n", "\nENTRYPOINT [\"/parley\"]\n", "COPY --from=build /out/parley /parley\n"} {
		if !strings.Contains(final, want) {
			t.Errorf("the image has no %q", strings.TrimSpace(want))
		}
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../../go.mod"))
	if version == nil || !strings.Contains(build, "golang:"+version[1]+" ") {
		t.Errorf("the image is built with another Go than go.mod names (%q)", version)
	}
	// The context has what the build needs.
	ignored := strings.Fields(regexp.MustCompile(`(?m)^#.*`).ReplaceAllString(read(t, "../../.dockerignore"), ""))
	for _, needed := range []string{"bus", "cmd", "escalation", "subjects", "workers", "go.mod", "go.sum"} {
		if slices.Contains(ignored, needed) {
			t.Errorf(".dockerignore leaves %s out", needed)
		}
	}
}

// The script makes certificates that the servers' names, clients and routes do
// with.
func TestCertificates(t *testing.T) {
	t.Parallel()
	tool(t, "openssl")
	dir := filepath.Join(t.TempDir(), "tls")
	script := "../../deploy/container/certificates.sh"
	certified(t, []string{script, dir}, "n1", "n2", "n3", "localhost", "127.0.0.1")
	if err := exec.CommandContext(t.Context(), "sh", script, dir).Run(); err == nil {
		t.Error("a second run replaces the authority")
	}
	// The servers of Kubernetes, as the guide has them named.
	guided := regexp.MustCompile(`(?m)certificates\.sh \S+ (nats .*)$`).FindStringSubmatch(read(t, "../../docs/guide/operations.md"))
	if guided == nil {
		t.Fatal("the guide names no servers of Kubernetes")
	}
	names := strings.Fields(guided[1])
	if want := []string{"nats", "nats-0.nats-headless", "nats-1.nats-headless", "nats-2.nats-headless"}; !slices.Equal(names, want) {
		t.Errorf("the guide names %q, the NATS chart %q", names, want)
	}
	certified(t, append([]string{script, filepath.Join(t.TempDir(), "tls")}, names...), names...)
}

// certified runs the script with what follows its name, a directory first, and
// checks that what it made there is good for servers of these names.
func certified(t *testing.T, command []string, names ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "sh", command...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := command[1]
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(read(t, filepath.Join(dir, "ca.crt")))) {
		t.Fatal("no authority")
	}
	for _, name := range names {
		for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
