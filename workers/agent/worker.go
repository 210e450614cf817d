package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/bus/pool"
	"parley/subjects"
	"parley/subjects/fleet"
)

// idleHandlers is how many goroutines wait for the next tasks.
const idleHandlers = 64

// farewellTimeout bounds the wait for the last announce: without JetStream
// there is nobody to take it.
const farewellTimeout = 2 * time.Second

// Worker is one agent instance. Make it with New, start it with Run.
type Worker struct {
	// fixed after New
	cfg     Config
	log     *slog.Logger
	epoch   int64
	hand    *hand
	state   *state
	spool   *spool // nil: none
	letters *letters
	// failures has room for as many failed results as are handed in at a time:
	// a thousand at one instant would have the results of others wait.
	failures chan struct{}

	limit   atomic.Pointer[heldLimit] // nil: none holds
	started atomic.Bool
	wg      sync.WaitGroup // everything that Run waits for
	work    *pool.Pool     // the handlers; too
}

// New checks c and returns its worker. It starts nothing.
func New(c Config) (*Worker, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: c, epoch: time.Now().UnixNano(),
		log:     c.Log.With(slog.String("component", "agent"), slog.String("agent_id", string(c.ID)), slog.String("instance_id", string(c.Instance))),
		hand:    newHand(c.MaxParallel, c.Heartbeat),
		work:    pool.New(min(c.MaxParallel, idleHandlers)),
		letters: newLetters(c.MaxMessages), failures: make(chan struct{}, failuresAtOnce),
		state: newState(c.MCP, c.Skills),
	}
	if c.Watch != nil {
		w.hand.unwell = "nobody has looked yet whether the work can be done"
	}
	if err := w.checkAnnouncement(w.state.get()); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if c.Spool != "" {
		s, err := openSpool(c.Spool)
		if err != nil {
			return nil, fmt.Errorf("agent: %w", err)
		}
		if w.epoch, err = s.epoch(w.epoch); err != nil {
			return nil, fmt.Errorf("agent: %w", err)
		}
		w.spool = s
	}
	return w, nil
}

// checkAnnouncement checks whatever of an announce the fleet would refuse.
func (w *Worker) checkAnnouncement(v vitals) error {
	data, err := fleet.Encode(w.announcement(v))
	if err != nil {
		return fmt.Errorf("encode the announce: %w", subjects.AsError(err).Err)
	}
	_, err = fleet.DecodeAnnounce(data)
	return err
}

// skillNames lists the ids and names of A2A skills: what may be required as a
// capability.
func skillNames(skills []json.RawMessage) (names []string) {
	for _, raw := range skills {
		var s struct {
			ID   string `json:"id"`
			Name string `json:"name"`
		}
		if json.Unmarshal(raw, &s) != nil {
			continue
		}
		for _, n := range []string{s.ID, s.Name} {
			if n != "" {
				names = append(names, n)
			}
		}
	}
	return names
}

// Instance is the instance id, which New chose if the Config did not.
func (w *Worker) Instance() subjects.InstanceID { return w.cfg.Instance }

// Epoch is when the instance was made, in ns: it tells it from an earlier one
// of the same id.
func (w *Worker) Epoch() int64 { return w.epoch }

// Name names the worker in logs.
func (w *Worker) Name() string { return "agent" }

// Ready returns nil once the fleet knows of the agent.
func (w *Worker) Ready() error {
	if !w.state.isKnown() {
		return errors.New("agent: not announced yet")
	}
	return nil
}

// Run is the agent's life: it announces, takes tasks and does them until ctx
// ends, then drains as the package comment says. It returns nil when that is
// done, and an error only if it could not begin. Call it once.
func (w *Worker) Run(ctx context.Context) error {
	if w.started.Swap(true) {
		return errors.New("agent: Run was called before")
	}
	// Work outlives ctx by Grace, and telling the fleet outlives the work.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	w.sendLeftovers(ctx, life)
	offers, err := w.cfg.Bus.Subscribe(subjects.Offer(w.cfg.ID, w.cfg.Instance), "", func(m bus.Msg) { w.onOffer(life, m) })
	if err != nil {
		return fmt.Errorf("agent: take offers: %w", err)
	}
	controls, err := w.cfg.Bus.Subscribe(subjects.Control(w.cfg.ID, w.cfg.Instance), "", w.onControl)
	if err != nil {
		_ = offers.Unsubscribe()
		return fmt.Errorf("agent: take control messages: %w", err)
	}
	greetings, err := w.cfg.Bus.Subscribe(subjects.Handshake(w.cfg.ID), handshakeQueue, w.onHandshake)
	if err != nil {
		_ = errors.Join(offers.Unsubscribe(), controls.Unsubscribe())
		return fmt.Errorf("agent: take handshakes: %w", err)
	}
	work, abort := context.WithCancelCause(life)
	defer abort(nil)
	subs := []*bus.Subscription{offers, controls, greetings}
	if w.cfg.Inbox != nil {
		inbox, err := w.cfg.Bus.Subscribe(subjects.Inbox(w.cfg.ID, w.cfg.Instance), "", func(m bus.Msg) { w.onLetter(work, life, m) })
		if err != nil {
			_ = errors.Join(offers.Unsubscribe(), controls.Unsubscribe(), greetings.Unsubscribe())
			return fmt.Errorf("agent: take messages: %w", err)
		}
		subs = append(subs, inbox)
	}
	w.wg.Go(func() { w.announceAll(life) })
	w.wg.Go(func() { w.beatAll(life) })
	w.wg.Go(func() { w.watchRepo(life) })
	w.wg.Go(func() { w.watchMCP(life) })
	if e, ok := w.cfg.Handler.(*Exec); ok {
		w.wg.Go(func() { e.attend(life, w.log) })
	}
	if w.cfg.Watch != nil {
		w.wg.Go(func() { w.cfg.Watch(life, func(c Condition) { w.told(life, c) }) })
	}
	w.log.Info("agent is ready", slog.Int("max_parallel", w.cfg.MaxParallel), slog.Int64("epoch", w.epoch))

	<-ctx.Done()
	w.drain(abort)
	w.farewell()
	for _, s := range subs {
		if err := s.Drain(); err != nil { //nolint:contextcheck // bounded by itself; ctx has ended
			w.log.Debug("end a subscription", slog.Any("error", err))
		}
	}
	end(ErrStopping)
	w.wg.Wait()
	w.work.Wait()
	w.log.Info("agent has stopped")
	return nil
}

// drain waits for the work in hand, tasks and messages, for a while, and then
// hands it back; abort ends what deals with messages.
func (w *Worker) drain(abort context.CancelCauseFunc) {
	dealt := w.letters.close()
	idle, emptied := w.hand.stop()
	w.log.Info("agent is draining", slog.Duration("grace", w.cfg.Grace))
	if bothWithin(emptied, dealt, w.cfg.Grace) {
		return
	}
	w.hand.abort(ErrStopping)
	abort(ErrStopping)
	<-idle
	w.letters.hands.Wait()
	bothWithin(emptied, dealt, w.cfg.HandIn)
}

// farewell makes sure that the fleet has heard that nothing is to be expected
// here any more.
func (w *Worker) farewell() {
	w.heartbeat()
	if !within(w.state.farewell, farewellTimeout) {
		w.log.Debug("the last announce is not stored")
	}
}

// within reports whether c is closed before d is over.
func within(c <-chan struct{}, d time.Duration) bool {
	select {
	case <-c:
		return true
	default:
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
		return false
	}
}

// bothWithin reports whether both are closed before d is over.
func bothWithin(one, other <-chan struct{}, d time.Duration) bool {
	begun := time.Now()
	return within(one, d) && within(other, max(d-time.Since(begun), 0))
}

// do runs the handler of a task and hands in what comes of it. ctx is the
// handler's, life the harness's.
func (w *Worker) do(ctx, life context.Context, h *held) {
	ctx, stop := context.WithDeadlineCause(ctx, h.deadline, ErrDeadline)
	defer stop()
	res, err := w.call(ctx, h.task)
	h.pace.close()
	if res.TokensSpent == 0 { // it has said it while it worked
		res.TokensSpent = h.spent.Load()
	}
	out, send := verdict(ctx, res, err)
	cause := context.Cause(ctx)
	h.cancel(errGone)
	task := slog.String("task_id", string(h.id))
	if !send {
		w.hand.forget(h)
		w.log.Info("task was dropped", task, slog.String("reason", cause.Error()), slog.Int64("tokens_spent", out.TokensSpent))
		return
	}
	switch {
	case err != nil && errors.Is(cause, ErrStopping):
		w.log.Info("task is handed back", task)
	case err != nil:
		w.log.Info("task failed", task, slog.Any("error", err))
	}
	w.holdLimit(&out, time.Now())
	w.handIn(life, h, out)
}

// call runs the handler; a panic becomes its error.
func (w *Worker) call(ctx context.Context, t *Task) (r fleet.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("handler panicked", slog.String("task_id", string(t.ID())), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			r, err = fleet.Result{}, &Fail{Message: fmt.Sprintf("the handler panicked: %v", p), Retryable: true}
		}
	}()
	if ctx.Err() != nil { // canceled before it began
		return fleet.Result{}, context.Cause(ctx)
	}
	return w.cfg.Handler.Handle(ctx, t)
}
