package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// pipes is a listener in memory, so that a server can be in a bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

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

func (p *pipes) dial(context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	p.conns <- there
	return here, nil
}

// serveGRPC serves gRPC as the port does, in a bubble, where requests take no longer
// than 200 ms.
func serveGRPC(t *testing.T, w *Worker) *pipes {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(pathGRPC, w.Handlers()[pathGRPC])
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := &http.Server{Handler: mux, ReadTimeout: 200 * time.Millisecond, Protocols: new(http.Protocols)}
	s.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(p)
	}()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return p
}

// TestSlowRequestOverGRPC: who does not end their request is let go, before
// anybody knows who they are.
func TestSlowRequestOverGRPC(t *testing.T) {
	t.Parallel()
	synctest.Test(t, slowRequestOverGRPC)
}

func slowRequestOverGRPC(t *testing.T) {
	t.Helper()
	w := door(t)
	w.rpc = newGRPC(w)
	s := serveGRPC(t, w)
	transport := &http.Transport{
		Protocols:   new(http.Protocols),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.dial(ctx) },
	}
	defer transport.CloseIdleConnections()
	transport.Protocols.SetUnencryptedHTTP2(true)
	body, end := io.Pipe()
	defer end.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1"+pathGRPC+opGet, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatalf("a request that does not end is kept: %v", err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	if got := res.Header.Get("Grpc-Status") + res.Trailer.Get("Grpc-Status"); got == "" || got == "0" {
		t.Errorf("status %q, want an error", got)
	}
}

// TestSlowReaderOverGRPC: a reader that takes nothing is let go, and one to whom
// nothing is told is not.
func TestSlowReaderOverGRPC(t *testing.T) {
	t.Parallel()
	synctest.Test(t, slowReaderOverGRPC)
}

func slowReaderOverGRPC(t *testing.T) {
	t.Helper()
	w := door(t)
	w.rpc = newGRPC(w)
	w.cfg.WriteTimeout = 100 * time.Millisecond
	gone := make(chan error, 1)
	task := someTask()
	task.History = []*a2apb.Message{{Parts: []*a2apb.Part{{Content: &a2apb.Part_Text{Text: strings.Repeat("x", 1<<20)}}}}}
	long := frame{id: "1", msg: taskFrame(&picture{task: task}, nil)}
	short := frame{id: "1", msg: taskFrame(&picture{task: someTask()}, nil)}
	w.ops[opSubscribe] = &operation{stream: func(ctx context.Context, _ *call, req proto.Message, send func(frame) error) error {
		if req.(*a2apb.SubscribeToTaskRequest).GetId() == "quiet" {
			err := send(short)
			quiet := time.NewTimer(4 * w.cfg.WriteTimeout)
			defer quiet.Stop()
			<-quiet.C
			return errors.Join(err, send(short))
		}
		var err error
		for err == nil {
			err = send(long)
		}
		gone <- err
		return err
	}}
	s := serveGRPC(t, w)
	conn, err := grpc.NewClient("passthrough:127.0.0.1", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := a2apb.NewA2AServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "a2a-version", "1.0")

	quiet, err := client.SubscribeToTask(ctx, &a2apb.SubscribeToTaskRequest{Id: "quiet"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := quiet.Recv(); err != nil {
			t.Fatalf("a quiet stream: %v", err)
		}
	}
	if _, err := client.SubscribeToTask(ctx, &a2apb.SubscribeToTaskRequest{Id: "slow"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("a reader that takes nothing is kept")
	}
}
