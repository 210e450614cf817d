package agent

import (
	"bytes"
	"strings"
	"sync"
)

// head keeps the first max bytes of what is written to it.
type head struct {
	max   int
	over  func() // called when there is more; nil: nobody cares
	data  []byte
	total int
}

func (h *head) Write(p []byte) (int, error) {
	h.total += len(p)
	h.data = append(h.data, p[:min(len(p), h.max-len(h.data))]...)
	if h.over != nil && h.cut() {
		h.over()
	}
	return len(p), nil
}

func (h *head) cut() bool { return h.total > len(h.data) }

// lines calls each for every line that is written to it, without its end. Of a
// line longer than max only the beginning is given, with cut true. The line is
// each's for that call only.
type lines struct {
	max  int
	each func(line []byte, cut bool)

	buf []byte
	cut bool
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		piece := p
		if i >= 0 {
			piece = p[:i]
		}
		if room := l.max - len(l.buf); len(piece) > room {
			l.buf, l.cut = append(l.buf, piece[:room]...), true
		} else {
			l.buf = append(l.buf, piece...)
		}
		if i < 0 {
			break
		}
		l.flush()
		p = p[i+1:]
	}
	return n, nil
}

func (l *lines) flush() {
	l.each(bytes.TrimSuffix(l.buf, []byte("\r")), l.cut)
	l.buf, l.cut = l.buf[:0], false
}

// Close gives a last line that has no end.
func (l *lines) Close() error {
	if len(l.buf) > 0 {
		l.flush()
	}
	return nil
}

// recent keeps the last few lines.
type recent struct {
	max int

	mu   sync.Mutex
	list []string
}

func (r *recent) add(line string) {
	if strings.TrimSpace(line) == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == r.max {
		r.list = append(r.list[:0], r.list[1:]...)
	}
	r.list = append(r.list, line)
}

func (r *recent) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = nil
}

func (r *recent) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.list, "\n")
}
