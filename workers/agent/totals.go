package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	keepTotals = 30 * 24 * time.Hour // how long the total of a session is of use
	maxTotals  = 4096                // sessions whose totals are in memory
)

// totals remembers what a tool said last of the total use of each of its
// sessions. A tool that resumes a session tells the total, not what it has
// spent since. With a directory the totals outlive the process.
type totals struct {
	dir string // "" for none

	mu    sync.Mutex
	last  map[string]spent // by file name
	swept bool
}

func newTotals(dir string) *totals { return &totals{dir: dir, last: map[string]spent{}} }

// since is what was spent since the last total of the session: the difference,
// or all of it where the figures have become smaller, since the tool then
// counts from zero again.
func (t *totals) since(total *spent) *spent {
	if total == nil || !total.cumulative || total.Session == "" {
		return total
	}
	t.mu.Lock()
	last, known := t.read(totalsFile(total))
	t.mu.Unlock()
	if !known || total.Input < last.Input || total.Output < last.Output || total.CacheCreation < last.CacheCreation || total.CacheRead < last.CacheRead {
		return total
	}
	s := *total
	s.Input -= last.Input
	s.Output -= last.Output
	s.CacheCreation -= last.CacheCreation
	s.CacheRead -= last.CacheRead
	if s.CostUSD >= last.CostUSD {
		s.CostUSD -= last.CostUSD
	}
	return &s
}

// keep remembers the total of a session.
func (t *totals) keep(total *spent) error {
	if total == nil || !total.cumulative || total.Session == "" {
		return nil
	}
	name := totalsFile(total)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.last) >= maxTotals {
		clear(t.last)
	}
	t.last[name] = *total
	if t.dir == "" {
		return nil
	}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	if !t.swept {
		t.swept = true
		t.sweep(time.Now())
	}
	data, err := json.Marshal(total)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(t.dir, name), data)
}

// read is the last total that was kept under name.
func (t *totals) read(name string) (s spent, known bool) {
	if s, known = t.last[name]; known || t.dir == "" {
		return s, known
	}
	data, err := os.ReadFile(filepath.Join(t.dir, name))
	return s, err == nil && json.Unmarshal(data, &s) == nil
}

// sweep removes the totals of sessions that nobody resumes any more.
func (t *totals) sweep(now time.Time) {
	list, err := os.ReadDir(t.dir)
	if err != nil {
		return
	}
	for _, e := range list {
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) > keepTotals {
			_ = os.Remove(filepath.Join(t.dir, e.Name()))
		}
	}
}

// totalsFile names the file of a session's total. What a session is called is
// the tool's choice.
func totalsFile(s *spent) string {
	sum := sha256.Sum256([]byte(s.Tool + "\x00" + s.Session))
	return hex.EncodeToString(sum[:16]) + ".json"
}

// writeFile writes a file whole or not at all.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
