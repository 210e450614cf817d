package escalation

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestChangeLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "CHANGE.log")
	l := &changeLog{path: path}
	defer l.close()
	add := func(line, mark string) {
		t.Helper()
		if err := l.append([]byte(line), mark); err != nil {
			t.Fatal(err)
		}
	}
	add(`{"id":"t/1"}`, "")
	add(`{"id":"t/1"}`, `"id":"t/1"`) // a repeat
	add(`{"id":"t/2"}`, `"id":"t/2"`)
	if got, want := content(t, path), "{\"id\":\"t/1\"}\n{\"id\":\"t/2\"}\n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	// Rotated away: the next line is in a new file of that name.
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	add("3", "")
	if got := content(t, path); got != "3\n" {
		t.Errorf("after a rotation = %q", got)
	}
	// Somebody crashed in the middle of a line.
	if err := os.WriteFile(path, []byte("4\nhal"), 0o600); err != nil {
		t.Fatal(err)
	}
	add("5", "")
	if got := content(t, path); got != "4\nhal\n5\n" {
		t.Errorf("after half a line = %q", got)
	}
	begun := &changeLog{path: l.path} // of a worker that has just begun
	defer begun.close()
	if lines, _, err := begun.status(); lines != 3 || err != nil {
		t.Errorf("another process counts %d lines, %v, want 3", lines, err)
	}
	if lines, failed, err := l.status(); lines != 3 || failed != 0 || err != nil {
		t.Errorf("status = %d lines, %d failed, %v", lines, failed, err)
	}
}

// TestChangeLogTogether: writers in several processes keep lines whole.
func TestChangeLogTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "CHANGE.log")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			l := &changeLog{path: path}
			defer l.close()
			for n := range 25 {
				if err := l.append(fmt.Appendf(nil, "%d/%d %s", i, n, strings.Repeat("x", 2000)), ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	lines := strings.Split(strings.TrimSuffix(content(t, path), "\n"), "\n")
	if len(lines) != 100 {
		t.Errorf("%d lines, want 100", len(lines))
	}
	for _, line := range lines {
		if !strings.HasSuffix(line, strings.Repeat("x", 2000)) || len(line) > 2010 {
			t.Errorf("line %.40q… is not whole", line)
		}
	}
}

// TestChangeLogMarkTogether: writers in several processes that know the same
// alert write it once.
func TestChangeLogMarkTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "CHANGE.log")
	var wrong strings.Builder
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			l := &changeLog{path: path}
			defer l.close()
			for n := range 25 {
				mark := fmt.Sprintf(`"id":"t/%d"`, n)
				if err := l.append(fmt.Appendf(nil, "{%s,%q:%d}", mark, "by", i), mark); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for n := range 25 {
		if got := strings.Count(content(t, path), fmt.Sprintf(`"id":"t/%d"`, n)); got != 1 {
			fmt.Fprintf(&wrong, "t/%d: %d lines, want 1\n", n, got)
		}
	}
	if wrong.Len() > 0 {
		t.Error(wrong.String())
	}
}

// TestChangeLogBroken: what cannot be written is an error and counted, and the
// next line is tried again. A directory stands for a disk that refuses, since
// root may write what is read-only; a full disk is /dev/full.
func TestChangeLogBroken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "CHANGE.log")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	l := &changeLog{path: path}
	defer l.close()
	if err := l.append([]byte("1"), ""); err == nil {
		t.Error("a line was written into a directory")
	}
	if _, failed, err := l.status(); failed != 1 || err == nil {
		t.Errorf("status = %d failed, %v", failed, err)
	}
	w := &Worker{lines: l, view: newView()}
	if f := w.Figures(); f.LogFailures != 1 {
		t.Errorf("figures %+v, want one line that could not be written", f)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := l.append([]byte("2"), ""); err != nil {
		t.Errorf("once the disk is back: %v", err)
	}
	if _, err := os.Stat("/dev/full"); err == nil {
		full := &changeLog{path: "/dev/full"}
		defer full.close()
		if err := full.append([]byte("1"), ""); err == nil {
			t.Error("a line was written onto a full disk")
		}
	}
	if err := (&changeLog{}).append([]byte("1"), ""); err != nil {
		t.Errorf("no log at all: %v", err)
	}
}
