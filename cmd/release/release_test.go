package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReproducible builds the release of this platform twice, the second time
// from a copy of the source elsewhere, where somebody has tried out a fleet, and
// wants the same bytes.
func TestReproducible(t *testing.T) {
	t.Parallel()
	here, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for _, part := range []string{"bus", "cmd", "escalation", "subjects", "workers"} {
		if err := os.CopyFS(filepath.Join(elsewhere, part), os.DirFS(filepath.Join(here, part))); err != nil {
			t.Fatal(err)
		}
	}
	copied := []string{"go.mod", "go.sum", "LICENSE", "README.md", "CHANGELOG.md", ".gitignore"}
	copied = append(copied, strings.Split(strings.Trim(git(t, here, "ls-files", "-z", "deploy", "docs"), "\x00"), "\x00")...)
	for _, name := range copied {
		write(t, filepath.Join(elsewhere, name), read(t, filepath.Join(here, name)))
	}
	git(t, elsewhere, "init", "--quiet")
	for _, name := range []string{"ca.key", "ca.crt", "server.key", "server.crt"} { // of certificates.sh
		write(t, filepath.Join(elsewhere, "deploy", "container", "tls", name), []byte("secret"))
	}
	write(t, filepath.Join(elsewhere, "deploy", "nats", "own.key"), []byte("secret"))
	git(t, elsewhere, "add", ".")
	write(t, filepath.Join(elsewhere, "deploy", "systemd", "own.env"), []byte("secret"))
	var outs []string
	for i, source := range []string{here, elsewhere} {
		out := filepath.Join(t.TempDir(), fmt.Sprint("dist", i))
		args := []string{"-source", source, "-out", out, "-version", "v1.2.3", "-epoch", "1767225600", "-platforms", runtime.GOOS + "/" + runtime.GOARCH}
		if err := run(t.Context(), args, io.Discard); err != nil {
			t.Fatal(err)
		}
		outs = append(outs, out)
	}
	name := fmt.Sprintf("parley_1.2.3_%s_%s", runtime.GOOS, runtime.GOARCH)
	want := []string{"SHA256SUMS", name + ".cdx.json", name + ".tar.gz"}
	if got := list(t, outs[0]); !slices.Equal(got, want) {
		t.Fatalf("a release consists of %q, want %q", got, want)
	}
	for _, f := range want {
		a, b := read(t, filepath.Join(outs[0], f)), read(t, filepath.Join(outs[1], f))
		if !bytes.Equal(a, b) {
			t.Errorf("%s is not the same twice", f)
		}
	}
	sums := string(read(t, filepath.Join(outs[0], "SHA256SUMS")))
	for _, f := range want[1:] {
		if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(read(t, filepath.Join(outs[0], f))), f); !strings.Contains(sums, line) {
			t.Errorf("SHA256SUMS has no line %q:\n%s", line, sums)
		}
	}
	contents(t, filepath.Join(outs[0], name+".tar.gz"), name, here)
	installed(t, filepath.Join(outs[0], name+".tar.gz"), name)
	billOf(t, filepath.Join(outs[0], name+".cdx.json"))
}

// contents checks what is in an archive.
func contents(t *testing.T, path, root, here string) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(read(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*tar.Header{}
	archive := tar.NewReader(z)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, root+"/")] = h
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == root+"/deploy/helm/parley/Chart.yaml" && !bytes.Contains(data, []byte("\nappVersion: \"v1.2.3\"\n")) {
			t.Errorf("the chart is of another version:\n%s", data)
		}
		if strings.HasPrefix(h.Name, root+"/man/") && (bytes.Contains(data, []byte("parley-release-")) || bytes.Contains(data, []byte(here))) {
			t.Errorf("%s names a path of the machine that built it", h.Name)
		}
		if h.Uid != 0 || h.Uname != "" || !h.ModTime.Equal(time.Unix(1767225600, 0)) {
			t.Errorf("%s says who made it, and when: %+v", h.Name, h)
		}
	}
	for _, f := range []string{
		"parley", "LICENSE", "README.md", "completion/parley.bash", "completion/_parley", "completion/parley.fish",
		"completion/parley.ps1", "man/man1/parley.1", "man/man1/parley-task-send.1", "deploy/nats/cluster.conf", "deploy/systemd/parley.service",
		"deploy/install.sh", "deploy/container/certificates.sh", "deploy/helm/parley/Chart.yaml", "docs/guide/operations.md",
	} {
		if h := files[f]; h == nil || h.Size == 0 {
			t.Errorf("the archive has no %s", f)
		}
	}
	for _, f := range []string{"parley", "deploy/install.sh"} {
		if h := files[f]; h != nil && h.Mode != 0o755 {
			t.Errorf("%s has mode %o", f, h.Mode)
		}
	}
}

// installed unpacks an archive, installs what is in it as install.sh does, and
// runs it.
func installed(t *testing.T, path, root string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("install.sh is not for Windows")
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", path, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, root, "deploy", "install.sh"), "/usr")
	cmd.Env = append(os.Environ(), "DESTDIR="+filepath.Join(dir, "there"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "parley v1.2.3 ") {
		t.Fatalf("install.sh: %v\n%s", err, out)
	}
	for _, f := range []string{
		"bin/parley", "share/man/man1/parley.1", "share/man/man1/parley-task-send.1", "share/bash-completion/completions/parley",
		"share/zsh/site-functions/_parley", "share/fish/vendor_completions.d/parley.fish",
	} {
		if _, err := os.Stat(filepath.Join(dir, "there", "usr", f)); err != nil {
			t.Error(err)
		}
	}
	cmd = exec.CommandContext(t.Context(), filepath.Join("..", "..", "deploy", "install.sh"), dir)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "unpack an archive") {
		t.Errorf("outside of an archive: %v\n%s", err, out)
	}
}

// billOf checks that a bill of materials has the modules of the program.
func billOf(t *testing.T, path string) {
	t.Helper()
	var b bill
	if err := json.Unmarshal(read(t, path), &b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"std", "github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2"} {
		if !slices.ContainsFunc(b.Components, func(c component) bool {
			return c.Name == want && c.Version != "" && (want == "std" || len(c.Hashes) == 1)
		}) {
			t.Errorf("the bill of materials lacks %s", want)
		}
	}
	if b.Metadata.Component.Version != "v1.2.3" || len(b.Depends) != 1 || len(b.Depends[0].On) != len(b.Components) {
		t.Errorf("a strange bill: %+v", b.Metadata)
	}
}

// Whoever types nonsense is told.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"-version", "v1"}, {"-version", "v1", "-epoch", "1", "more"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("run(%q) did not fail", args)
		}
	}
}

// TestWriteZip is for the platform whose archive the other test does not make.
func TestWriteZip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := []entry{{"x/parley.exe", filepath.Join(dir, "a"), true}}
	if err := os.WriteFile(files[0].path, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	var sums [][sha256.Size]byte
	for _, name := range []string{"1.zip", "2.zip"} {
		if err := writeZip(filepath.Join(dir, name), files, time.Unix(1767225600, 0).UTC()); err != nil {
			t.Fatal(err)
		}
		sums = append(sums, sha256.Sum256(read(t, filepath.Join(dir, name))))
	}
	if sums[0] != sums[1] {
		t.Error("the same files make two different archives")
	}
}

// git does something in a clone, and is what it prints.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git on this machine")
	}
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "safe.directory=*"}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %q in %s: %v", args, dir, err)
	}
	return string(out)
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
