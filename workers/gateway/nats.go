package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus"
	"parley/subjects"
	"parley/workers/gateway/a2anats"
)

// maxCalls bounds the calls over NATS that a replica has in hand.
const maxCalls = 16384

// natsDoor serves the NATS binding.
type natsDoor struct {
	// fixed after New
	w       *Worker
	root    string
	replica string
	slots   chan struct{}

	calls sync.WaitGroup

	mu   sync.Mutex // guards what follows
	open map[openCall]chan bool
	last uint64
}

func newNATS(w *Worker, root string) *natsDoor {
	return &natsDoor{w: w, root: root, replica: rand.Text()[:12], slots: make(chan struct{}, maxCalls), open: make(map[openCall]chan bool)}
}

// run takes calls until ctx ends, and returns when those in hand have ended.
// serving is called once the server knows that they may come.
func (d *natsDoor) run(ctx context.Context, serving func()) error {
	b := d.w.cfg.Bus
	confirm, err := b.Subscribe(a2anats.Confirm(d.root, "*", d.replica, "*"), "", d.confirmed)
	if err != nil {
		return err
	}
	defer func() { _ = confirm.Unsubscribe() }() // it fails only where the connection is closed
	calls, err := b.Subscribe(a2anats.Subject(d.root, "*", "*"), "gateway", d.take)
	if err != nil {
		return err
	}
	if err := b.Ping(ctx); err == nil { // otherwise the reconnect tells the server
		serving()
	} else if ctx.Err() == nil {
		serving()
		d.w.log.Debug("calls over NATS may come later", slog.Any("error", err))
	}
	<-ctx.Done()
	if err := calls.Drain(); err != nil {
		d.w.log.Debug("calls not drained", slog.Any("error", err))
	}
	d.w.stop()
	d.calls.Wait()
	return nil
}

// take begins a call.
func (d *natsDoor) take(m bus.Msg) {
	if m.Reply == "" {
		return // nobody would hear the answer
	}
	x := &exchange{d: d, m: m}
	select {
	case d.slots <- struct{}{}:
	default:
		f := faultf(kindUnavailable, "the gateway has too many calls in hand; repeat the call")
		f.retry = time.Second
		x.fail(f)
		return
	}
	d.calls.Go(func() {
		defer func() { <-d.slots }()
		x.serve()
	})
}

// confirmed hears that a client has an alive frame, or that it is gone.
func (d *natsDoor) confirmed(m bus.Msg) {
	who, rest, _ := strings.Cut(strings.TrimPrefix(m.Subject, d.root+"."), ".")
	name := rest[strings.LastIndexByte(rest, '.')+1:]
	d.mu.Lock()
	c := d.open[openCall{who, name}] // nobody confirms the calls of others, or ends them
	d.mu.Unlock()
	select {
	case c <- !m.Unheard():
	default: // nobody waits for it
	}
}

// openCall is a call under way.
type openCall struct{ from, name string }

// call gives a call of somebody's a name by which it is confirmed.
func (d *natsDoor) call(from string) (name string, confirmed chan bool, done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	c := openCall{from, strconv.FormatUint(d.last, 36)}
	confirmed = make(chan bool, 1)
	d.open[c] = confirmed
	return c.name, confirmed, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.open, c)
	}
}

// exchange is one call: a request, and frames as its replies.
type exchange struct {
	d *natsDoor
	m bus.Msg

	from        string
	call        string
	confirmed   chan bool
	unconfirmed int // events since the last confirmed alive
	extensions  []string
	began       bool // a frame was sent
}

// errGone ends a call whose client is gone, or does not read.
var errGone = errors.New("the client does not confirm")

// serve carries the call out.
func (x *exchange) serve() {
	w := x.d.w
	ctx, cancel := w.during(context.Background())
	defer cancel()
	run, err := x.admit()
	if err != nil {
		x.fail(err)
		return
	}
	var done func()
	x.call, x.confirmed, done = x.d.call(x.from)
	defer done()
	frames := make(chan frame)
	ended := make(chan error, 1)
	go func() { // joined below: ended is always received, and ctx ends first
		ended <- run(ctx, func(f frame) error {
			select {
			case frames <- f:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	alive := time.NewTicker(w.cfg.NATSAlive)
	defer alive.Stop()
	for {
		var err error
		select {
		case f := <-frames:
			if err = x.event(f); err == nil && x.unconfirmed >= a2anats.Window {
				err = x.alive(ctx)
			}
		case <-alive.C:
			err = x.alive(ctx)
		case err = <-ended:
			x.end(err)
			return
		}
		if err != nil {
			cancel()
			err = errors.Join(err, <-ended)
			f, ok := errors.AsType[*fault](err)
			switch {
			case ok:
				x.fail(f)
			case errors.Is(err, errDraining) && (!x.unary() || !x.began): // it is taken up elsewhere
				x.fail(errDraining)
			}
			w.log.Debug("call over NATS ended early", slog.Any("error", err))
			return
		}
	}
}

// admit checks the request; run carries it out.
func (x *exchange) admit() (run func(context.Context, func(frame) error) error, err error) {
	w := x.d.w
	who, name, _ := strings.Cut(strings.TrimPrefix(x.m.Subject, x.d.root+"."), ".")
	from, err := subjects.ParseAgentID(who)
	if err != nil {
		return nil, faultf(kindUnauthenticated, "the subject names no caller")
	}
	x.from = who
	p := a2anats.Params(x.m.Header)
	c, err := w.admitAs(from, p, func() error { return checkVersion(first(p, headerVersion)) })
	if err != nil {
		return nil, err
	}
	c.base = base{url: w.cfg.URL, host: w.publicAuthority}
	c.activated = func(uris []string) { x.extensions = uris }
	c.activate(c.active)
	if len(x.m.Data) > maxBody {
		return nil, faultf(kindTooLarge, "the request is longer than "+strconv.Itoa(maxBody)+" bytes; pass large content as a url")
	}
	if len(x.m.Data) > 0 && !json.Valid(x.m.Data) {
		return nil, faultf(kindParse, "the request is not JSON")
	}
	op := w.ops[name]
	if name == a2anats.CardOperation {
		op = unary[a2apb.GetExtendedAgentCardRequest](w.publicCard)
	}
	if op == nil {
		return nil, faultf(kindNoMethod, "there is no operation "+clip(name))
	}
	req := op.request()
	if len(x.m.Data) > 0 {
		if err := decode(x.m.Data, req); err != nil {
			return nil, err
		}
	}
	if op.stream != nil {
		return func(ctx context.Context, send func(frame) error) error { return op.stream(ctx, c, req, send) }, nil
	}
	return func(ctx context.Context, _ func(frame) error) error {
		res, err := op.unary(ctx, c, req)
		if err != nil {
			return err
		}
		return x.response(res)
	}, nil
}

// header is that of a frame.
func (x *exchange) header(kind string) bus.Header {
	h := bus.Header{a2anats.HeaderFrame: {kind}, a2anats.HeaderVersion: {protocolVersion}}
	// Alive frames may come while the operation still finds out what counts.
	if kind != a2anats.FrameAlive && len(x.extensions) > 0 && !x.began {
		h.Set(a2anats.HeaderExtensions, strings.Join(x.extensions, ","))
	}
	return h
}

// send sends a frame, unless it is longer than the server takes.
func (x *exchange) send(data []byte, h bus.Header) error {
	const headers = 4 << 10 // more than ours take
	if most := x.d.w.cfg.Bus.MaxPayload() - headers; int64(len(data)) > most {
		return faultf(kindTooLarge, "the answer has "+strconv.Itoa(len(data))+" bytes, more than the NATS server takes; ask for less of it (historyLength, pageSize), or over HTTP")
	}
	x.began = x.began || h.Get(a2anats.HeaderFrame) != a2anats.FrameAlive
	return x.m.Respond(data, h)
}

// response sends the answer of a unary operation.
func (x *exchange) response(res proto.Message) error {
	data, err := encode(res)
	if err != nil {
		return err
	}
	return x.send(data, x.header(a2anats.FrameResponse))
}

// event sends an event of a stream.
func (x *exchange) event(f frame) error {
	if f.msg == nil {
		return nil // alive frames say that it has begun
	}
	data, err := protojson.Marshal(f.msg)
	if err != nil {
		return err
	}
	h := x.header(a2anats.FrameEvent)
	if f.id != "" {
		h.Set(a2anats.HeaderEvent, f.id)
	}
	x.unconfirmed++
	return x.send(data, h)
}

// alive tells that the call goes on, and waits until the client confirms that
// it has read what came before.
func (x *exchange) alive(ctx context.Context) error {
	w := x.d.w
	at := a2anats.Confirm(x.d.root, x.from, x.d.replica, x.call)
	select {
	case <-x.confirmed: // of an earlier one
	default:
	}
	if err := x.m.RespondAt(at, nil, x.header(a2anats.FrameAlive)); err != nil {
		return err
	}
	patience := time.NewTimer(w.cfg.WriteTimeout)
	defer patience.Stop()
	select {
	case there := <-x.confirmed:
		if !there {
			return errGone
		}
		x.unconfirmed = 0
		return nil
	case <-patience.C:
		return errGone
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end says how the call ended, unless its answer was the end.
func (x *exchange) end(err error) {
	switch {
	case err != nil:
		x.fail(err)
	case x.unary():
	default:
		if err := x.send(nil, x.header(a2anats.FrameEnd)); err != nil {
			x.d.w.log.Debug("call over NATS ended early", slog.Any("error", err))
		}
	}
}

// unary reports whether the operation has one answer.
func (x *exchange) unary() bool {
	name := x.m.Subject[strings.LastIndexByte(x.m.Subject, '.')+1:]
	op := x.d.w.ops[name]
	return op == nil || op.unary != nil
}

// fail sends an error.
func (x *exchange) fail(err error) {
	f := asFault(err)
	if f.kind == kindInternal {
		x.d.w.log.Error("answer a call over NATS", slog.String("subject", x.m.Subject), slog.Any("error", f.reason()))
	}
	h := x.header(a2anats.FrameError)
	h.Set(a2anats.HeaderErrorCode, strconv.Itoa(f.kind.http))
	h.Set(a2anats.HeaderError, strings.Map(oneLine, f.Error()))
	if f.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(max(1, int(f.retry.Seconds()))))
	}
	if err := x.m.Respond(mustJSON(f.restError(time.Now())), h); err != nil {
		x.d.w.log.Debug("call over NATS ended early", slog.Any("error", err))
	}
}

// oneLine keeps a header to its line.
func oneLine(r rune) rune {
	if r < ' ' {
		return ' '
	}
	return r
}

// publicCard gives the card of whom the tenant names to clients without HTTP.
func (w *Worker) publicCard(ctx context.Context, c *call, req *a2apb.GetExtendedAgentCardRequest) (*a2apb.AgentCard, error) {
	agent, err := tenantOf(req.GetTenant())
	if err != nil {
		return nil, err
	}
	card, err := w.card(ctx, agent, c.base, true)
	if err != nil {
		return nil, err
	}
	return card, w.sign(card)
}
