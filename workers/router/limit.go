package router

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
)

// The probe of a half-open account opens it when it has run for so long, or has
// ended as a try at the work. One that was never begun is given up after a while.
const (
	probeRuns  = time.Minute
	probeStale = offerTimeout + writeTimeout
)

// onLimit takes in what the bucket FLEET_AGENTS says of an account's limit.
func (w *Worker) onLimit(e bus.Entry) {
	var l *fleet.AccountLimit
	if !e.Deleted {
		var err error
		if l, err = decodeLimit(e.Value); err != nil {
			w.log.Warn("account limit not readable", slog.String("key", e.Key), slog.Any("error", err))
			return
		}
	}
	w.with(func(c *core, now time.Time) { c.setLimit(e.Key, l, now) })
}

func decodeLimit(data []byte) (*fleet.AccountLimit, error) {
	l, err := fleet.DecodeRequest[fleet.AccountLimit](data)
	if err != nil {
		return nil, err
	}
	return &l, nil
}

// setLimit takes in an account's limit: its tasks go to others, or wait.
func (c *core) setLimit(key string, l *fleet.AccountLimit, now time.Time) {
	c.fleet.advance(now)
	c.fleet.SetLimit(key, l)
	if l == nil || l.HalfOpen(now) && l.Probe == nil {
		c.reevaluate(now)
		return
	}
	for in := range c.fleet.All() {
		if in.account == l.Account {
			c.widenOrphans(in.Agent, now)
		}
	}
}

// storeLimit keeps the limit that the instance h reports, before anything else is
// done about it.
func (w *Worker) storeLimit(ctx context.Context, h holder, f failure) error {
	if plant.Bug("limit_burns") {
		return nil
	}
	account := w.accountOf(h)
	key := fleet.LimitKey(account, f.limitTier)
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(key + string(w.cfg.ID)))
	part := float64(hash.Sum32()) / (1 << 32)
	return w.updateLimit(ctx, w.drive, key, func(was *fleet.AccountLimit) (*fleet.AccountLimit, bool) {
		l := nextLimit(was, account, h.agent, f, part, w.now())
		return l, l != nil
	})
}

// accountOf is the account of an instance.
func (w *Worker) accountOf(h holder) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if in := w.core.fleet.Get(h.agent, h.instance); in != nil && in.account != "" {
		return in.account
	}
	return string(h.agent)
}

// updateLimit stores what decide makes of a limit (nil: there is none, and none any
// more), unless it says that nothing changes; and takes it in at once.
func (w *Worker) updateLimit(ctx context.Context, kv *bus.KV, key string, decide func(was *fleet.AccountLimit) (l *fleet.AccountLimit, change bool)) error {
	for {
		var was *fleet.AccountLimit
		e, err := w.drive.Get(ctx, key)
		switch {
		case errors.Is(err, bus.ErrNotFound):
		case err != nil:
			return err
		default:
			if was, err = decodeLimit(e.Value); err != nil {
				was = nil // it is replaced
			}
		}
		l, change := decide(was)
		if !change {
			return nil
		}
		switch {
		case l == nil:
			err = kv.DeleteRevision(ctx, key, e.Revision)
		case e.Revision == 0:
			_, err = kv.Create(ctx, key, fleet.MustEncode(l), 0)
		default:
			_, err = kv.Update(ctx, key, fleet.MustEncode(l), e.Revision)
		}
		if errors.Is(err, bus.ErrConflict) || errors.Is(err, bus.ErrExists) {
			continue
		}
		if err == nil {
			crash.Point("after_limit")
			w.with(func(c *core, now time.Time) { c.setLimit(key, l, now) })
			if was == nil || l == nil || was.ProbeAt != l.ProbeAt {
				w.logLimit(key, l)
			}
		}
		return err
	}
}

func (w *Worker) logLimit(key string, l *fleet.AccountLimit) {
	if l == nil {
		w.log.Info("account is open", slog.String("key", key))
		return
	}
	w.log.Info("account is limited", slog.String("account", l.Account), slog.String("model_tier", l.Tier), slog.Time("until", l.Until),
		slog.String("agent_id", string(l.By)), slog.String("message", l.Message))
}

// takeProbes takes the probe of each half-open account that the offer is to, by
// compare-and-set over all routers. free is false while another attempt is the
// probe, or the account is limited.
func (w *Worker) takeProbes(ctx context.Context, o offer, ev *fleet.Event) (taken []string, free bool, err error) {
	w.mu.Lock()
	keys := w.core.fleet.Probes(o.in)
	w.mu.Unlock()
	attempt := ev.Attempt + 1
	for _, key := range keys {
		got := false
		err := w.updateLimit(ctx, w.drive, key, func(was *fleet.AccountLimit) (*fleet.AccountLimit, bool) {
			now := w.now()
			if was == nil {
				got = true
				return nil, false // it is open
			}
			if !was.HalfOpen(now) || was.Probe != nil && (was.Probe.TaskID != ev.TaskID || was.Probe.Attempt != attempt) {
				got = false
				return nil, false
			}
			got = true
			l := *was
			l.Probe = &fleet.LimitProbe{TaskID: ev.TaskID, Attempt: attempt, At: now}
			return &l, true
		})
		if err != nil || !got {
			w.freeProbes(ctx, taken, ev.TaskID, attempt)
			return nil, false, err
		}
		taken = append(taken, key)
	}
	return taken, true, nil
}

// freeProbes gives the probes back whose attempt was not begun.
func (w *Worker) freeProbes(ctx context.Context, keys []string, task subjects.TaskID, attempt int) {
	if len(keys) == 0 {
		return
	}
	if v, err := w.latest(ctx, task); err == nil && held(v.ev) && v.ev.Attempt == attempt {
		return
	}
	for _, key := range keys {
		w.settleProbe(ctx, settleProbe{key: key, task: task})
	}
}

// settleProbe opens the account, or lets the next attempt be its probe.
func (w *Worker) settleProbe(ctx context.Context, s settleProbe) {
	if plant.Bug("limit_forever") {
		return
	}
	err := w.updateLimit(ctx, w.drive, s.key, func(was *fleet.AccountLimit) (*fleet.AccountLimit, bool) {
		if was == nil || was.Probe == nil || was.Probe.TaskID != s.task {
			return nil, false
		}
		if s.open {
			return nil, true
		}
		l := *was
		l.Probe = nil
		return &l, true
	})
	if err != nil {
		w.log.Warn("end of a probe not stored", slog.String("key", s.key), slog.String("task_id", string(s.task)), slog.Any("error", err))
	}
}

// checkProbe asks for the end of the probes that a record of their task ends.
func (c *core) checkProbe(ev *fleet.Event) {
	for key, l := range c.fleet.Limits {
		if l.Probe == nil || l.Probe.TaskID != ev.TaskID || held(ev) || ev.Attempt < l.Probe.Attempt {
			continue
		}
		open := ev.State == fleet.StateDone || ev.State == fleet.StatePartial
		if n := len(ev.Facts.Attempts); n > 0 && !open && ev.State != fleet.StateCanceled && ev.State != fleet.StateExpired {
			open = !escalation.ClassOf(ev.Facts.Attempts[n-1].Code).Requeues()
		}
		c.do(settleProbe{key, ev.TaskID, open})
	}
}

// endProbes asks for the end of the probes that have run for long enough, or that
// no record names.
func (c *core) endProbes(now time.Time) {
	for key, l := range c.fleet.Limits {
		if l.Probe == nil {
			continue
		}
		h := c.hot[c.x.find(l.Probe.TaskID)]
		runs := h != nil && held(h.ev) && h.ev.Attempt == l.Probe.Attempt
		switch age := now.Sub(l.Probe.At); {
		case runs && age >= probeRuns:
			c.do(settleProbe{key, l.Probe.TaskID, true})
		case !runs && age >= probeStale:
			c.do(settleProbe{key, l.Probe.TaskID, false})
		}
	}
}

// expectLimit leaves the instances of an account alone for a moment whose limit a
// record tells of, but which this router has yet to hear.
func (c *core) expectLimit(ev *fleet.Event, now time.Time) {
	n := len(ev.Facts.Attempts)
	if ev.State != fleet.StateQueued || n == 0 || !ev.Facts.Attempts[n-1].Ended.Equal(ev.Time) ||
		escalation.ClassOf(ev.Facts.Attempts[n-1].Code) != escalation.ClassCapacity || now.Sub(ev.Time) > limitOnItsWay {
		return
	}
	said := c.fleet.Get(ev.Facts.Attempts[n-1].AgentID, ev.Facts.Attempts[n-1].InstanceID)
	if said == nil || said.limited {
		return
	}
	for in := range c.fleet.All() {
		if in.account == said.account {
			c.busy(in, limitOnItsWay)
		}
	}
}

// limitOnItsWay is how long a stored limit may take to reach every router.
const limitOnItsWay = 2 * time.Second

// An agent that was lost again and again rests: its tasks, or its machine, bring
// it down again and again.
const (
	crashRow      = 3
	crashRest     = 10 * time.Second // doubled by each further loss in the row
	crashRestMost = 5 * time.Minute
)

// lossRow tells how often in a row an agent was lost. An agent that goes takes all
// that it has in hand with it: that counts once.
type lossRow struct {
	n    int
	ends map[holder]time.Time // of its processes that were lost of late
}

// with is the row once what h had is lost, too.
func (r lossRow) with(h holder, at time.Time) lossRow {
	ends := map[holder]time.Time{}
	for was, end := range r.ends {
		if at.Sub(end) < crashRest {
			ends[was] = end
		}
	}
	if _, same := ends[h]; same {
		return lossRow{r.n, ends}
	}
	ends[h] = at
	return lossRow{r.n + 1, ends}
}

// countLosses keeps how often in a row each agent was lost.
func (c *core) countLosses(ev *fleet.Event) {
	n := len(ev.Facts.Attempts)
	switch {
	case ev.State == fleet.StateDone, ev.State == fleet.StatePartial:
		delete(c.lossRows, ev.AgentID)
	case n == 0 || !ev.Facts.Attempts[n-1].Ended.Equal(ev.Time) || ev.Facts.Attempts[n-1].Refused:
	case escalation.ClassOf(ev.Facts.Attempts[n-1].Code) == escalation.ClassLoss:
		a := &ev.Facts.Attempts[n-1]
		c.lossRows[a.AgentID] = c.lossRows[a.AgentID].with(holder{a.AgentID, a.InstanceID, a.Epoch}, ev.Time)
	default:
		delete(c.lossRows, ev.Facts.Attempts[n-1].AgentID)
	}
}

// restCrashing has an agent rest that is just lost, if that is once too often in a
// row.
func (w *Worker) restCrashing(ctx context.Context, h holder, now time.Time) {
	w.mu.Lock()
	row := w.core.lossRows[h.agent].with(h, now).n
	w.mu.Unlock()
	if row < crashRow {
		return
	}
	rest := crashRest
	for i := crashRow; i < row && rest < crashRestMost; i++ {
		rest *= 2
	}
	w.coolDown(ctx, h.agent, now.Add(min(rest, crashRestMost)), subjects.CodeAgentLost)
}

// apiLimits serves agent limits: the accounts that are limited.
func (w *Worker) apiLimits(_ context.Context, _ subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.AgentLimits](data)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.core.limitsReply(req.Account), nil
}

// apiLift serves agent lift: an operator ends the limits of an account.
func (w *Worker) apiLift(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.AgentLimits](data)
	if err != nil {
		return nil, err
	}
	if !w.operator(from) {
		return nil, subjects.Errorf(subjects.CodeForbidden, "%s may not lift a limit", from).WithRemedy("an operator may")
	}
	w.mu.Lock()
	reply := w.core.limitsReply(req.Account)
	w.mu.Unlock()
	if req.Account == "" || len(reply.Limits) == 0 {
		return nil, subjects.Errorf(subjects.CodeNotFound, "no limit of account %q is known", req.Account).
			At("/account").WithRemedy("agent limits lists the accounts that are limited")
	}
	for _, l := range reply.Limits {
		kv := w.drive.Telling(workers.Line("", from, handshake.EventAgentLift, l))
		err := w.updateLimit(ctx, kv, fleet.LimitKey(l.Account, l.Tier), func(was *fleet.AccountLimit) (*fleet.AccountLimit, bool) {
			return nil, was != nil
		})
		if err != nil {
			return nil, unavailable(err)
		}
	}
	return reply, nil
}
