package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"parley/workers"
)

// pipes is a listener in memory, so that a server can be in a bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	p.conns <- there
	return here, nil
}

// TestCallsInHandHaveTheGrace: what is in hand when the process stops is finished
// within the grace time, and what needs longer is cut before it is over.
func TestCallsInHandHaveTheGrace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		http2    bool
		needs    time.Duration
		answered bool
		took     time.Duration
	}{
		{"in time", false, 8 * time.Second, true, 8 * time.Second},
		{"in time, over HTTP/2", true, 8 * time.Second, true, 8 * time.Second},
		{"too long", false, time.Minute, false, 9 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newPipes()
				began := make(chan struct{})
				h := &health{listener: l, checks: healthChecks{connected: func() bool { return true }}, pages: map[string]http.Handler{
					"/call": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						close(began)
						select {
						case <-time.After(c.needs):
							_, _ = io.WriteString(w, "done")
						case <-r.Context().Done():
						}
					}),
				}}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				ended := make(chan error, 1)
				go func() { ended <- workers.Run(ctx, 10*time.Second, workers.Worker{Name: "http", Run: h.Run}) }()
				answer := make(chan string, 1)
				transport := &http.Transport{DialContext: l.dial, Protocols: new(http.Protocols)}
				transport.Protocols.SetHTTP1(!c.http2)
				transport.Protocols.SetUnencryptedHTTP2(c.http2)
				defer transport.CloseIdleConnections()
				go func() {
					req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://fleet/call", nil)
					resp, err := transport.RoundTrip(req)
					if err != nil {
						answer <- ""
						return
					}
					defer resp.Body.Close()
					body, _ := io.ReadAll(resp.Body)
					answer <- string(body)
				}()
				<-began
				at := time.Now()
				stop()
				if err := <-ended; err != nil {
					t.Errorf("Run = %v, want nil", err)
				}
				// Shutdown looks twice a second whether all is done.
				if took := time.Since(at); took < c.took || took > c.took+time.Second {
					t.Errorf("it took %v to stop, want %v", took, c.took)
				}
				if got := <-answer; (got == "done") != c.answered {
					t.Errorf("answered %q, want an answer: %t", got, c.answered)
				}
			})
		})
	}
}
