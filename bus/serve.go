package bus

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"parley/bus/pool"
	"parley/subjects"
)

// Service is a NATS micro service: nats micro ls, info and stats show it.
type Service struct {
	Name, Version, Description string // Version is a SemVer
	Queue                      string // queue group of every endpoint, default "q"
	Metadata                   map[string]string
	Endpoints                  []Endpoint
	Concurrency                int // handlers at a time, default 1024
	// Figures, if set, are what the service tells of itself beside the counts of
	// its endpoints: member data of its statistics.
	Figures func() any
}

// Endpoint answers the requests on Subject (which may have wildcards) with
// what Handle returns. An error becomes {"error":{…}} with the headers
// Nats-Service-Error and Nats-Service-Error-Code; one that is not a
// *subjects.Error is answered as unavailable or internal, and logged.
type Endpoint struct {
	Name, Subject string
	Metadata      map[string]string
	Timeout       time.Duration // of a call, 0: none
	Handle        func(ctx context.Context, m Msg) ([]byte, error)
}

// StoreTime is how long a call that stores something may take: time for servers
// to fail over. What could not be stored by then is refused as unavailable.
const StoreTime = 15 * time.Second

// Metadata of every service: what it knows of its servers.
const (
	metaSync     = "sync_always"
	metaEmbedded = "embedded"
)

// Metadata of every service: what it knows of its process.
const (
	metaOpen  = "open"        // Config.Open, where there is one
	metaAhead = "clock_ahead" // ClockAhead, when it was asked

	metaProcess = "process" // tells one process from another
	metaSkipped = "skipped" // Bus.Skipped as JSON, where there is any
)

// metaKind is the kind of worker in a service's metadata.
const metaKind = "kind"

// MetaProgram is the program's version in the metadata of a service whose own is
// that of a protocol.
const MetaProgram = "program"

// Durability is what a service knows of the servers that it stores at.
type Durability struct {
	SyncAlways bool // they fsync before they acknowledge
	// Embedded says that the server is part of the service's process, so that
	// it knows. Otherwise it was told, by Config.SyncAlways.
	Embedded bool
}

// Durability is what services of this process say.
func (b *Bus) Durability() Durability {
	return Durability{SyncAlways: b.cfg.SyncAlways, Embedded: b.cfg.InProcess != nil}
}

// ServiceDurability asks a running service. Without one the error is
// ErrNoResponders; one of another version may not say, which is ErrNotFound.
func (b *Bus) ServiceDurability(ctx context.Context, name string) (Durability, error) {
	subject, err := micro.ControlSubject(micro.InfoVerb, name, "")
	if err != nil {
		return Durability{}, fmt.Errorf("ask service %s: %w", name, err)
	}
	m, err := b.Request(ctx, subject, nil, nil)
	if err != nil {
		return Durability{}, fmt.Errorf("ask service %s: %w", name, err)
	}
	var info micro.Info
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return Durability{}, fmt.Errorf("ask service %s: %w", name, err)
	}
	always, err1 := strconv.ParseBool(info.Metadata[metaSync])
	embedded, err2 := strconv.ParseBool(info.Metadata[metaEmbedded])
	if err1 != nil || err2 != nil {
		return Durability{}, fmt.Errorf("ask service %s: %w: it does not say how its servers sync", name, ErrNotFound)
	}
	return Durability{SyncAlways: always, Embedded: embedded}, nil
}

// ServiceLives reports whether a service of that name runs anywhere.
func (b *Bus) ServiceLives(ctx context.Context, name string) (bool, error) {
	subject, err := micro.ControlSubject(micro.PingVerb, name, "")
	if err != nil {
		return false, fmt.Errorf("look for service %s: %w", name, err)
	}
	_, err = b.Request(ctx, subject, nil, nil)
	if errors.Is(err, ErrNoResponders) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for service %s: %w", name, err)
	}
	return true, nil
}

// idleHandlers is how many goroutines wait for the next requests.
const idleHandlers = 64

// serveGrace is how long handlers may go on after stop was called.
const serveGrace = 5 * time.Second

// service is a running Service. The micro package measures only handlers that
// block their subscription; ours run concurrently, so the $SRV side is answered
// here, with the micro package's own message types.
type service struct {
	b       *Bus
	cfg     Service
	id      string
	started time.Time
	slots   chan struct{}
	work    context.Context //nolint:containedctx // the handlers' context, lives as long as the service

	subs     []*Subscription
	handlers *pool.Pool
	unsent   atomic.Int64 // replies that came after the connection was closed

	mu    sync.Mutex
	stats []micro.EndpointStats // guarded by mu, one per endpoint
}

// Serve registers s and answers requests until stop is called; when it returns
// the server knows the service. Handlers run concurrently, each on its own
// goroutine; ctx gives their context its values, but its end does not cancel
// them: stop takes no new requests, waits for those in hand, cancels them after
// 5 s, and returns when all have returned.
func (b *Bus) Serve(ctx context.Context, s Service) (stop func(), err error) {
	s.Queue = cmp.Or(s.Queue, micro.DefaultQueueGroup)
	s.Concurrency = cmp.Or(s.Concurrency, 1024)
	s.Metadata = maps.Clone(s.Metadata)
	if s.Metadata == nil {
		s.Metadata = make(map[string]string)
	}
	s.Metadata[metaSync] = strconv.FormatBool(b.Durability().SyncAlways)
	s.Metadata[metaEmbedded] = strconv.FormatBool(b.Durability().Embedded)
	if b.cfg.Open != "" {
		s.Metadata[metaOpen] = b.cfg.Open
	}
	if s.Name == "" || s.Version == "" {
		return nil, errors.New("serve: a service needs a name and a version")
	}
	work, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &service{
		b: b, cfg: s, id: rand.Text(), started: time.Now().UTC(), work: work,
		slots: make(chan struct{}, s.Concurrency), handlers: pool.New(idleHandlers), stats: make([]micro.EndpointStats, len(s.Endpoints)),
	}
	once := sync.OnceFunc(func() { r.stop(abort) })
	if err := r.subscribe(); err != nil {
		once()
		return nil, fmt.Errorf("serve %s: %w", s.Name, err)
	}
	if b.Connected() { // otherwise the reconnect registers it
		if err := b.Ping(ctx); err != nil {
			once()
			return nil, fmt.Errorf("serve %s: %w", s.Name, err)
		}
	}
	return once, nil
}

func (r *service) subscribe() error {
	for i, e := range r.cfg.Endpoints {
		r.stats[i] = micro.EndpointStats{Name: e.Name, Subject: e.Subject, QueueGroup: r.cfg.Queue}
		sub, err := r.b.subscribe(e.Subject, r.cfg.Queue, func(m *nats.Msg) { r.request(i, m) })
		if err != nil {
			return err
		}
		r.subs = append(r.subs, sub)
	}
	for verb, answer := range map[micro.Verb]func() any{
		micro.PingVerb: func() any { return micro.Ping{ServiceIdentity: r.identity(), Type: micro.PingResponseType} },
		micro.InfoVerb: func() any { return r.info() }, micro.StatsVerb: func() any { return r.told() },
	} {
		for _, to := range [][2]string{{}, {r.cfg.Name}, {r.cfg.Name, r.id}} {
			subject, err := micro.ControlSubject(verb, to[0], to[1])
			if err != nil {
				return err
			}
			sub, err := r.b.subscribe(subject, "", func(m *nats.Msg) {
				if data, err := json.Marshal(answer()); err == nil {
					r.respond(m, &nats.Msg{Data: data})
				}
			})
			if err != nil {
				return err
			}
			r.subs = append(r.subs, sub)
		}
	}
	return nil
}

// request runs on the endpoint's subscription; it waits only for a free slot.
func (r *service) request(i int, m *nats.Msg) {
	r.slots <- struct{}{}
	r.handlers.Go(func() {
		defer func() { <-r.slots }()
		start := time.Now()
		msg := fromNATS(r.b.nc, m)
		data, err := r.call(r.cfg.Endpoints[i], msg)
		if m.Reply == "" && unreadable(err) { // nobody is told by an answer
			r.b.Skip(msg, err)
		}
		reply := &nats.Msg{Data: data}
		if limit := r.b.nc.MaxPayload(); err == nil && int64(len(data)) > limit {
			err = subjects.Errorf(subjects.CodePayloadTooLarge,
				"the reply of %d bytes exceeds the server's limit of %d", len(data), limit)
		}
		if err != nil {
			reply = r.refusal(m.Subject, err)
		}
		r.count(i, time.Since(start), reply.Header)
		r.respond(m, reply)
	})
}

func (r *service) call(e Endpoint, m Msg) (data []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.b.log.Error("endpoint panicked", slog.String("subject", m.Subject),
				slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			err = fmt.Errorf("endpoint panicked: %v", p)
		}
	}()
	if err := r.b.admit(r.work, m, Shared); err != nil {
		return nil, err
	}
	ctx := r.work
	if e.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.Timeout)
		defer cancel()
	}
	return e.Handle(ctx, m)
}

func (r *service) respond(m, reply *nats.Msg) {
	if !answerable(m.Reply) {
		if m.Reply != "" {
			r.b.log.Warn("not answered: the reply subject is no inbox", slog.String("subject", m.Subject), slog.String("reply", m.Reply))
		}
		return
	}
	reply.Subject = m.Reply
	err := mapError(r.b.nc.PublishMsg(reply))
	switch {
	case err == nil:
	case errors.Is(err, ErrClosed): // as of all that are in hand then: stop tells how many
		r.unsent.Add(1)
	default:
		r.b.log.Warn("reply not sent", slog.String("subject", m.Subject), slog.Any("error", err))
	}
}

// refusal is the wire form of an error.
func (r *service) refusal(subject string, err error) *nats.Msg {
	e := AsError(err)
	if _, ours := errors.AsType[*subjects.Error](err); !ours {
		level := slog.LevelError
		if e.Code == subjects.CodeUnavailable {
			level = slog.LevelWarn // the store is away: the caller repeats
		}
		r.b.log.Log(context.Background(), level, "endpoint failed", slog.String("subject", subject), slog.Any("error", err))
	}
	if r.b.cfg.Refused != nil {
		r.b.cfg.Refused(subject, e)
	}
	data, h := Refusal(e)
	return &nats.Msg{Data: data, Header: nats.Header(h)}
}

// Refusal is the answer to a request that is refused: {"error":{…}}, with the
// headers Nats-Service-Error and Nats-Service-Error-Code.
func Refusal(err error) ([]byte, Header) {
	e := AsError(err)
	data, merr := json.Marshal(map[string]*subjects.Error{"error": e})
	if merr != nil {
		data = []byte(`{"error":{"code":"internal","message":"an internal error"}}`)
	}
	_, _, _, status := subjects.CodeInfo(e.Code)
	return data, Header{
		micro.ErrorHeader:     {reasonLine(string(e.Code) + ": " + e.Message)},
		micro.ErrorCodeHeader: {strconv.Itoa(status)},
	}
}

// AsError is what a caller hears of an error: one of the contract as it is, of a
// bus that is away or full that it may be asked again, and of all else that it
// is internal.
func AsError(err error) *subjects.Error {
	if e, ours := errors.AsType[*subjects.Error](err); ours {
		return e
	}
	for _, again := range []error{ErrNoResponders, ErrTimeout, ErrFull, ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, again) {
			e := subjects.Errorf(subjects.CodeUnavailable, "the fleet's store does not answer now").
				WithRemedy("repeat the request").RetryAfter(time.Second)
			e.Err = err
			return e
		}
	}
	return subjects.AsError(err)
}

// stop drains, waits, aborts, and waits again.
func (r *service) stop(abort context.CancelCauseFunc) {
	var draining sync.WaitGroup
	for _, sub := range r.subs {
		draining.Go(func() {
			if err := sub.Drain(); err != nil {
				r.b.log.Debug("endpoint not drained", slog.String("service", r.cfg.Name), slog.Any("error", err))
				_ = sub.Unsubscribe()
			}
		})
	}
	timer := time.AfterFunc(serveGrace, func() { abort(errStopping) })
	defer timer.Stop()
	draining.Wait()
	r.handlers.Wait()
	abort(nil)
	if n := r.unsent.Load(); n > 0 {
		r.b.log.Warn("replies not sent: the connection was closed", slog.String("service", r.cfg.Name), slog.Int64("count", n))
	}
}

func (r *service) identity() micro.ServiceIdentity {
	metadata := r.cfg.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	return micro.ServiceIdentity{Name: r.cfg.Name, ID: r.id, Version: r.cfg.Version, Metadata: metadata}
}

func (r *service) info() micro.Info {
	info := micro.Info{
		ServiceIdentity: r.identity(), Type: micro.InfoResponseType, Description: r.cfg.Description,
		Endpoints: []micro.EndpointInfo{},
	}
	info.Metadata = maps.Clone(info.Metadata)
	info.Metadata[metaAhead] = r.b.ClockAhead().String()
	info.Metadata[metaProcess] = r.b.id
	if list := r.b.Skipped(); len(list) > 0 {
		if data, err := json.Marshal(list); err == nil {
			info.Metadata[metaSkipped] = string(data)
		}
	}
	for _, e := range r.cfg.Endpoints {
		info.Endpoints = append(info.Endpoints, micro.EndpointInfo{
			Name: e.Name, Subject: e.Subject, QueueGroup: r.cfg.Queue, Metadata: e.Metadata,
		})
	}
	return info
}

func (r *service) statistics() micro.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := micro.Stats{
		ServiceIdentity: r.identity(), Type: micro.StatsResponseType, Started: r.started,
		Endpoints: make([]*micro.EndpointStats, len(r.stats)),
	}
	for i, e := range r.stats {
		if e.NumRequests > 0 {
			e.AverageProcessingTime = e.ProcessingTime / time.Duration(e.NumRequests)
		}
		s.Endpoints[i] = &e
	}
	return s
}

// toldStats are statistics with the service's own figures.
type toldStats struct {
	micro.Stats
	Data any `json:"data,omitempty"`
}

func (r *service) told() toldStats {
	s := toldStats{Stats: r.statistics()}
	if r.cfg.Figures != nil {
		s.Data = r.cfg.Figures()
	}
	return s
}

func (r *service) count(i int, took time.Duration, h nats.Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &r.stats[i]
	e.NumRequests++
	e.ProcessingTime += took
	if code := Header(h).Get(micro.ErrorCodeHeader); code != "" {
		e.NumErrors++
		e.LastError = code + ":" + Header(h).Get(micro.ErrorHeader)
	}
}
