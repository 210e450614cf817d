package a2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"parley/subjects"
	"parley/subjects/a2e"
	"parley/subjects/fleet"
)

// Backend answers what comes over connections: the Worker of this process, or
// the API of another one.
type Backend interface {
	// Handshake answers a handshake/req; the error is of a message that is none,
	// or of a fleet that does not answer.
	Handshake(ctx context.Context, req []byte) (*a2e.Response, error)
	// Call answers a call/req of a session of agent.
	Call(ctx context.Context, agent subjects.AgentID, session string, req []byte) (*a2e.Reply, error)
}

// Handshake makes w the Backend of a Door.
func (w *Worker) Handshake(ctx context.Context, req []byte) (*a2e.Response, error) {
	r, _, err := w.shake(ctx, caller{how: "socket"}, req)
	return r, err
}

// Call makes w the Backend of a Door.
func (w *Worker) Call(ctx context.Context, agent subjects.AgentID, session string, req []byte) (*a2e.Reply, error) {
	return w.call(ctx, caller{id: agent, session: session, how: "socket"}, req), nil
}

var _ Backend = (*Worker)(nil)

// Door serves connections: lines of JSON, the first a handshake/req, then
// call/req; each is answered by one line. Calls are answered as they end, in
// any order. Backend is required.
type Door struct {
	Backend Backend
	Log     *slog.Logger // nil: discarded

	Handshake time.Duration // for the first line; absent 10 s
	Idle      time.Duration // without a line and without a call in hand; absent 5 min; negative: none
	Linger    time.Duration // for calls in hand after the other side has closed; absent 5 s; negative: to their end
	Write     time.Duration // for a line to be taken; absent 30 s
	MaxConns  int           // of Serve, at a time; absent 256
}

// acceptAgain is the time before connections are taken again after that failed.
const acceptAgain = 100 * time.Millisecond

// extraCalls is how many calls beside those that count may be in hand.
const extraCalls = 16

// closeTimeout bounds the end of a session whose connection has ended.
const closeTimeout = 5 * time.Second

func (d Door) withDefaults() Door {
	d.Handshake = cmp.Or(d.Handshake, 10*time.Second)
	d.Idle = cmp.Or(d.Idle, 5*time.Minute)
	d.Linger = cmp.Or(d.Linger, 5*time.Second)
	d.Write = cmp.Or(d.Write, 30*time.Second)
	d.MaxConns = cmp.Or(d.MaxConns, 256)
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	return d
}

// Serve takes connections of l until ctx ends, which it closes; it returns once
// every connection has ended.
func (d Door) Serve(ctx context.Context, l net.Listener) error {
	d = d.withDefaults()
	var all sync.WaitGroup
	defer all.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	places := make(chan struct{}, d.MaxConns)
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			d.Log.Warn("take a connection, tried again", slog.Any("error", err)) // there are too many files open, say
			pause(ctx, acceptAgain)
			continue
		}
		all.Go(func() {
			select {
			case places <- struct{}{}:
				defer func() { <-places }()
				if err := d.serve(ctx, c); err != nil {
					d.Log.Info("no session", slog.Any("error", err))
				}
			default:
				_ = c.SetWriteDeadline(time.Now().Add(d.Write))
				_ = writeError(c, subjects.Errorf(subjects.CodeRateLimited, "%d connections are open, which is all there may be", d.MaxConns).RetryAfter(time.Second))
				_ = c.Close()
			}
		})
	}
}

// Conn serves one connection that is not of a network: standard input and
// output. When ctx ends, reading in is left behind. The error says why there
// was no session; the other side has been told.
func (d Door) Conn(ctx context.Context, in io.Reader, out io.Writer) error {
	return d.withDefaults().serve(ctx, stdio{in, out})
}

// conn is what a session goes over.
type conn interface {
	io.ReadWriteCloser
	SetWriteDeadline(t time.Time) error
}

type stdio struct {
	io.Reader
	io.Writer
}

// Close does nothing: the process's own files.
func (stdio) Close() error                     { return nil }
func (stdio) SetWriteDeadline(time.Time) error { return nil }

// line is what was read.
type line struct {
	data []byte
	err  error
}

// readLines reads lines until one is too long or the input ends; the last of
// lines has the reason. What is still sent when ctx has ended is read away, so
// that the other side can read why.
func readLines(ctx context.Context, r io.Reader, lines chan<- line) {
	br := bufio.NewReaderSize(r, 64<<10)
	defer func() {
		<-ctx.Done()
		_, _ = io.CopyN(io.Discard, r, mostUnread)
	}()
	for {
		data, err := readLine(br)
		if data = bytes.TrimSpace(data); len(data) == 0 && err == nil {
			continue
		}
		if len(data) > 0 && errors.Is(err, io.EOF) { // a last line without an end
			select {
			case lines <- line{data: data}:
			case <-ctx.Done():
				return
			}
			data = nil
		}
		select {
		case lines <- line{data, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func readLine(br *bufio.Reader) ([]byte, error) {
	var all []byte
	for {
		part, err := br.ReadSlice('\n')
		all = append(all, part...)
		switch {
		case len(all) > maxLine:
			return nil, subjects.Errorf(subjects.CodePayloadTooLarge, "the line is longer than %d bytes", maxLine).
				WithRemedy("pass large content by reference: a part with a url")
		case !errors.Is(err, bufio.ErrBufferFull):
			return all, err
		}
	}
}

// Bounds of what is read away of a connection that is being closed.
const (
	mostUnread = 8 << 20
	unreadFor  = time.Second
)

// hangUp closes c for writing, and is to be followed by the end of reading.
func hangUp(c conn) {
	if half, ok := c.(interface {
		CloseWrite() error
		SetReadDeadline(t time.Time) error
	}); ok {
		_ = half.CloseWrite()
		_ = half.SetReadDeadline(time.Now().Add(unreadFor))
		return
	}
	_ = c.Close()
}

// talk is one session of a Door.
type talk struct {
	door    Door
	stop    <-chan struct{} // closed when nothing more is to be taken
	conn    conn
	agent   subjects.AgentID
	session string
	most    int // calls in hand
	lines   chan line
	ended   chan struct{} // a call has been answered
	inHand  int
	calls   sync.WaitGroup

	mu sync.Mutex // of writing
}

// serve is the life of a connection.
func (d Door) serve(ctx context.Context, c conn) error {
	stop := ctx.Done()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // of the calls in hand
	t := &talk{stop: stop, door: d, conn: c, lines: make(chan line), ended: make(chan struct{}, 1)}
	var reading sync.WaitGroup
	read := func() { readLines(ctx, c, t.lines) }
	if _, left := c.(stdio); left {
		go read() // ends with the process at the latest
	} else {
		reading.Go(read)
	}
	defer func() {
		hangUp(c)
		reading.Wait()
		_ = c.Close()
	}()
	defer t.calls.Wait()
	defer cancel(errGone)
	if err := t.shake(ctx); err != nil {
		return err
	}
	err := t.run(ctx, cancel)
	d.Log.Debug("connection is over", slog.String("session_id", t.session), slog.Any("why", err))
	t.end(ctx)
	return nil
}

// errGone ends the calls of a connection that is over.
var errGone = errors.New("the connection is over")

// shake waits for the handshake and answers it.
func (t *talk) shake(ctx context.Context) error {
	limit := time.NewTimer(t.door.Handshake)
	defer limit.Stop()
	var first line
	select {
	case first = <-t.lines:
	case <-limit.C:
		first.err = subjects.Errorf(subjects.CodeInvalidMessage, "no handshake within %s", t.door.Handshake)
	case <-t.stop:
		first.err = unavailable(errStopping)
	}
	err := first.err
	var r *a2e.Response
	if err == nil {
		r, err = t.door.Backend.Handshake(ctx, first.data)
	}
	if err != nil {
		if werr := t.fail(err); werr != nil {
			return werr
		}
		return err
	}
	if !r.OK {
		if err := t.write(r); err != nil {
			return err
		}
		return fmt.Errorf("refused: %s", r.Reason)
	}
	q, err := a2e.DecodeRequest(first.data) // the backend has taken it
	if err != nil {
		return errors.Join(err, t.fail(err))
	}
	t.agent, t.session, t.most = q.AgentID, r.SessionID, r.MaxParallel+extraCalls
	return t.write(r)
}

// run takes calls until the connection, the time or ctx ends, and says why.
func (t *talk) run(ctx context.Context, cancel context.CancelCauseFunc) error {
	idle := time.NewTimer(t.door.Idle)
	defer idle.Stop()
	quiet := func() { // nothing is to be waited for
		if t.door.Idle > 0 {
			idle.Reset(t.door.Idle)
		}
	}
	if t.door.Idle < 0 {
		idle.Stop()
	}
	for {
		select {
		case l := <-t.lines:
			if l.err != nil {
				return t.over(ctx, cancel, l.err)
			}
			idle.Stop()
			t.take(ctx, cancel, l.data)
			if t.inHand == 0 {
				quiet()
			}
		case <-t.ended:
			if t.inHand--; t.inHand == 0 {
				quiet()
			}
		case <-idle.C:
			err := subjects.Errorf(subjects.CodeSessionExpired, "nothing was said for %s", t.door.Idle).WithRemedy("shake hands again")
			return errors.Join(err, t.fail(err))
		case <-ctx.Done(): // a line was not taken
			return context.Cause(ctx)
		case <-t.stop:
			limit := time.AfterFunc(stopGrace, func() { cancel(errStopping) })
			defer limit.Stop()
			t.calls.Wait() // what still waits then is told that we stop
			return errStopping
		}
	}
}

// stopGrace is how long calls in hand may go on in a process that stops.
const stopGrace = time.Second

// over ends a session whose other side has closed, broken off or sent too much.
func (t *talk) over(ctx context.Context, cancel context.CancelCauseFunc, err error) error {
	if !errors.Is(err, io.EOF) {
		if _, ours := errors.AsType[*subjects.Error](err); ours {
			err = errors.Join(err, t.fail(err))
		}
		return err
	}
	// It may have closed one direction only, and wait for its answers.
	if t.door.Linger > 0 {
		limit := time.AfterFunc(t.door.Linger, func() { cancel(errGone) })
		defer limit.Stop()
	}
	for t.inHand > 0 {
		select {
		case <-t.ended:
			t.inHand--
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.stop:
			return errStopping
		}
	}
	return err
}

// take answers a line in its own time.
func (t *talk) take(ctx context.Context, cancel context.CancelCauseFunc, data []byte) {
	if t.inHand >= t.most {
		err := subjects.Errorf(subjects.CodeRateLimited, "%d calls are in hand, which is all there may be", t.most).
			WithRemedy("wait for answers").RetryAfter(time.Second)
		if t.write(t.refusal(data, err)) != nil {
			cancel(errGone)
		}
		return
	}
	t.inHand++
	t.calls.Go(func() {
		if err := t.write(t.answer(ctx, data)); err != nil {
			cancel(err) // who does not read is let go
		}
		select {
		case t.ended <- struct{}{}:
		case <-ctx.Done():
		case <-t.stop:
		}
	})
}

// refusal is the reply to a call that was not carried out.
func (t *talk) refusal(data []byte, err error) *a2e.Reply {
	return &a2e.Reply{
		Header: a2e.Header{A2E: a2e.Version, Type: a2e.TypeReply, ID: newID(), TS: stamp(time.Now())},
		ReqID:  a2e.ReadHeader(data).ID, Error: subjects.AsError(err),
	}
}

// answer carries a call out. A dispatch that does not say how long to wait
// waits for the end of its task.
func (t *talk) answer(ctx context.Context, data []byte) *a2e.Reply {
	reply, err := t.door.Backend.Call(ctx, t.agent, t.session, data)
	if err != nil {
		return t.refusal(data, err)
	}
	c, err := a2e.DecodeCall(data)
	if err != nil || c.Call != a2e.Dispatch || c.WaitSeconds != nil {
		return reply
	}
	id := reply.ReqID
	for reply.OK {
		v, err := fleet.DecodeReply[fleet.TaskView](reply.Result)
		if err != nil || v.State.Terminal() {
			break
		}
		if ctx.Err() != nil {
			return t.refusal(data, unavailable(context.Cause(ctx)))
		}
		next := a2e.Call{
			Header: a2e.Header{A2E: a2e.Version, Type: a2e.TypeCall, ID: newID(), TS: stamp(time.Now())}, SessionID: t.session, Call: a2e.Get,
			Params: fleet.MustEncode(a2e.Work{TaskID: v.TaskID}), WaitSeconds: new(float64(a2e.MaxWait)),
		}
		var more *a2e.Reply
		if more, err = t.door.Backend.Call(ctx, t.agent, t.session, fleet.MustEncode(&next)); err == nil && !more.OK {
			err = more.Error
		}
		if code := subjects.CodeOf(err); err != nil && (code != subjects.CodeUnavailable || ctx.Err() != nil) {
			return t.refusal(data, err)
		}
		if err != nil { // the fleet is away for a moment; the task is not
			pause(ctx, time.Second)
			continue
		}
		reply = more
	}
	reply.ReqID = id
	return reply
}

// pause waits a moment.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// end closes the session; its tasks go on.
func (t *talk) end(ctx context.Context) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer stop()
	c := a2e.Call{Header: a2e.Header{A2E: a2e.Version, Type: a2e.TypeCall, ID: newID(), TS: stamp(time.Now())}, SessionID: t.session, Call: a2e.Close}
	r, err := t.door.Backend.Call(ctx, t.agent, t.session, fleet.MustEncode(&c))
	if err == nil && !r.OK && r.Error.Code != subjects.CodeSessionExpired {
		err = r.Error
	}
	if err != nil {
		t.door.Log.Warn("the session was not ended; it is over within a day", slog.String("session_id", t.session), slog.Any("error", err))
	}
}

// write writes one line, within the time for it.
func (t *talk) write(v any) error {
	data, err := fleet.Encode(v)
	if err != nil {
		return err
	}
	return t.writeLine(data)
}

func (t *talk) fail(err error) error {
	return t.write(&fleet.ErrorReply{Error: subjects.AsError(err)})
}

func (t *talk) writeLine(data []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.conn.SetWriteDeadline(time.Now().Add(t.door.Write)); err != nil {
		return err
	}
	_, err := t.conn.Write(append(data, '\n'))
	return err
}

func writeError(w io.Writer, err error) error {
	_, werr := w.Write(append(fleet.MustEncode(&fleet.ErrorReply{Error: subjects.AsError(err)}), '\n'))
	return werr
}
