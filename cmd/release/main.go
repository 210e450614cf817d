// Command release builds what a release consists of: for each platform an
// archive with the program, shell completion, manual pages and what Git knows of
// the folders deploy and docs, its bill of materials (CycloneDX), and the checksums
// of all. The same source, version, time and Go make the same bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

const platforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

// release is what to build.
type release struct {
	source  string // the module's root
	out     string
	version string
	when    time.Time // of everything in the archives
	work    string    // for what goes into them
	log     io.Writer
}

func run(ctx context.Context, args []string, log io.Writer) (err error) {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	r := release{log: log}
	flags.StringVar(&r.source, "source", ".", "root of the module")
	flags.StringVar(&r.out, "out", "dist", "directory to write to; it is made new")
	flags.StringVar(&r.version, "version", "", "version, such as v1.2.3 (required)")
	epoch := flags.Int64("epoch", 0, "time of what is in the archives, in seconds since 1970 (required)")
	list := flags.String("platforms", platforms, "platforms, as os/arch, comma separated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if r.version == "" || *epoch <= 0 || flags.NArg() > 0 {
		return errors.New("give -version and -epoch, and nothing else without a dash")
	}
	r.when = time.Unix(*epoch, 0).UTC()
	if r.work, err = os.MkdirTemp("", "parley-release-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.work)) }()
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil { //nolint:gosec // for everybody to read
		return err
	}
	shared, err := r.shared(ctx)
	if err != nil {
		return err
	}
	for p := range strings.SplitSeq(*list, ",") {
		goos, goarch, ok := strings.Cut(p, "/")
		if !ok {
			return fmt.Errorf("platform %q: expected os/arch", p)
		}
		if err := r.platform(ctx, goos, goarch, shared); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return checksums(r.out)
}

// host is the program for the platform that builds.
func (r *release) host() string {
	if runtime.GOOS == "windows" {
		return filepath.Join(r.work, "host.exe")
	}
	return filepath.Join(r.work, "host")
}

// build compiles the program for a platform.
func (r *release) build(ctx context.Context, goos, goarch, path string) error {
	return r.command(ctx, []string{"CGO_ENABLED=0", "GOOS=" + goos, "GOARCH=" + goarch, "GOFLAGS=", "GOWORK=off"}, "go",
		"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= -X main.version="+r.version, "-o", path, "./cmd/parley")
}

// command runs a program in the source.
func (r *release) command(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = r.source
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return nil
}

// shared collects what every archive has beside the program, by path in the
// archive.
func (r *release) shared(ctx context.Context) (map[string]string, error) {
	files := map[string]string{}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		files[name] = filepath.Join(r.source, name)
	}
	host := r.host()
	if err := r.build(ctx, runtime.GOOS, runtime.GOARCH, host); err != nil {
		return nil, err
	}
	// Pages say where things are kept by default: not where this user's are.
	env := []string{"HOME=~", "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "SOURCE_DATE_EPOCH=" + strconv.FormatInt(r.when.Unix(), 10)}
	if err := r.command(ctx, env, host, "man", filepath.Join(r.work, "man")); err != nil {
		return nil, err
	}
	if err := under(files, filepath.Join(r.work, "man"), "man/man1"); err != nil {
		return nil, err
	}
	for shell, name := range map[string]string{"bash": "parley.bash", "zsh": "_parley", "fish": "parley.fish", "powershell": "parley.ps1"} {
		cmd := exec.CommandContext(ctx, host, "completion", shell)
		cmd.Env = append(os.Environ(), env...)
		script, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("completion %s: %w", shell, err)
		}
		path := filepath.Join(r.work, name)
		if err := os.WriteFile(path, script, 0o600); err != nil {
			return nil, err
		}
		files["completion/"+name] = path
	}
	for _, dir := range []string{"deploy", "docs"} {
		if err := r.tracked(ctx, files, dir); err != nil {
			return nil, err
		}
	}
	return files, r.stamp(files)
}

// tracked adds the files of a directory of the source that Git knows. What else
// lies there, such as the keys of a fleet that somebody tried out, is theirs alone.
func (r *release) tracked(ctx context.Context, files map[string]string, dir string) error {
	// The clone may belong to another user.
	cmd := exec.CommandContext(ctx, "git", "-c", "safe.directory=*", "ls-files", "-z", "--", dir)
	cmd.Dir = r.source
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: a release is made in a clone, where Git says what belongs to it: %w", dir, err)
	}
	if len(out) == 0 {
		return fmt.Errorf("no file of %s is in Git", dir)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		files[name] = filepath.Join(r.source, filepath.FromSlash(name))
	}
	return nil
}

// stamp has the Helm chart say which version it is of, and so which image it runs.
func (r *release) stamp(files map[string]string) error {
	const name, unknown = "deploy/helm/parley/Chart.yaml", "\nappVersion: dev\n"
	data, err := os.ReadFile(files[name])
	if err != nil {
		return err
	}
	before, after, ok := strings.Cut(string(data), unknown)
	if !ok {
		return fmt.Errorf("%s has no line %q", name, strings.TrimSpace(unknown))
	}
	files[name] = filepath.Join(r.work, "Chart.yaml")
	return os.WriteFile(files[name], fmt.Appendf(nil, "%s\nappVersion: %q\n%s", before, r.version, after), 0o600)
}

// under adds all files of a directory.
func under(files map[string]string, dir, as string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files[as+"/"+filepath.ToSlash(rel)] = path
		return err
	})
}

// platform makes the archive and the bill of materials of one platform.
func (r *release) platform(ctx context.Context, goos, goarch string, shared map[string]string) error {
	name := fmt.Sprintf("parley_%s_%s_%s", strings.TrimPrefix(r.version, "v"), goos, goarch)
	program := "parley"
	if goos == "windows" {
		program += ".exe"
	}
	binary := r.host()
	if goos != runtime.GOOS || goarch != runtime.GOARCH {
		binary = filepath.Join(r.work, name)
		if err := r.build(ctx, goos, goarch, binary); err != nil {
			return err
		}
	}
	var files []entry
	for as, path := range shared {
		files = append(files, entry{name + "/" + as, path, strings.HasSuffix(as, ".sh")})
	}
	files = append(files, entry{name + "/" + program, binary, true})
	slices.SortFunc(files, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	write, suffix := writeTar, ".tar.gz"
	if goos == "windows" {
		write, suffix = writeZip, ".zip"
	}
	if err := write(filepath.Join(r.out, name+suffix), files, r.when); err != nil {
		return err
	}
	if err := r.bill(binary, filepath.Join(r.out, name+".cdx.json")); err != nil {
		return err
	}
	fmt.Fprintln(r.log, name+suffix)
	return nil
}
