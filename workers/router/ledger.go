package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// ledgerTTL is how long spending is kept. A router that runs for longer goes on
// counting what is older while the account is used; one that starts does not know
// of it.
const ledgerTTL = 7 * 24 * time.Hour

// sweepLedger is how often accounts are forgotten that nobody has used for as long.
const sweepLedger = time.Hour

// ledger adds up what all the tasks of a session, or of a run, have spent. The
// bucket FLEET_LEDGER has a key for each account, task and attempt, which is
// created once and never changes: whoever repeats a report changes nothing.
// Every router watches it and has the sums in memory.
type ledger struct {
	kv *bus.KV

	mu    sync.Mutex
	spent map[string]spending // by account
	swept time.Time           // when the old ones were last forgotten
	own   map[uint64]struct{} // revisions counted here that the watch has not told of yet
	last  uint64              // revision that the watch told of last
}

// spending is what an account has spent, and when it last did.
type spending struct {
	tokens int64
	last   time.Time
}

// addLocked needs the lock.
func (l *ledger) addLocked(account string, tokens int64, at time.Time) {
	s := l.spent[account]
	s.tokens += tokens
	if at.After(s.last) {
		s.last = at
	}
	l.spent[account] = s
	if at.Sub(l.swept) < sweepLedger {
		return
	}
	l.swept = at
	maps.DeleteFunc(l.spent, func(_ string, s spending) bool { return at.Sub(s.last) > ledgerTTL })
}

// accounts are those that the spending of e's attempts is charged to.
func accounts(f *fleet.Facts) (list []string) {
	if f.SessionID != "" {
		list = append(list, "session."+string(f.SessionID))
	}
	if f.RunID != "" {
		list = append(list, "run."+string(f.RunID))
	}
	return list
}

// charge notes what the attempt of e that c speaks for has spent, whether the
// task goes on or has ended, before anything else is made of the report.
func (l *ledger) charge(ctx context.Context, e *fleet.Event, c claim, tokens int64, now time.Time) error {
	if tokens <= 0 || e.Facts.SessionID == "" && e.Facts.RunID == "" {
		return nil
	}
	attempt := attemptOf(e, c)
	if attempt == 0 || plant.Sometimes("charge_lost", 5) {
		return nil // it never had the task
	}
	for _, account := range accounts(&e.Facts) {
		key := fmt.Sprintf("%s.%s.%d", account, e.TaskID, attempt)
		rev, err := l.kv.Create(ctx, key, strconv.AppendInt(nil, tokens, 10), ledgerTTL)
		if err != nil && !errors.Is(err, bus.ErrExists) {
			return unavailable(err)
		}
		crash.Point("after_charge")
		l.mu.Lock()
		if err == nil && rev > l.last {
			l.own[rev] = struct{}{}
			l.addLocked(account, tokens, now)
		}
		l.mu.Unlock()
	}
	return nil
}

// attemptOf is the attempt of e that c speaks for, 0 for none.
func attemptOf(e *fleet.Event, c claim) int {
	if e.AgentID != "" && c.is(holderOf(e), e.Attempt) {
		return e.Attempt
	}
	for _, a := range slices.Backward(e.Facts.Attempts) {
		if c.is(holder{a.AgentID, a.InstanceID, a.Epoch}, a.Attempt) {
			return a.Attempt
		}
	}
	return 0
}

// take counts what the watch tells of; the error says that nobody can read it.
func (l *ledger) take(e bus.Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, own := l.own[e.Revision]
	delete(l.own, e.Revision)
	if e.Revision <= l.last {
		return nil
	}
	l.last = e.Revision
	if own || e.Deleted {
		return nil
	}
	kind, rest, _ := strings.Cut(e.Key, ".")
	id, _, ok := strings.Cut(rest, ".")
	tokens, err := strconv.ParseInt(string(e.Value), 10, 64)
	if err == nil && (!ok || tokens <= 0) {
		err = subjects.Errorf(subjects.CodeInvalidMessage, "no tokens of an attempt")
	}
	if err != nil {
		return err
	}
	if plant.Bug("charged_twice") {
		tokens *= 2
	}
	l.addLocked(kind+"."+id, tokens, e.Time)
	return nil
}

// ceilings are the budgets that e shares with other tasks.
func (l *ledger) ceilings(f *fleet.Facts) (list []escalation.Ceiling) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.SessionBudget > 0 {
		list = append(list, escalation.Ceiling{Of: "session", Budget: f.SessionBudget, Spent: l.spent["session."+string(f.SessionID)].tokens})
	}
	if f.RunBudget > 0 {
		list = append(list, escalation.Ceiling{Of: "run", Budget: f.RunBudget, Spent: l.spent["run."+string(f.RunID)].tokens})
	}
	return list
}
