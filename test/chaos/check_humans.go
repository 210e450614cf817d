//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"parley/test/rig"
)

// Bounds of what people are told of, where nothing is wrong.
const (
	calledMost  = 15 * time.Second // until a contact hears of what waits, and from then on until he hears of it again: every 4 s
	overMost    = 10 * time.Second // until what waits no more is known to be over
	namedMost   = 40 * time.Second // until a task is named at all, whatever is wrong but that the servers are out
	circuitMost = 75 * time.Second // for which an endpoint is spared whose answers were lost
)

// call is a call of somebody, as he took it down.
type call struct {
	*line    `json:"-"`
	Alert    string            `json:"alert_id"`
	Sequence int               `json:"sequence"`
	Group    map[string]string `json:"group"`
	Since    time.Time         `json:"since"`
	Omitted  int               `json:"truncated"`
	Tasks    []struct {
		TaskID string `json:"task_id"`
	} `json:"tasks"`
}

func (c *call) group() string { return groupOf(c.Group["code"], c.Group["agent"]) }

func (c *call) names(task string) bool {
	for _, t := range c.Tasks {
		if t.TaskID == task {
			return true
		}
	}
	return c.Omitted > 0
}

// groupOf is what the tasks of one alert have in common.
func groupOf(code, agent string) string { return code + " at " + agent }

// webhookCalls are the calls whose bodies can be read, in the order in which they came.
func (f *findings) webhookCalls() (calls []call) {
	for i := range f.calls {
		c := call{line: &f.calls[i]}
		if err := json.Unmarshal(c.Body, &c); err != nil {
			f.fault("8 humans", c.ID, "the body of a call: %v", err)
			continue
		}
		calls = append(calls, c)
	}
	f.counts["webhook calls"] = len(calls)
	return calls
}

// wait is a time for which a task waits for a human.
type wait struct {
	task, code, agent string
	from, to          time.Time
}

// waits are all of them by group. What waits to the end does so until the last that
// is known of anything.
func (f *findings) waits(last time.Time) map[string][]wait {
	for _, list := range f.records {
		if at := list[len(list)-1].Stored; at.After(last) {
			last = at
		}
	}
	for _, list := range f.dumps {
		if n := len(list); n > 0 && list[n-1].Time.After(last) {
			last = list[n-1].Time
		}
	}
	all := map[string][]wait{}
	for id, list := range f.records {
		for i := range list {
			if list[i].Kind != "human" {
				continue
			}
			w := wait{task: id, code: list[i].Reason.Code, agent: lastAttempt(&list[i]).AgentID, from: list[i].Stored, to: last}
			over := slices.IndexFunc(list[i:], func(r rig.Record) bool { return r.State != "input_required" || r.Facts.Await != "human" })
			if over >= 0 {
				w.to = list[i+over].Stored
			}
			g := groupOf(w.code, w.agent)
			all[g] = append(all[g], w)
		}
	}
	return all
}

func lastAttempt(r *rig.Record) (last rig.PastAttempt) {
	if n := len(r.Facts.Attempts); n > 0 {
		last = r.Facts.Attempts[n-1]
	}
	return last
}

// checkHumans checks that whatever waits for a human is told of, once in the
// stream; that all contacts hear of it again and again until somebody answers, and
// nothing more afterwards; and what can be proven of calls.
func (f *findings) checkHumans() {
	slices.SortStableFunc(f.calls, func(a, b line) int { return cmp.Compare(a.At, b.At) })
	f.checkSigned()
	calls := f.webhookCalls()
	var last time.Time
	known := map[string]bool{}      // ids
	byGroup := map[string][]*call{} // all
	byAlert := map[string][]*call{} // those that came under an id for the first time
	firstOf := map[string][]*call{} // by group
	for i := range calls {
		c := &calls[i]
		last = c.at()
		byGroup[c.group()] = append(byGroup[c.group()], c)
		if !known[c.ID] {
			byAlert[c.Alert] = append(byAlert[c.Alert], c)
			firstOf[c.group()] = append(firstOf[c.group()], c)
		}
		known[c.ID] = true
	}
	f.counts["webhook ids"] = len(known)
	waits, down := f.waits(last), f.callsDown(calls)
	f.checkRaised(waits, calls)
	f.checkTellings(waits, byGroup, down)
	for g, list := range firstOf {
		f.checkOver(waits[g], list, down)
	}
	f.checkOften(byAlert)
	f.checkLeftAlone(byAlert, down)
}

// checkRaised checks that there is one escalation for each wait, and that none is
// forgotten for long.
func (f *findings) checkRaised(waits map[string][]wait, calls []call) {
	raised := map[string]int{} // by task
	for i := range f.dumps["FLEET_ESCALATIONS"] {
		if token := strings.Split(f.dumps["FLEET_ESCALATIONS"][i].Subject, "."); len(token) == 4 && token[1] == "escalation" && token[2] == "3" {
			raised[token[3]]++
		}
	}
	named := map[string]bool{}
	for i := range calls {
		for _, t := range calls[i].Tasks {
			named[t.TaskID] = true
		}
	}
	asked, lost, out := map[string]int{}, agentsDown(waits), f.outages()
	for _, list := range waits {
		for _, w := range list {
			asked[w.task]++
			if waited := out.calm(w.from, w.to); waited > namedMost && !named[w.task] && !lost[w.agent].meet(w.from, w.to) {
				f.fault("8 humans", w.task, "it waited %s for a human, and no call names it", waited)
			}
		}
	}
	for task, n := range asked {
		f.counts["level 3"] += n
		if raised[task] != n {
			f.fault("8 humans", task, "it waited for a human %d times, and %d escalations say so", n, raised[task])
		}
	}
}

// agentsDown is, by agent, when tasks waited for a human since it was lost: he is
// told that the agent is down, and of what else it failed not before it is back.
func agentsDown(waits map[string][]wait) map[string]spans {
	down := map[string]spans{}
	for _, list := range waits {
		for _, w := range list {
			if w.code == "agent_lost" {
				down[w.agent] = append(down[w.agent], [2]int64{w.from.UnixNano(), w.to.UnixNano()})
			}
		}
	}
	return down
}

// callsDown is when calls may be late: in faults but those of agents and of
// nonsense, and where what people have answered was lost, so that they are spared.
func (f *findings) callsDown(calls []call) spans {
	down := f.downtime(killAgents, pauseAgents, muteAgents, skewAgents, garbage)
	taken := map[string]int64{} // when, by id
	for _, c := range calls {
		if at := taken[c.ID]; at > 0 {
			down = append(down, [2]int64{at, c.At + int64(circuitMost)})
		} else if c.Version == 200 {
			taken[c.ID] = c.At
		}
	}
	return down.inOrder()
}

// checkTellings checks that each contact hears of what waits soon, and again and
// again, but while somebody has acknowledged it or answers.
func (f *findings) checkTellings(waits map[string][]wait, calls map[string][]*call, down spans) {
	groups := map[string]string{} // by alert
	for g, list := range calls {
		for _, c := range list {
			groups[c.Alert] = g
		}
	}
	said := map[string]spans{} // by group
	for _, o := range f.said {
		if o.Op == "replay" {
			continue
		}
		to := min(o.to, o.from+int64(saysFor)) + int64(clockSlack)
		if o.Op == "ack" {
			to += int64(ackTimeout)
		}
		said[groups[o.ID]] = append(said[groups[o.ID]], [2]int64{o.from, to})
	}
	lost := agentsDown(waits)
	for g, list := range waits {
		for _, w := range list {
			excused := slices.Concat(down, said[g])
			if w.code != "agent_lost" {
				excused = append(excused, lost[w.agent]...)
			}
			excused = excused.inOrder()
			for _, who := range contacts {
				f.checkHeard(w, who, calls[g], excused)
			}
		}
	}
}

// checkHeard checks when a contact hears of one wait.
func (f *findings) checkHeard(w wait, who string, calls []*call, excused spans) {
	heard := []time.Time{w.from}
	for _, c := range calls {
		if at := c.at(); c.To == who && at.After(w.from) && at.Before(w.to) && c.names(w.task) {
			heard = append(heard, at)
		}
	}
	f.counts["times told of a wait"] += len(heard) - 1
	heard = append(heard, w.to)
	for i := range heard[1:] {
		from, to := heard[i], heard[i+1]
		if quiet := excused.quiet(from, to); to.Sub(from) > calledMost && quiet > calledMost {
			f.fault("8 humans", w.task, "it waits for a human, and %s hears nothing of it for %s, with nothing wrong for %s of that",
				who, to.Sub(from).Round(time.Millisecond), quiet.Round(time.Millisecond))
		}
	}
}

// checkOver checks that nobody is called of what waits no more. The calls are of
// one group, each when it came first.
func (f *findings) checkOver(waits []wait, calls []*call, down spans) {
	for _, c := range calls {
		at, over := c.at(), time.Time{}
		for _, w := range waits {
			if w.from.Before(at.Add(clockSlack)) && w.to.After(over) {
				over = w.to
			}
		}
		if over.IsZero() {
			f.fault("8 humans", c.Alert, "%s is called, and nothing ever waited: %s", c.To, c.group())
		} else if quiet := down.quiet(over, at); at.After(over) && quiet > overMost {
			f.fault("8 humans", c.Alert, "%s is called %s after what waited was over, with nothing wrong for %s of that",
				c.To, at.Sub(over).Round(time.Millisecond), quiet.Round(time.Millisecond))
		}
	}
}

// checkOften checks that people are not called more often than is set. What comes
// late says nothing of when it was made, but the number of a call does.
func (f *findings) checkOften(calls map[string][]*call) {
	acks := map[string]int{}
	for _, o := range f.said {
		if o.Op == "ack" {
			acks[o.ID]++
		}
	}
	skewed := f.skewed()
	for alert, list := range calls {
		for _, c := range list {
			open := c.at().Sub(c.Since)
			most := 3 + 2*acks[alert] + int(open/callNext) // one that times out has people called at once
			if c.Sequence > most && !skewed.meet(c.at().Add(-time.Minute), c.at()) {
				f.fault("8 humans", alert, "%s hears call %d when it is open for %s", c.To, c.Sequence, open.Round(time.Millisecond))
			}
		}
	}
}

// checkLeftAlone checks that people who have answered, or acknowledged, are called
// no more but for what was on its way: one call of each contact, and one that a
// worker had in hand to which something happened.
func (f *findings) checkLeftAlone(calls map[string][]*call, down spans) {
	skewed := f.skewed()
	for _, o := range f.said {
		from, until := time.Unix(0, o.from), int64(math.MaxInt64)
		if o.Op == "ack" {
			until = o.from + int64(ackTimeout-2*clockSlack)
		}
		if !o.ok() || o.Op == "replay" || o.to >= until || o.Op == "ack" && skewed.meet(from, time.Unix(0, until)) {
			continue
		}
		f.counts["answers and acknowledgements"]++
		more, last := map[string]int{}, map[string]time.Time{} // by contact
		for _, c := range calls[o.ID] {
			if c.At > o.to && c.At < until {
				more[c.To]++
				last[c.To] = c.at()
			}
		}
		for who, n := range more {
			if n > 2 || n > 1 && !down.meet(from.Add(-overMost), last[who]) {
				f.fault("8 humans", o.ID, "%s is called %d times more after that was taken in: %s", who, n, o.Op)
			}
		}
	}
}

// skewed is when the clocks of workers were wrong: one that begins so, and is told
// the time by no server, goes by its own.
func (f *findings) skewed() (list spans) {
	for _, o := range f.faults {
		if o.Op == skewWorker {
			list = append(list, [2]int64{o.from, o.to})
		}
	}
	return list
}
