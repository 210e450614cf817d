package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// What comes from a remote agent is bounded.
const (
	maxAnswer    = 16 << 20 // of one answer that is not a stream
	maxCard      = 1 << 20
	maxRedirects = 3
)

var (
	errIdle    = errors.New("the stream is silent")
	errTooLong = errors.New("the answer is too long")
)

// statusError is an answer of HTTP that the protocol does not explain.
type statusError struct {
	code  int
	after time.Duration // when a repeat may succeed; 0: not said
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the server answers %d %s", e.code, http.StatusText(e.code))
}

// refuses reports whether the server will say the same to the same request.
func (e *statusError) refuses() bool {
	switch e.code {
	case http.StatusRequestTimeout, http.StatusTooEarly:
		return false
	}
	return e.code/100 == 4
}

// away reports whether the server says that the agent cannot be reached.
func (e *statusError) away() bool {
	switch e.code {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusRequestTimeout, http.StatusTooEarly:
		return true
	}
	return false
}

// receipt is what came over HTTP in answer to one call.
type receipt struct {
	mu     sync.Mutex
	status int  // 0: nothing
	broken bool // the body ended too early
}

type receiptKey struct{}

// withReceipt is a context for one call, and its receipt.
func withReceipt(ctx context.Context) (context.Context, *receipt) {
	r := new(receipt)
	return context.WithValue(ctx, receiptKey{}, r), r
}

func receiptOf(ctx context.Context) *receipt {
	r, ok := ctx.Value(receiptKey{}).(*receipt)
	if !ok {
		r = new(receipt)
	}
	return r
}

func (r *receipt) came(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status, r.broken = status, false
}

// read notes how reading the body went.
func (r *receipt) read(err error) {
	if err != nil && !errors.Is(err, io.EOF) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.broken = true
	}
}

func (r *receipt) state() (status int, broken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status, r.broken
}

// wire is the transport below the SDK's client. It bounds answers, tells what
// the SDK keeps to itself (the status, and the ids of events), and notes every
// sign of life of a stream.
type wire struct{ base http.RoundTripper }

// RoundTrip sends one request.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := w.base.RoundTrip(req)
	if err != nil {
		if cause := context.Cause(req.Context()); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	got := receiptOf(req.Context())
	got.came(res.StatusCode)
	switch res.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		_ = res.Body.Close()
		seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		return nil, &statusError{code: res.StatusCode, after: time.Duration(max(seconds, 0)) * time.Second}
	}
	t, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	p, _ := req.Context().Value(pulseKey{}).(*pulse)
	if p != nil && t == "text/event-stream" {
		res.Body = &events{ReadCloser: res.Body, pulse: p, got: got}
		return res, nil
	}
	res.Body = &bounded{ReadCloser: res.Body, left: maxAnswer, got: got}
	if p != nil && req.Header.Get("Accept") == "text/event-stream" && res.StatusCode == http.StatusOK {
		return asEvent(res)
	}
	return res, nil
}

// asEvent makes an answer in place of a stream a stream of one event: an error
// before the first event comes like that, and the SDK would see nothing in it.
func asEvent(res *http.Response) (*http.Response, error) {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxCard))
	err = errors.Join(err, res.Body.Close())
	if err != nil {
		return nil, err
	}
	var line bytes.Buffer
	line.WriteString("data: ")
	if json.Compact(&line, body) != nil {
		return nil, malformed("%s where a stream of events should be", res.Header.Get("Content-Type"))
	}
	line.WriteString("\n\n")
	res.Body = io.NopCloser(&line)
	return res, nil
}

// bounded fails when more is read than there may be.
type bounded struct {
	io.ReadCloser
	left int64
	got  *receipt
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.got.read(err)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

// pulse is the life of one stream: it ends the stream when nothing comes for
// too long, and knows the ids of its events.
type pulse struct {
	idle  time.Duration // fixed
	timer *time.Timer   // fixed

	mu    sync.Mutex
	ids   []string // of the events that have arrived and were not taken yet
	taken string   // of the last event that was
}

type pulseKey struct{}

// newPulse is a pulse, and the context of its stream.
func newPulse(ctx context.Context, idle time.Duration) (context.Context, *pulse, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &pulse{idle: idle}
	p.timer = time.AfterFunc(idle, func() { cancel(errIdle) })
	return context.WithValue(ctx, pulseKey{}, p), p, func() { p.timer.Stop(); cancel(nil) }
}

func (p *pulse) alive() { p.timer.Reset(p.idle) }

func (p *pulse) arrived(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = append(p.ids, id)
}

// take is called for each event that the SDK gives, which are those of the
// stream, in its order. It returns the id to resume behind, if there is one.
func (p *pulse) take() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = ""
	if len(p.ids) > 0 {
		p.taken, p.ids = p.ids[0], p.ids[1:]
	}
	return p.taken
}

// events reads a stream of events and notes their ids as they pass.
type events struct {
	io.ReadCloser
	pulse *pulse
	got   *receipt

	line []byte // what has come of the current one, its beginning
	id   string // of the current event, or the last one that had one
	data bool   // the current event has any
}

// maxEventID is how long a line may be to be read as an id.
const maxEventID = 256

func (e *events) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	e.got.read(err)
	if n > 0 {
		e.pulse.alive()
	}
	for rest := p[:n]; len(rest) > 0; {
		piece, after, ended := bytes.Cut(rest, []byte("\n"))
		e.line = append(e.line, piece[:min(len(piece), max(0, maxEventID-len(e.line)))]...)
		if !ended {
			break
		}
		e.endLine()
		rest = after
	}
	return n, err
}

func (e *events) endLine() {
	line := bytes.TrimSuffix(e.line, []byte("\r"))
	switch {
	case len(line) == 0 && e.data:
		e.pulse.arrived(e.id)
		e.data = false
	case bytes.HasPrefix(line, []byte("data:")):
		e.data = e.data || len(bytes.TrimSpace(line[len("data:"):])) > 0
	case bytes.HasPrefix(line, []byte("id:")) && len(e.line) < maxEventID:
		e.id = string(bytes.TrimSpace(line[len("id:"):]))
	}
	e.line = e.line[:0]
}
