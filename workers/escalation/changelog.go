package escalation

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
)

// changeLog appends lines to a file that others may rotate, and that may be
// away, full or read-only. Its zero value, without a path, keeps nothing.
type changeLog struct {
	path   string
	failed atomic.Uint64

	mu      sync.Mutex // guards all below
	file    *os.File
	lines   uint64 // in the file, up to counted
	counted int64
	err     error // of the last try
}

// lookBack is how much of the end of the file is searched for a line that may
// be there already.
const lookBack = 1 << 20

// append writes line, which has no line end, and waits for the disk. With mark,
// nothing is written if the file's end has it.
func (l *changeLog) append(line []byte, mark string) error {
	if l.path == "" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.write(line, mark)
	if l.err = err; err != nil {
		l.failed.Add(1)
		l.shut()
		return fmt.Errorf("append to %s: %w", l.path, err)
	}
	return nil
}

// write holds the file's lock from the look at its end to the end of the line:
// otherwise another process could read half of what this one writes, or both
// could miss each other's mark.
func (l *changeLog) write(line []byte, mark string) error {
	if err := l.open(); err != nil {
		return err
	}
	if err := lock(l.file); err != nil {
		return err
	}
	defer unlock(l.file)
	look := int64(1) // whether the last line has its end
	if mark != "" {
		look = lookBack
	}
	end, err := l.end(look)
	if err != nil {
		return err
	}
	if mark != "" && bytes.Contains(end, []byte(mark)) {
		return nil
	}
	if n := len(end); n > 0 && end[n-1] != '\n' {
		line = append([]byte{'\n'}, line...) // somebody crashed in the middle of a line
	}
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return l.file.Sync()
}

// open opens the file, again if it is not the one of that name any more.
func (l *changeLog) open() error {
	if l.file != nil {
		was, err1 := l.file.Stat()
		is, err2 := os.Stat(l.path)
		if err1 == nil && err2 == nil && os.SameFile(was, is) {
			return nil
		}
		l.shut()
	}
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	l.file = f
	return nil
}

// end is the end of the file, at most so many bytes of it.
func (l *changeLog) end(most int64) ([]byte, error) {
	info, err := l.file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil
	}
	buf := make([]byte, min(info.Size(), most))
	n, err := l.file.ReadAt(buf, info.Size()-int64(len(buf)))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return buf[:n], nil
}

func (l *changeLog) shut() {
	if l.file != nil {
		_ = l.file.Close() // every line that counts was synced
		l.file, l.lines, l.counted = nil, 0, 0
	}
}

func (l *changeLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut()
}

// count counts the lines of the file, whoever wrote them; what was counted before
// is not read again.
func (l *changeLog) count() uint64 {
	info, err := l.file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return l.lines
	}
	if info.Size() < l.counted { // somebody has cut it off
		l.lines, l.counted = 0, 0
	}
	buf := make([]byte, 64<<10)
	for l.counted < info.Size() {
		n, err := l.file.ReadAt(buf[:min(int64(len(buf)), info.Size()-l.counted)], l.counted)
		l.lines += uint64(bytes.Count(buf[:n], []byte{'\n'}))
		if l.counted += int64(n); err != nil || n == 0 {
			break
		}
	}
	return l.lines
}

// status is how the log is, with how many lines it has: whether it could be
// written just now, too.
func (l *changeLog) status() (lines, failed uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path == "" {
		return 0, 0, nil
	}
	if err := l.open(); err != nil {
		return l.lines, l.failed.Load(), err
	}
	if _, err := os.Stat(l.path); errors.Is(err, fs.ErrNotExist) {
		return l.lines, l.failed.Load(), err
	}
	return l.count(), l.failed.Load(), l.err
}
