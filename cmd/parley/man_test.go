package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestManPages(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	dir := filepath.Join(s.home(), "new", "man1")
	s.run(t, "man", dir).check(t, 0, "", "")
	for page, want := range map[string]string{
		"parley.1": "Every acknowledged task ends exactly once", "parley-task-send.1": "idempotency key",
		"parley-agent-run.1": "--max-parallel", "parley-completion-bash.1": "autocompletion script",
	} {
		data, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			t.Error(err)
		} else if text := strings.ReplaceAll(string(data), "\\", ""); !strings.Contains(text, want) {
			t.Errorf("%s has no %q:\n%s", page, want, text)
		}
	}
	s.run(t, "man").check(t, exitUsage, "", "parley man --help")
	s.run(t, "man", "/dev/null/x").check(t, exitUsage, "", "make the directory")
}
