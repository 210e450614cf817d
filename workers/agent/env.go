package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// allowedEnv is what a child process may see of the environment it is given,
// beyond what is configured. A star at the end stands for any rest.
var allowedEnv = []string{"PATH", "HOME", "LANG", "LC_*", "TZ", "TERM", "USER", "SHELL", "TMPDIR"}

// deniedEnv is what it never sees: with CLAUDECODE set, Claude Code believes
// that it runs inside itself.
var deniedEnv = []string{"CLAUDECODE"}

// childEnv is what of env (NAME=value) a child process gets: the allow-list of
// the package, and names that match allow. Of a name that is there twice the
// last counts.
func childEnv(env, allow []string) []string {
	out := []string{}
	at := map[string]int{}
	for _, kv := range env {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || name == "" || slices.Contains(deniedEnv, name) || !matches(name, allowedEnv) && !matches(name, allow) {
			continue
		}
		if i, seen := at[name]; seen {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}

func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, star := strings.CutSuffix(p, "*")
		return name == p || star && strings.HasPrefix(name, prefix)
	})
}

// lookEnv is the value of name in env; the last counts.
func lookEnv(env []string, name string) (string, bool) {
	for _, kv := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// expandEnv replaces ${NAME} and ${NAME:-otherwise} by what env says. A name
// that is not there is an error, as a server that is asked with an empty key
// fails in ways that nobody understands.
func expandEnv(s string, env []string) (string, error) {
	var missing []string
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "${")
		name, after, closed := strings.Cut(rest, "}")
		if !ok || !closed {
			b.WriteString(s)
			break
		}
		b.WriteString(before)
		name, otherwise, has := strings.Cut(name, ":-")
		value, there := lookEnv(env, name)
		switch {
		case there && (value != "" || !has):
			b.WriteString(value)
		case has:
			b.WriteString(otherwise)
		default:
			missing = append(missing, name)
		}
		s = after
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("the environment has no %s", strings.Join(missing, ", "))
	}
	return b.String(), nil
}

// defaultPath is where commands are looked for when env has no PATH.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

var errNotFound = errors.New("command not found")

// lookPath finds the file of a command: as a shell would, by the PATH of env.
func lookPath(command string, env []string) (string, error) {
	if strings.ContainsRune(command, filepath.Separator) {
		path, err := filepath.Abs(command)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", command, err)
		}
		return path, executable(path)
	}
	path, ok := lookEnv(env, "PATH")
	if !ok {
		path = defaultPath
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if file := filepath.Join(dir, command); executable(file) == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("%w: %s (looked in %s)", errNotFound, command, path)
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errNotFound, err)
	case info.IsDir() || !isExecutable(info):
		return fmt.Errorf("%w: %s is not executable", errNotFound, path)
	}
	return nil
}
