package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"
)

// lastAnswers is how long the end of the input waits for what was asked before
// it.
const lastAnswers = time.Minute

// piped is input and output of which the input is heard to end only when
// everything that it asked has been answered: requests that come by a pipe end
// with the last of them.
type piped struct {
	in  io.ReadCloser
	out io.WriteCloser

	line []byte // of the input, as far as it has come; Read's alone

	mu       sync.Mutex
	open     int           // guarded by mu: requests without an answer
	answered chan struct{} // guarded by mu; closed, and nil, when open is 0
	closed   chan struct{}
	once     sync.Once
}

func newPiped(in io.ReadCloser, out io.WriteCloser) *piped {
	return &piped{in: in, out: out, closed: make(chan struct{})}
}

func (p *piped) Read(b []byte) (int, error) {
	n, err := p.in.Read(b)
	for rest := b[:n]; len(rest) > 0; {
		line, more, ended := bytes.Cut(rest, []byte{'\n'})
		p.line = append(p.line, line...)
		if ended {
			p.asked()
		}
		rest = more
	}
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	p.asked()
	if n > 0 {
		return n, nil
	}
	p.await()
	return 0, err
}

// asked counts the requests of a line that is complete.
func (p *piped) asked() {
	requests, _ := count(p.line)
	p.line = p.line[:0]
	p.add(requests)
}

func (p *piped) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open += n
	if p.open <= 0 && p.answered != nil {
		close(p.answered)
		p.answered = nil
	}
}

// await waits until everything is answered, or nobody wants the answers.
func (p *piped) await() {
	p.mu.Lock()
	if p.open <= 0 {
		p.mu.Unlock()
		return
	}
	if p.answered == nil {
		p.answered = make(chan struct{})
	}
	answered := p.answered
	p.mu.Unlock()
	patience := time.NewTimer(lastAnswers)
	defer patience.Stop()
	select {
	case <-answered:
	case <-p.closed:
	case <-patience.C:
	}
}

// Write writes what is one message, or a batch of them.
func (p *piped) Write(b []byte) (int, error) {
	n, err := p.out.Write(b)
	_, answers := count(b)
	p.add(-answers)
	return n, err
}

// reader and writer are its two ends.
type (
	reader struct{ *piped }
	writer struct{ *piped }
)

// Close also ends the wait of Read.
func (r reader) Close() error {
	r.once.Do(func() { close(r.closed) })
	return r.in.Close()
}

func (w writer) Close() error { return w.out.Close() }

// count is how many requests that want an answer, and how many answers, a
// JSON-RPC message or batch is.
func count(data []byte) (requests, answers int) {
	type message struct {
		ID     json.RawMessage `json:"id"`
		Method *string         `json:"method"`
	}
	var batch []message
	if data = bytes.TrimSpace(data); bytes.HasPrefix(data, []byte{'['}) {
		_ = json.Unmarshal(data, &batch) // what it is not the server says
	} else if m := (message{}); json.Unmarshal(data, &m) == nil {
		batch = append(batch, m)
	}
	for _, m := range batch {
		switch {
		case len(m.ID) == 0:
		case m.Method != nil:
			requests++
		default:
			answers++
		}
	}
	return requests, answers
}
