package router

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"parley/subjects/fleet"
)

// figures count the records that this router stored.
type figures struct {
	since                                 atomic.Int64 // ns
	received, completed, canceled, failed atomic.Uint64
}

// count takes a record in that was stored.
func (f *figures) count(ev *fleet.Event) {
	if ev.Seq == 1 {
		f.received.Add(1)
	}
	switch ev.State {
	case fleet.StateDone, fleet.StatePartial:
		f.completed.Add(1)
	case fleet.StateCanceled:
		f.canceled.Add(1)
	case fleet.StateError, fleet.StateBlocked, fleet.StateExpired:
		f.failed.Add(1)
	case fleet.StateQueued, fleet.StateWorking, fleet.StateInputRequired:
	}
}

// Figures are what this router has counted since it began, and how many tasks
// wait in the fleet; any goroutine may call it.
func (w *Worker) Figures() fleet.TaskFigures {
	f := &w.figures
	t := fleet.TaskFigures{
		Received: f.received.Load(), Completed: f.completed.Load(), Canceled: f.canceled.Load(), Failed: f.failed.Load(),
	}
	if ns := f.since.Load(); ns != 0 {
		t.Since = time.Unix(0, ns).UTC()
	}
	causes := w.causes().Causes
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	w.core.tell(&t, now)
	t.Waiting = waitingFigures(causes, now)
	t.Limits = w.core.limitFigures(causes)
	return t
}

// waitingFigures adds the causes up for which tasks wait, by kind.
func waitingFigures(causes []fleet.WaitingCause, now time.Time) []fleet.WaitingFigures {
	var list []fleet.WaitingFigures
	for i := range causes { // they are sorted by why
		k := &causes[i]
		if len(list) == 0 || list[len(list)-1].Why != k.Why {
			list = append(list, fleet.WaitingFigures{Why: k.Why})
		}
		f := &list[len(list)-1]
		f.Tasks += k.Tasks
		for _, t := range []time.Time{k.Oldest, k.OldestSilent} {
			if !t.IsZero() {
				f.OldestSeconds = max(f.OldestSeconds, now.Sub(t).Seconds())
			}
		}
	}
	return list
}

// limitFigures tells of the accounts that are limited: those first that hold up most
// tasks. Of the limits of an account, the one that ends last.
func (c *core) limitFigures(causes []fleet.WaitingCause) []fleet.LimitFigures {
	byAccount := make(map[string]*fleet.LimitFigures)
	for _, l := range c.fleet.Limits {
		f := byAccount[l.Account]
		if f == nil {
			f = &fleet.LimitFigures{Account: l.Account}
			byAccount[l.Account] = f
		}
		if l.Until.After(f.Reset) {
			f.Reset, f.Guessed = l.Until, l.Step > 0
		}
	}
	for i := range causes {
		if f := byAccount[causes[i].Who]; f != nil && causes[i].Why == fleet.WaitLimited {
			f.Tasks, f.Late = causes[i].Tasks, causes[i].Late
		}
	}
	list := make([]fleet.LimitFigures, 0, len(byAccount))
	for _, f := range byAccount {
		list = append(list, *f)
	}
	slices.SortFunc(list, func(a, b fleet.LimitFigures) int {
		return cmp.Or(b.Late-a.Late, b.Tasks-a.Tasks, strings.Compare(a.Account, b.Account))
	})
	return list[:min(len(list), fleet.MaxLimits)]
}

// tell adds what is there now.
func (c *core) tell(t *fleet.TaskFigures, now time.Time) {
	t.Queued = c.counts[codeOfState(fleet.StateQueued)]
	t.States = make(map[fleet.State]int, 3)
	for code, s := range states {
		if s != "" && !s.Terminal() {
			t.States[s] = c.counts[code]
		}
	}
	for _, h := range c.hot {
		if held(h.ev) {
			t.Leases++
		}
	}
	var deepest []*class
	for _, cl := range c.classes {
		if cl.queued > 0 {
			deepest = append(deepest, cl)
		}
	}
	slices.SortFunc(deepest, func(a, b *class) int { return cmp.Or(b.queued-a.queued, strings.Compare(a.key, b.key)) })
	c.fleet.advance(now)
	for _, cl := range deepest[:min(len(deepest), fleet.MaxClasses)] {
		oldest := now.UnixNano()
		for _, q := range cl.queues {
			if q.head != 0 {
				oldest = min(oldest, c.x.at(q.head).created)
			}
		}
		t.Classes = append(t.Classes, fleet.ClassFigures{
			Class: cl.label(), Depth: cl.queued, OldestSeconds: time.Duration(now.UnixNano() - oldest).Seconds(),
			Why: c.fleet.whyWaits(cl.Class).Why,
		})
	}
}

// maxLabel is how much of a class's key its label shows, in bytes.
const maxLabel = 100

// label names the class for people; its hash tells those apart that are too
// long to be shown.
func (c *class) label() string {
	key := strings.TrimSuffix(c.key, ";")
	switch {
	case key == "":
		return "any"
	case len(key) > maxLabel:
		return strings.ToValidUTF8(key[:maxLabel], "") + "…" + strconv.FormatUint(c.hash, 36)
	}
	return key
}
