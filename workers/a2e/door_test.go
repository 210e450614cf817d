package a2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	messages "parley/subjects/a2e"
	"parley/subjects/fleet"
	"parley/workers/a2e"
)

// client is the agent's side of a connection.
type client struct {
	t *testing.T
	c net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, l net.Listener) *client {
	t.Helper()
	c, err := net.Dial(l.Addr().Network(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(bustest.Patience)); err != nil {
		t.Fatal(err)
	}
	return &client{t, c, bufio.NewReader(c)}
}

func (c *client) send(data []byte) {
	c.t.Helper()
	if _, err := c.c.Write(append(data, '\n')); err != nil {
		c.t.Fatal(err)
	}
}

// read reads a line.
func (c *client) read() []byte {
	c.t.Helper()
	data, err := c.r.ReadBytes('\n')
	if err != nil {
		c.t.Fatalf("%v after %q", err, data)
	}
	return data
}

func (c *client) reply() messages.Reply {
	c.t.Helper()
	data := c.read()
	r, err := messages.DecodeReply(data)
	if err != nil {
		c.t.Fatalf("%v in %s", err, data)
	}
	return *r
}

// refused reads an error that is about the connection, and its end.
func (c *client) refused(what string, code subjects.Code) {
	c.t.Helper()
	data := c.read()
	_, err := fleet.DecodeReply[fleet.Unknown](data)
	if subjects.CodeOf(err) != code {
		c.t.Errorf("%s: %s, want %s", what, data, code)
	}
	if rest, err := io.ReadAll(c.r); err != nil || len(rest) > 0 {
		c.t.Errorf("%s: then %q, %v, want the end", what, rest, err)
	}
}

// shake shakes hands for all there is.
func (c *client) shake() string {
	c.t.Helper()
	c.send(hello("ada", "", messages.Capabilities()...))
	r, err := messages.DecodeResponse(c.read())
	if err != nil || !r.OK {
		c.t.Fatalf("handshake = %+v, %v", r, err)
	}
	return r.SessionID
}

// TestConnection: calls are answered as they end; a dispatch by its task's
// end; the one over the limit at once; the session is over with the connection,
// and the tasks are not.
func TestConnection(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := listener(t)
	s.start(s.b, a2e.Config{MaxParallel: 2, Listener: l})
	c := dial(t, l)
	id := c.shake()
	c.send(callOf("1", "", messages.Dispatch, brief("slow", "slow")))
	c.send(callOf("2", id, messages.Dispatch, brief("quick", "quick")))
	if r := c.reply(); r.ReqID != "2" || stateOf(t, r) != fleet.StateDone {
		t.Errorf("first answer %+v", r)
	}
	s.waitFor("slow")
	c.send(callOf("3", "", messages.Dispatch, brief("slower", "slow")))
	c.send(callOf("4", "", messages.Get, messages.Work{TaskID: "slow"}))
	r := c.reply()
	if r.ReqID != "4" || stateOf(t, r) != fleet.StateWorking {
		t.Errorf("get = %+v", r)
	}
	s.waitFor("slower")
	c.send(callOf("5", "", messages.Dispatch, brief("third", "slow")))
	wants(t, "over the limit", c.reply(), subjects.CodeRateLimited)
	s.end("slow")
	if r := c.reply(); r.ReqID != "1" || stateOf(t, r) != fleet.StateDone {
		t.Errorf("the end of the first = %+v", r)
	}
	c.send(callOf("6", "a2a-20251122T120000Z-7f3a9c21", messages.Get, messages.Work{TaskID: "slow"}))
	wants(t, "another session", c.reply(), subjects.CodeSessionExpired)
	c.send([]byte("{"))
	wants(t, "no JSON", c.reply(), subjects.CodeInvalidMessage)
	c.send([]byte(" "))

	if err := c.c.(*net.TCPConn).SetLinger(0); err != nil { // cut, with a task under way
		t.Fatal(err)
	}
	_ = c.c.Close()
	deadline := time.Now().Add(20 * time.Second)
	for {
		r, err := overNATS[messages.Reply](s, "ada", "call", callOf("7", id, messages.Get, messages.Work{TaskID: "slower"}))
		if err != nil {
			t.Fatal(err)
		}
		if !r.OK && r.Error.Code == subjects.CodeSessionExpired {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the session outlives its connection")
		}
	}
	again := dial(t, l)
	again.shake()
	again.send(callOf("8", "", messages.Get, messages.Work{TaskID: "slower"}))
	if r := again.reply(); stateOf(t, r) != fleet.StateWorking {
		t.Errorf("after the cut = %+v, want that it goes on", r)
	}
	s.end("slower")
	again.send(callOf("9", "", messages.Get, messages.Work{TaskID: "slower"}, 20))
	if r := again.reply(); stateOf(t, r) != fleet.StateDone {
		t.Errorf("at its end = %+v", r)
	}
}

// TestConnectionHalfClosed: who closes its side gets the answers that are due.
func TestConnectionHalfClosed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := listener(t)
	s.start(s.b, a2e.Config{Listener: l})
	c := dial(t, l)
	c.shake()
	c.send(callOf("1", "", messages.Dispatch, brief("t", "slow")))
	c.send(callOf("2", "", messages.Get, messages.Work{TaskID: "none"}))
	wants(t, "get", c.reply(), subjects.CodeNotFound)
	if err := c.c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	s.waitFor("t")
	s.end("t")
	if r := c.reply(); r.ReqID != "1" || stateOf(t, r) != fleet.StateDone {
		t.Errorf("answer %+v", r)
	}
	if rest, err := io.ReadAll(c.r); err != nil || len(rest) > 0 {
		t.Errorf("then %q, %v", rest, err)
	}
}

// waitFor waits until a task has been dispatched.
func (s *stage) waitFor(id subjects.TaskID) {
	s.t.Helper()
	bustest.Eventually(s.t, "task "+string(id), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.tasks[id] != nil
	})
}

// TestConnectionOfAWorkerThatStops: what waits is told so, and the task goes on.
func TestConnectionOfAWorkerThatStops(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := listener(t)
	_, stop := s.start(s.b, a2e.Config{Listener: l})
	c := dial(t, l)
	c.shake()
	c.send(callOf("1", "", messages.Dispatch, brief("t", "slow")))
	s.waitFor("t")
	stop()
	r := wants(t, "the dispatch", c.reply(), subjects.CodeUnavailable)
	if r.Error != nil && !strings.Contains(r.Error.Message, "stopping") {
		t.Errorf("told %v", r.Error)
	}
	if rest, err := io.ReadAll(c.r); err != nil || len(rest) > 0 {
		t.Errorf("then %q, %v", rest, err)
	}
}

func TestConnectionBounds(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := listener(t)
	s.start(s.b, a2e.Config{Listener: l})
	c := dial(t, l)
	c.send([]byte("GET / HTTP/1.1"))
	c.refused("no handshake", subjects.CodeInvalidMessage)
	c = dial(t, l)
	c.send(callOf("1", "", messages.Get, messages.Work{TaskID: "t"}))
	c.refused("a call before the handshake", subjects.CodeInvalidMessage)
	c = dial(t, l)
	c.shake()
	c.send(bytes.Repeat([]byte("x"), 4<<20))
	c.refused("a long line", subjects.CodePayloadTooLarge)
	c = dial(t, l)
	c.send(hello("ada", "", messages.Learning))
	if r, err := messages.DecodeResponse(c.read()); err != nil || r.Reason != messages.ReasonNoCaps {
		t.Errorf("refused as %+v, %v", r, err)
	}
	if rest, err := io.ReadAll(c.r); err != nil || len(rest) > 0 {
		t.Errorf("after a refusal %q, %v, want the end", rest, err)
	}
}

// backend answers as it is told; it is for what a Door does by itself.
type backend struct {
	held bool
	hold chan struct{} // calls wait for it
	size int           // of results
}

func (b backend) Handshake(context.Context, []byte) (*messages.Response, error) {
	return &messages.Response{Header: head(messages.TypeResponse, "r"), ReqID: "hello", SessionID: "s1", MaxParallel: 4, OK: true}, nil
}

func (b backend) Call(ctx context.Context, _ subjects.AgentID, _ string, req []byte) (*messages.Reply, error) {
	c, err := messages.DecodeCall(req)
	if err != nil {
		return nil, err
	}
	if c.Call != messages.Close && b.hold != nil {
		select {
		case <-b.hold:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return &messages.Reply{
		Header: head(messages.TypeReply, "a"), ReqID: c.ID, OK: true, Result: fleet.MustEncode(strings.Repeat("x", b.size)),
	}, nil
}

// pipes is a listener of connections in memory, for fake time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(t *testing.T) *client {
	t.Helper()
	a, b := net.Pipe()
	p.conns <- b
	t.Cleanup(func() { _ = a.Close() })
	return &client{t, a, bufio.NewReader(a)}
}

// inBubble runs a Door on pipes, in fake time.
func inBubble(t *testing.T, d a2e.Door, f func(t *testing.T, p *pipes, hold chan struct{})) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := d.Backend.(backend)
		if b.held {
			b.hold = make(chan struct{}) // of this bubble
			d.Backend = b
		}
		p := newPipes()
		stop := bustest.Run(t, func(ctx context.Context) error { return d.Serve(ctx, p) })
		f(t, p, b.hold)
		stop()
	})
}

// faltering is a listener that at first has no file for a connection.
type faltering struct {
	*pipes
	failures int
}

func (f *faltering) Accept() (net.Conn, error) {
	if f.failures > 0 {
		f.failures--
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return f.pipes.Accept()
}

// TestDoorOutlivesALackOfFiles: what keeps connections out for a moment does not
// end the door.
func TestDoorOutlivesALackOfFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a2e.Door{Backend: backend{}}.Serve(ctx, &faltering{p, 3}) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Serve = %v", err)
		default:
		}
		p.dial(t).shake()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
}

func TestDoorTimes(t *testing.T) {
	t.Parallel()
	inBubble(t, a2e.Door{Backend: backend{}}, func(t *testing.T, p *pipes, hold chan struct{}) {
		begin := time.Now()
		c := p.dial(t)
		c.refused("saying nothing", subjects.CodeInvalidMessage)
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("without a handshake for %s, want 10 s", took)
		}
		c = p.dial(t)
		c.shake()
		<-time.After(4 * time.Minute)
		c.send(callOf("1", "", messages.Get, messages.Work{TaskID: "t"}))
		c.reply()
		begin = time.Now()
		c.refused("being idle", subjects.CodeSessionExpired)
		if took := time.Since(begin); took != 5*time.Minute {
			t.Errorf("idle for %s, want 5 min", took)
		}
	})
	// A call in hand is no idleness.
	inBubble(t, a2e.Door{Backend: backend{held: true}}, func(t *testing.T, p *pipes, hold chan struct{}) {
		c := p.dial(t)
		c.shake()
		c.send(callOf("1", "", messages.Get, messages.Work{TaskID: "t"}))
		<-time.After(time.Hour)
		close(hold)
		c.reply()
		_ = c.c.Close()
	})
}

func TestDoorLetsGoOfWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	inBubble(t, a2e.Door{Backend: backend{size: 100}}, func(t *testing.T, p *pipes, hold chan struct{}) {
		c := p.dial(t)
		c.shake()
		begin := time.Now()
		c.send(callOf("1", "", messages.Get, messages.Work{TaskID: "t"}))
		<-time.After(31 * time.Second) // without reading
		if _, err := c.c.Write([]byte("x\n")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("after %s: %v, want that the connection is closed", time.Since(begin), err)
		}
	})
}

func TestDoorBoundsCallsAndConnections(t *testing.T) {
	t.Parallel()
	inBubble(t, a2e.Door{Backend: backend{held: true}, MaxConns: 1}, func(t *testing.T, p *pipes, hold chan struct{}) {
		c := p.dial(t)
		c.shake()
		for i := range 20 { // 4 + 16
			c.send(callOf(strconv.Itoa(i), "", messages.Get, messages.Work{TaskID: "t"}))
		}
		go func() { // a pipe holds nothing
			if _, err := c.c.Write(append(callOf("over", "", messages.Get, messages.Work{TaskID: "t"}), '\n')); err != nil {
				t.Error(err)
			}
		}()
		if r := wants(t, "one call more", c.reply(), subjects.CodeRateLimited); r.ReqID != "over" {
			t.Errorf("refused %+v", r)
		}
		other := p.dial(t)
		other.refused("one connection more", subjects.CodeRateLimited)
		close(hold)
		seen := map[string]bool{}
		for range 20 {
			seen[c.reply().ReqID] = true
		}
		if len(seen) != 20 {
			t.Errorf("%d calls answered, want 20", len(seen))
		}
		_ = c.c.Close()
		synctest.Wait()
		p.dial(t).shake() // its place is free
	})
}

// TestDoorOnStandardInput: the last answers come after the end of the input.
func TestDoorOnStandardInput(t *testing.T) {
	t.Parallel()
	var in, out bytes.Buffer
	fmt.Fprintf(&in, "\n%s\n\n%s\n%s", hello("ada", "", messages.Tools), callOf("1", "", messages.Get, messages.Work{TaskID: "t"}), callOf("2", "", messages.Get, messages.Work{TaskID: "t"}))
	if err := (a2e.Door{Backend: backend{}, Linger: -1, Idle: -1}).Conn(t.Context(), &in, &out); err != nil {
		t.Error(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 3 || !strings.Contains(out.String(), `"req_id":"2"`) {
		t.Errorf("%d lines:\n%s", n, &out)
	}
	out.Reset()
	if err := (a2e.Door{Backend: backend{}}).Conn(t.Context(), strings.NewReader(""), &out); err == nil || !strings.Contains(out.String(), "error") {
		t.Errorf("nothing at all: %v, %s", err, &out)
	}
}
