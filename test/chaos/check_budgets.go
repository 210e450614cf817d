//go:build linux

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/test/rig"
)

// knownMost is how long it may take, with nothing wrong, until every router knows
// what was spent and the offers are over that were made before.
const knownMost = 5 * time.Second

// charge is what an attempt has spent of an account.
type charge struct {
	of     string // task and attempt
	tokens int64
	at     time.Time // when it was stored
}

func attemptKey(task string, n int) string { return task + "." + strconv.Itoa(n) }

// ledger is what was charged, by account: a session, or a run; in the order of time.
type ledger map[string][]charge

// ceiling is a budget that a task shares.
type ceiling struct {
	account string
	budget  int64
}

func accounts(r *rig.Record) (list []string) {
	if id := r.Facts.SessionID; id != "" {
		list = append(list, "session."+id)
	}
	if id := r.Facts.RunID; id != "" {
		list = append(list, "run."+id)
	}
	return list
}

func ceilings(r *rig.Record) (list []ceiling) {
	if b := r.Facts.SessionBudget; b > 0 {
		list = append(list, ceiling{"session." + r.Facts.SessionID, b})
	}
	if b := r.Facts.RunBudget; b > 0 {
		list = append(list, ceiling{"run." + r.Facts.RunID, b})
	}
	return list
}

// spent is what an account had spent by t.
func (l ledger) spent(account string, t time.Time) (sum int64) {
	for _, c := range l[account] {
		if !c.at.After(t) {
			sum += c.tokens
		}
	}
	return sum
}

// emptied is when the budget was spent; zero: it was not.
func (l ledger) emptied(c ceiling) time.Time {
	sum := int64(0)
	for _, x := range l[c.account] {
		if sum += x.tokens; sum >= c.budget {
			return x.at
		}
	}
	return time.Time{}
}

// readLedger reads what was charged to whom.
func (f *findings) readLedger() ledger {
	l := ledger{}
	for i := range f.dumps["KV_FLEET_LEDGER"] {
		m := &f.dumps["KV_FLEET_LEDGER"][i]
		key := strings.TrimPrefix(m.Subject, "$KV.FLEET_LEDGER.")
		tokens, err := strconv.ParseInt(string(m.Data), 10, 64)
		part := strings.SplitN(key, ".", 3)
		if len(m.Data) == 0 {
			continue // a marker of the end
		}
		if err != nil || len(part) != 3 {
			f.fault("19 budgets", key, "the charge cannot be read: %q", m.Data)
			continue
		}
		account := part[0] + "." + part[1]
		l[account] = append(l[account], charge{part[2], tokens, m.Time})
	}
	for _, list := range l {
		slices.SortFunc(list, func(a, b charge) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	}
	return l
}

// checkBudgets checks budgets that tasks share: whatever an agent was told is
// taken in is charged, once; soon after a budget is spent no attempt begins; and
// who is ended for it has one that is.
func (f *findings) checkBudgets() {
	l, down := f.readLedger(), f.downtime()
	f.checkCharges(l)
	for id, list := range f.records {
		for i := range list {
			r := &list[i]
			for _, c := range ceilings(r) {
				if r.Kind == "working" {
					f.checkPurse(id, r, c, l, down)
				}
			}
		}
		f.checkPoor(id, &list[len(list)-1], l)
	}
	for _, o := range f.ops {
		if o.Op == "look" && o.ok() && o.end.Tokens != nil && len(f.records[o.ID]) > 0 {
			f.checkBalance(o, l, down)
		}
	}
}

// checkPurse checks that an attempt was not begun long after the budget was spent.
func (f *findings) checkPurse(id string, r *rig.Record, c ceiling, l ledger, down spans) {
	empty := l.emptied(c)
	if empty.IsZero() || !r.Stored.After(empty) || r.Facts.Human != nil {
		return
	}
	if quiet := down.quiet(empty, r.Stored); quiet > knownMost {
		f.fault("19 budgets", id, "attempt %d was begun %s after %d tokens of %s were spent, with nothing wrong for %s of that",
			r.Attempt, r.Stored.Sub(empty).Round(time.Millisecond), c.budget, c.account, quiet.Round(time.Millisecond))
	}
}

// checkPoor checks the end of a task that shares a budget: who was never tried has
// a budget that is spent, and says so.
func (f *findings) checkPoor(id string, last *rig.Record, l ledger) {
	own := last.Facts.TokenBudget
	poor := last.Reason.Code == "budget_exhausted" && (own == 0 || last.Facts.TokensSpent < own)
	shared := ceilings(last)
	if len(shared) == 0 || !last.Terminal() {
		return
	}
	f.counts["tasks that share a budget"]++
	if last.State == "error" && last.Attempt == 0 && !poor {
		f.fault("19 budgets", id, "it was never tried, and its end says %s", last.Reason.Code)
	}
	if !poor {
		return
	}
	f.counts["tasks that share a budget, which is spent"]++
	for _, c := range shared {
		if l.spent(c.account, last.Stored.Add(clockSlack)) >= c.budget {
			return
		}
	}
	f.fault("19 budgets", id, "its end says that a budget is spent, and none of those that it has is: %v", shared)
}

// checkBalance checks what a client was told that a budget has spent: all that was
// charged a while before, and nothing that was not.
func (f *findings) checkBalance(o *op, l ledger, down spans) {
	f.counts["balances told"]++
	c := ceilings(&f.records[o.ID][0])[0]
	from, to := time.Unix(0, o.from), time.Unix(0, o.to)
	told, most := *o.end.Tokens, l.spent(c.account, to.Add(clockSlack))
	least := l.spent(c.account, from.Add(-knownMost))
	if told > most {
		f.fault("19 budgets", o.ID, "%s was told that %s has spent %d, and %d were charged", o.Client, c.account, told, most)
	}
	if told < least && !down.meet(from.Add(-knownMost), to) {
		f.fault("19 budgets", o.ID, "%s was told that %s has spent %d, and %d were charged %s before", o.Client, c.account, told, least, knownMost)
	}
}

// checkCharges holds what was charged against the executions: what was handed in
// by who had the task, and answered, is charged once, and nothing else.
func (f *findings) checkCharges(l ledger) {
	sent, charged := map[string]bool{}, map[string]bool{}
	for account, list := range l {
		for _, c := range list {
			f.counts["charges"]++
			if key := account + "." + c.of; charged[key] {
				f.fault("19 budgets", c.of, "it is charged to %s twice", account)
			}
			charged[account+"."+c.of] = true
		}
	}
	for _, list := range f.notes {
		for i := range list {
			e := &list[i]
			switch {
			case e.What == rig.WasSent:
				sent[attemptKey(e.Task, e.Attempt)] = true
			case e.What != rig.WasAnswered || e.Code != "ok" && e.Code != "late_result" || !f.had(e):
			default:
				for _, account := range accounts(&f.records[e.Task][0]) {
					if !charged[account+"."+attemptKey(e.Task, e.Attempt)] {
						f.fault("19 budgets", e.Task, "%s was answered what it handed in of attempt %d (%s), which is not charged to %s", e.Agent, e.Attempt, e.Code, account)
					}
				}
			}
		}
	}
	for account, list := range l {
		for _, c := range list {
			if c.tokens != rig.Tokens || !sent[c.of] {
				f.fault("19 budgets", c.of, "%d tokens of it are charged to %s; handed in: %v, with %d", c.tokens, account, sent[c.of], rig.Tokens)
			}
		}
	}
}

// had reports whether a record names who handed something in as the holder.
func (f *findings) had(e *rig.Entry) bool {
	return slices.ContainsFunc(f.records[e.Task], func(r rig.Record) bool {
		return r.Kind == "working" && r.Attempt == e.Attempt && r.AgentID == e.Agent && r.InstanceID == e.Instance && r.Epoch == e.Epoch
	})
}

func (c ceiling) String() string { return fmt.Sprintf("%d of %s", c.budget, c.account) }
