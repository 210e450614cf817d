package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus/bustest"
	"parley/subjects"
)

// TestSlowReaderOfAnAnswer: who asks for much and takes nothing of it is let go.
func TestSlowReaderOfAnAnswer(t *testing.T) {
	t.Parallel()
	w := door(t)
	w.cfg.WriteTimeout = 200 * time.Millisecond
	task := someTask()
	task.History = []*a2apb.Message{{Parts: []*a2apb.Part{{Content: &a2apb.Part_Text{Text: strings.Repeat("x", 32<<20)}}}}}
	w.ops[opGet].unary = func(context.Context, *call, proto.Message) (proto.Message, error) { return task, nil }
	body := `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"t1"}}`
	untaken(t, w.Handlers()[pathRPC], pathRPC, body)
}

// TestSlowReaderBehindADoor: so it is on the pages beside the gateway's.
func TestSlowReaderBehindADoor(t *testing.T) {
	t.Parallel()
	d, err := NewDoor(DoorConfig{WriteTimeout: 200 * time.Millisecond, Anonymous: anonymous})
	if err != nil {
		t.Fatal(err)
	}
	untaken(t, d.Guard(func(rw http.ResponseWriter, _ *http.Request, _ subjects.AgentID) {
		_, _ = rw.Write(make([]byte, 32<<20))
	}), "/mcp", "{}")
}

// untaken posts body to a page, takes nothing of its answer, and is let go.
func untaken(t *testing.T, page http.Handler, path, body string) {
	t.Helper()
	over := make(chan bool, 1)
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		page.ServeHTTP(rw, r)
		over <- true
	}))
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nA2A-Version: 1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		path, s.Listener.Addr(), len(body), body); err != nil {
		t.Fatal(err)
	}
	select {
	case <-over:
	case <-time.After(bustest.Patience):
		t.Error("a reader that takes nothing is kept")
	}
}
