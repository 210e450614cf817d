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
	for path, set := range map[string]*regexp.Regexp{
		"../../deploy/systemd/nats.env":       regexp.MustCompile(`(?m)^(NATS_[A-Z0-9_]+)=`),
		"../../deploy/container/compose.yaml": regexp.MustCompile(`(?m)^    (NATS_[A-Z0-9_]+): `),
	} {
		var got []string
		for _, m := range set.FindAllStringSubmatch(read(t, path), -1) {
			got = append(got, m[1])
		}
		slices.Sort(got)
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
	if out, err := exec.CommandContext(t.Context(), "sh", script, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(read(t, filepath.Join(dir, "ca.crt")))) {
		t.Fatal("no authority")
	}
	for _, name := range []string{"n1", "n2", "n3", "localhost", "127.0.0.1"} {
		for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := exec.CommandContext(t.Context(), "sh", script, dir).Run(); err == nil {
		t.Error("a second run replaces the authority")
	}
}
