package router

import "time"

// lane is effects of which maxDoing are done at once, one after another.
type lane struct {
	todo  []effect // waits for one of those that are being done to end
	doing int
}

// lane is where e waits for its turn: what is to go to others, and what nobody
// could ever do, is in no hurry, and holds up no time-out and no lost lease. The
// former has a deadline to be looked at, which does not wait for the latter.
func (w *Worker) lane(e effect) *lane {
	switch e.(type) {
	case orphaned:
		return &w.lanes[1]
	case unschedulable:
		return &w.lanes[2]
	}
	return &w.lanes[0]
}

// with runs f on the core under its lock and carries out what comes of it.
func (w *Worker) with(f func(c *core, now time.Time)) {
	for _, e := range w.decide(f) {
		w.pool.Go(func() { w.carryOut(e) })
	}
}

// decide runs f, and returns what of its effects is to be begun.
func (w *Worker) decide(f func(c *core, now time.Time)) (begin []effect) {
	w.mu.Lock()
	defer w.mu.Unlock() // whatever f does: some callers recover
	f(w.core, w.now())
	for _, e := range w.core.take() {
		switch e.(type) {
		case offer, catchUp:
			begin = append(begin, e) // as many as there are free slots, and one
		case recall, tell, outdated, settleProbe:
			// An agent that is gone does not answer for long: nothing waits for it,
			// and its next heartbeat has it told again.
			if _, twice := w.saying[e]; !twice && len(w.saying) < maxSaying {
				w.saying[e] = struct{}{}
				begin = append(begin, e)
			}
		default:
			l := w.lane(e)
			l.todo = append(l.todo, e)
		}
	}
	for i := range w.lanes {
		for l := &w.lanes[i]; len(l.todo) > 0 && l.doing < maxDoing; l.doing++ {
			begin = append(begin, l.todo[0])
			l.todo = l.todo[1:]
		}
	}
	return begin
}

// carryOut does one effect, and then whatever waits to be done. Run joins it.
func (w *Worker) carryOut(e effect) {
	w.doOne(e)
	switch e.(type) {
	case offer, catchUp:
		return
	case recall, tell, outdated, settleProbe:
		w.mu.Lock()
		delete(w.saying, e)
		w.mu.Unlock()
		return
	}
	for l := w.lane(e); ; {
		w.mu.Lock()
		if len(l.todo) == 0 {
			l.doing--
			w.mu.Unlock()
			return
		}
		e = l.todo[0]
		l.todo = l.todo[1:]
		w.mu.Unlock()
		w.doOne(e)
	}
}

func (w *Worker) doOne(e effect) {
	ctx := w.patience()
	switch e := e.(type) {
	case offer:
		w.offer(ctx, e)
	case timedOut:
		w.timeOut(ctx, e)
		w.with(func(c *core, _ time.Time) { c.acted(e.task) })
	case lost:
		w.lose(ctx, e)
		w.with(func(c *core, _ time.Time) { c.acted(e.task) })
	case unschedulable:
		w.giveUp(ctx, e)
	case orphaned:
		w.widenTask(ctx, e)
		w.with(func(c *core, _ time.Time) { c.acted(e.task) })
	case settleProbe:
		w.settleProbe(ctx, e)
	case recall:
		w.recall(ctx, e)
	case catchUp:
		w.catchUp()
	case tell:
		w.tell(ctx, e)
	case outdated:
		w.sayOutdated(ctx, e)
	}
}
