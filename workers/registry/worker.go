package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// sweepEvery is how often lost agents are looked for.
const sweepEvery = time.Second

// Config is what a registry needs.
type Config struct {
	Bus       *bus.Bus           // required
	Operators []subjects.AgentID // who may have an agent forgotten
	Version   string             // of the program, SemVer; shown by nats micro ls
	Log       *slog.Logger       // nil: discarded
}

func (c Config) withDefaults() Config {
	if c.Version == "" {
		c.Version = "0.0.0"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	if c.Bus == nil {
		return errors.New("registry: no bus")
	}
	return nil
}

// Worker is a registry. New is required.
type Worker struct {
	// fixed after New
	cfg Config
	log *slog.Logger

	ready atomic.Bool

	agents *bus.KV // set by Run

	mu   sync.Mutex // guards view
	view *view
}

// New checks cfg and wires a registry; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Worker{cfg: cfg, log: cfg.Log.With(slog.String("component", "registry"))}, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "registry" }

// now is the time by the servers' clocks.
func (w *Worker) now() time.Time { return w.cfg.Bus.Now() }

// Ready returns nil once the registry knows every announce and serves.
func (w *Worker) Ready() error {
	switch {
	case !w.cfg.Bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("reading the announces")
	}
	return nil
}

// Run catches up, serves until ctx ends, answers the calls in hand and returns
// once everything it started has ended.
func (w *Worker) Run(ctx context.Context) error {
	w.mu.Lock()
	w.view = newView(w.now())
	w.mu.Unlock()
	agents, err := w.cfg.Bus.KV(ctx, subjects.BucketAgents)
	if err != nil {
		return fmt.Errorf("registry: open bucket %s: %w", subjects.BucketAgents, err)
	}
	w.agents = agents

	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var loops sync.WaitGroup
	defer loops.Wait() // after fail(nil), by which both loops end
	defer fail(nil)
	caughtUp := make(chan struct{}, 2)
	loop := func(name string, f func(context.Context) error) {
		loops.Go(func() {
			if err := f(run); err != nil && run.Err() == nil {
				fail(fmt.Errorf("registry: %s: %w", name, err))
			}
		})
	}
	loop("read announces", func(ctx context.Context) error {
		return w.cfg.Bus.Tail(ctx, bus.Tail{
			Stream: subjects.StreamAnnounce, LastPerSubject: true, Handle: w.onAnnounce, Refused: w.onRefused,
			CaughtUp: func(uint64) { caughtUp <- struct{}{} },
		})
	})
	loop("watch agents", func(ctx context.Context) error {
		return agents.Watch(ctx, func(e bus.Entry) {
			if e.Key == "" {
				caughtUp <- struct{}{}
				return
			}
			w.onEntry(agents, e)
		})
	})
	for range cap(caughtUp) {
		select {
		case <-caughtUp:
		case <-run.Done():
			return cause(ctx, run)
		}
	}
	return w.serve(ctx, run)
}

// serve listens, answers and sweeps until run ends.
func (w *Worker) serve(ctx, run context.Context) error {
	for _, s := range []struct {
		subject string
		fn      func(bus.Msg)
	}{
		{subjects.HeartbeatPattern, w.onHeartbeat},
		{subjects.AgentEventPattern, w.onEvent},
	} {
		sub, err := w.cfg.Bus.Subscribe(s.subject, "", s.fn)
		if err != nil {
			return fmt.Errorf("registry: subscribe %s: %w", s.subject, err)
		}
		defer func() {
			if err := sub.Unsubscribe(); err != nil {
				w.log.Debug("unsubscribe", slog.String("subject", s.subject), slog.Any("error", err))
			}
		}()
	}
	told := newProgress(w.cfg.Bus, w.log)
	sub, err := w.cfg.Bus.SubscribeBeside(subjects.ProgressPattern, "registry", told.onProgress) // one registry stores it
	if err != nil {
		return fmt.Errorf("registry: subscribe %s: %w", subjects.ProgressPattern, err)
	}
	var storing sync.WaitGroup
	storing.Go(func() { told.run(run) })
	defer storing.Wait()
	defer func() {
		if err := sub.Unsubscribe(); err != nil {
			w.log.Debug("unsubscribe", slog.String("subject", subjects.ProgressPattern), slog.Any("error", err))
		}
	}()
	// Calls in hand are answered after ctx has ended: stop waits for them.
	stop, err := w.cfg.Bus.Serve(context.WithoutCancel(ctx), w.service())
	if err != nil {
		return fmt.Errorf("registry: serve the API: %w", err)
	}
	defer stop()
	w.ready.Store(true)
	defer w.ready.Store(false)
	w.log.Info("registry serves")

	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case <-run.Done():
			return cause(ctx, run)
		case <-sweep.C:
			w.with(func(v *view, now time.Time) []fleet.AgentEvent { return v.sweep(now) })
		}
	}
}

// cause is why run ended; nil when ctx ended it.
func cause(ctx, run context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(run)
}

func (w *Worker) service() bus.Service {
	return bus.Service{
		Name: "registry", Version: w.cfg.Version, Queue: "registry",
		Description: "Lists the fleet's agents, and keeps what they tell while they work",
		Metadata:    map[string]string{"kind": "registry"},
		Figures:     func() any { return w.Figures() },
		Endpoints: []bus.Endpoint{{
			Name: "agent_list", Subject: subjects.APIPattern("agent", "list"), Handle: w.list,
			Metadata: map[string]string{"request": "AgentList", "reply": "AgentListReply"},
		}, {
			Name: "task_logs", Subject: subjects.APIPattern("task", "logs"), Handle: w.logs,
			Metadata: map[string]string{"request": "TaskLogs", "reply": "TaskLogsReply"},
		}, {
			Name: "agent_forget", Subject: subjects.APIPattern("agent", "forget"), Handle: w.forget,
			Metadata: map[string]string{"request": "AgentForget", "reply": "AgentForgotten"},
		}},
	}
}

// Bounds of a listing, in bytes. A page has one instance at least.
const (
	maxPage = 900 << 10
	maxView = fleet.MaxMessage // of an instance
)

// list answers agent.list.
func (w *Worker) list(_ context.Context, m bus.Msg) ([]byte, error) {
	q, err := fleet.DecodeRequest[fleet.AgentList](m.Data)
	if err != nil {
		return nil, err
	}
	agent, instance, _ := strings.Cut(q.After, ".")
	w.mu.Lock()
	views := w.view.list(q.AgentID, q.All || q.AgentID != "", key{subjects.AgentID(agent), subjects.InstanceID(instance)}, w.now())
	w.mu.Unlock()
	if q.AgentID != "" && q.After == "" && len(views) == 0 {
		return nil, subjects.Errorf(subjects.CodeNotFound, "no agent %q was heard of in the last day", q.AgentID).
			At("/agent_id").WithRemedy("parley agent ls shows who has")
	}
	return page(views, q.Limit)
}

// page is the reply with the first of views: as many as fit, and at most limit
// unless that is 0.
func page(views []fleet.AgentView, limit int) ([]byte, error) {
	reply := struct {
		Agents []json.RawMessage `json:"agents"`
		Next   string            `json:"next,omitempty"`
	}{Agents: []json.RawMessage{}}
	size := 0
	for i := range views {
		v := &views[i]
		data, err := fleet.Encode(v)
		if err == nil && len(data) > maxView { // by its heartbeats
			v.Announce.MCPHealth, v.Holding = nil, nil
			data, err = fleet.Encode(v)
		}
		if err != nil {
			return nil, err
		}
		if size += len(data); i > 0 && (i == limit || size > maxPage) {
			last := &views[i-1].Announce.Worker
			reply.Next = string(last.AgentID) + "." + string(last.InstanceID)
			break
		}
		reply.Agents = append(reply.Agents, data)
	}
	return fleet.Encode(&reply)
}

// with changes the view and tells what comes of it.
func (w *Worker) with(f func(*view, time.Time) []fleet.AgentEvent) {
	events := w.change(f)
	for i := range events {
		e := &events[i]
		data, err := fleet.Encode(e)
		if err == nil {
			err = w.cfg.Bus.Publish(subjects.AgentEvent(e.AgentID, e.InstanceID), data, nil)
		}
		if err != nil {
			w.log.Warn("event not told", slog.String("agent_id", string(e.AgentID)), slog.String("instance_id", string(e.InstanceID)), slog.String("event", e.Event), slog.Any("error", err))
			continue
		}
		w.log.Info("agent changed", slog.String("agent_id", string(e.AgentID)), slog.String("instance_id", string(e.InstanceID)), slog.String("event", e.Event))
	}
}

// change changes the view.
func (w *Worker) change(f func(*view, time.Time) []fleet.AgentEvent) []fleet.AgentEvent {
	w.mu.Lock()
	defer w.mu.Unlock() // whatever f does: the bus recovers
	return f(w.view, w.now())
}

func (w *Worker) onAnnounce(m bus.Msg) {
	k, ok := parseKey(subjects.AnnouncePattern, m.Subject)
	if !ok {
		return
	}
	a, err := fleet.DecodeAnnounce(m.Data)
	if err == nil && (a.Worker.AgentID != k.agent || a.Instance() != k.instance) {
		err = subjects.Errorf(subjects.CodeForbidden, "it announces %s/%s", a.Worker.AgentID, a.Instance()).At("/worker")
	}
	if err != nil {
		w.cfg.Bus.Skip(m, err)
		w.tellRefused(k, m, err)
		return
	}
	w.with(func(v *view, now time.Time) []fleet.AgentEvent { return v.announced(k, a, m.Time, now) })
}

// onRefused takes an announce that the guard does not admit.
func (w *Worker) onRefused(m bus.Msg, err error) {
	if k, ok := parseKey(subjects.AnnouncePattern, m.Subject); ok {
		w.tellRefused(k, m, err)
	}
}

// refusedFor is how long after an announce its instance is told that it does not
// count: one that is read again later is of a process that was told.
const refusedFor = time.Minute

// tellRefused tells an instance why its announce does not count. It is told once:
// each announce that it repeats is refused anew.
func (w *Worker) tellRefused(k key, m bus.Msg, why error) {
	if w.now().Sub(m.Time) > refusedFor {
		return
	}
	e := subjects.AsError(why)
	message := e.Message
	if e.Pointer != "" {
		message += " at " + e.Pointer
	}
	if e.Remedy != "" {
		message += "; " + e.Remedy
	}
	c := fleet.Control{
		Header: fleet.Header{Type: fleet.TypeControl, ProtocolVersion: fleet.Version},
		Action: fleet.ActionRefused, Reason: &fleet.Reason{Code: e.Code, Message: message},
	}
	if err := w.cfg.Bus.Publish(subjects.Control(k.agent, k.instance), fleet.MustEncode(&c), nil); err != nil {
		w.log.Warn("refusal not told", slog.String("agent_id", string(k.agent)), slog.String("instance_id", string(k.instance)), slog.Any("error", err))
	}
}

func (w *Worker) onHeartbeat(m bus.Msg) {
	k, ok := parseKey(subjects.HeartbeatPattern, m.Subject)
	if !ok {
		return // a router's
	}
	h, err := fleet.DecodeHeartbeat(m.Data)
	if err != nil {
		w.cfg.Bus.Skip(m, err)
		return
	}
	w.with(func(v *view, now time.Time) []fleet.AgentEvent { return v.heard(k, h, now) })
}

func (w *Worker) onEvent(m bus.Msg) {
	k, ok := parseKey(subjects.AgentEventPattern, m.Subject)
	if !ok {
		return
	}
	e, err := fleet.DecodeAgentEvent(m.Data)
	if err != nil {
		w.cfg.Bus.Skip(m, err)
		return
	}
	w.mu.Lock()
	w.view.told(k, e)
	w.mu.Unlock()
}

// onEntry takes a change in the agents' bucket.
func (w *Worker) onEntry(agents *bus.KV, e bus.Entry) {
	if name, ok := strings.CutPrefix(e.Key, fleet.DrainKeyPrefix); ok {
		d, err := entry[fleet.AgentDrained](e)
		if err != nil {
			agents.Skip(e, err)
			return
		}
		w.with(func(v *view, now time.Time) []fleet.AgentEvent { return v.drain(subjects.AgentID(name), d, now) })
	}
	if name, ok := strings.CutPrefix(e.Key, fleet.RetiredKeyPrefix); ok {
		r, err := entry[fleet.AgentRetired](e)
		if err != nil {
			w.log.Warn("entry ignored", slog.String("key", e.Key), slog.Any("error", err))
			return
		}
		w.mu.Lock()
		w.view.retire(subjects.AgentID(name), r)
		w.mu.Unlock()
	}
	if name, ok := strings.CutPrefix(e.Key, fleet.CoolKeyPrefix); ok {
		c, err := entry[fleet.AgentCooling](e)
		if err != nil {
			agents.Skip(e, err)
			return
		}
		w.mu.Lock()
		w.view.cool(subjects.AgentID(name), c)
		w.mu.Unlock()
	}
	if strings.HasPrefix(e.Key, fleet.LimitKeyPrefix) {
		l, err := entry[fleet.AccountLimit](e)
		if err != nil {
			w.log.Warn("entry ignored", slog.String("key", e.Key), slog.Any("error", err))
			return
		}
		w.mu.Lock()
		w.view.limit(e.Key, l)
		w.mu.Unlock()
	}
}

// entry decodes a bucket's value; nil for a key that was deleted.
func entry[T any](e bus.Entry) (*T, error) {
	if e.Deleted {
		return nil, nil //nolint:nilnil // gone is a value here
	}
	v := new(T)
	if err := json.Unmarshal(e.Value, v); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return v, nil
}

// parseKey reads agent and instance from a subject.
func parseKey(pattern, subject string) (key, bool) {
	vars, ok := subjects.Tokens(pattern, subject)
	if !ok {
		return key{}, false
	}
	a, err := subjects.ParseAgentID(vars[0])
	return key{a, subjects.InstanceID(vars[1])}, err == nil
}
