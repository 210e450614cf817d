package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	runwire "parley/subjects/run"
)

// This file holds what is stored now against what must always be true.

// Bounds of what is looked at.
const (
	sampled         = 50   // tasks whose records are, and runs
	sampledSessions = 20   // whose contexts are
	sampledVersions = 100  // of each context, the first
	longStory       = 5000 // records of a task
	many            = 5    // that cannot be read: the look ends
	atMost          = 5    // named in a finding
)

// sample is a look at some of what is kept.
type sample struct {
	looked, gone, unread int
	why                  error // of the first that could not be read
	bad                  []string
}

// see takes in one of them: what is wrong with it, or why it could not be read.
func (l *sample) see(id, wrong string, err error) {
	switch {
	case subjects.CodeOf(err) == subjects.CodeNotFound && err != nil:
		l.gone++ // it was listed a moment ago
	case err != nil:
		l.unread++
		if l.why == nil {
			l.why = err
		}
	default:
		l.looked++
		if wrong != "" {
			l.bad = append(l.bad, id+": "+wrong)
		}
	}
}

// over reports whether to look no further: who asks a fleet that does not answer
// fifty times waits for minutes.
func (l *sample) over() bool { return l.unread >= many }

// judge is the finding, of n that were listed and are called what. What could not
// be read is not sound: one or two of many may be in the way of a moment.
func (l *sample) judge(check, what string, n int, then string) finding {
	f := finding{Check: check, Then: then}
	switch {
	case len(l.bad) > 0:
		f.Found = strings.Join(l.bad[:min(len(l.bad), atMost)], "; ")
	case l.over() || l.unread > 0 && l.looked == 0:
		if errors.Is(l.why, bus.ErrDenied) {
			f, _ = unknown(check, l.why)
			return f
		}
		f.Found = fmt.Sprintf("%d of %d %s could not be read: %s", l.unread, n, what, oneLine(l.why.Error()))
	case l.looked == 0 && l.gone >= many:
		f.Found = fmt.Sprintf("none of the latest %d %s has records", n, what)
	default:
		f.OK, f.Then, f.Found = true, "", fmt.Sprintf("those of the latest %d %s are sound", l.looked, what)
		if l.looked == 0 {
			f.Found = "there are no " + what + " to look at"
		}
		if l.unread > 0 {
			f.Found += fmt.Sprintf("; %d could not be read: %s", l.unread, oneLine(l.why.Error()))
		}
	}
	return f
}

// records looks at the latest tasks, whether their records are as they must be.
func records(ctx context.Context, c *client) finding {
	const then = "nats stream backup " + subjects.StreamTasks + " DIR  keeps the data for analysis; parley task events TASK  shows them"
	list, err := call[fleet.TaskListReply](ctx, c, "task", "list", fleet.TaskList{Limit: sampled})
	if err != nil {
		return judge("records", err, "", "parley serve --workers router")
	}
	var l sample
	for i := range list.value.Tasks {
		if l.over() {
			break
		}
		id := list.value.Tasks[i].TaskID
		events, err := eventsOf(ctx, c, id)
		l.see(string(id), unsound(events), err)
	}
	return l.judge("records", "tasks", len(list.value.Tasks), then)
}

// eventsOf are the records of a task, all pages of them within bounds.
func eventsOf(ctx context.Context, c *client, id subjects.TaskID) ([]fleet.Event, error) {
	var all []fleet.Event
	for q := (fleet.TaskEvents{TaskID: id, Limit: 1000}); ; q.AfterSeq = all[len(all)-1].Seq {
		r, err := call[fleet.TaskEventsReply](ctx, c, "task", "events", q)
		if err != nil {
			return nil, err
		}
		all = append(all, r.value.Events...)
		if !r.value.More || len(r.value.Events) == 0 || len(all) >= longStory {
			return all, nil
		}
	}
}

// unsound says which invariant the records of a task break, oldest first; ""
// for none.
func unsound(events []fleet.Event) string {
	var ended *fleet.Event
	holders := map[int]subjects.AgentID{} // by attempt
	for i := range events {
		e := &events[i]
		switch {
		case e.Seq != uint64(i)+1:
			return fmt.Sprintf("record %d has number %d", i+1, e.Seq)
		case ended != nil:
			return fmt.Sprintf("record %d comes after its end (%s)", e.Seq, ended.State)
		case e.Kind == fleet.KindWorking && i > 0 && events[i-1].State != fleet.StateQueued:
			return fmt.Sprintf("record %d gives it to %s while it is %s", e.Seq, e.AgentID, events[i-1].State)
		case e.Kind == fleet.KindWorking:
			if why := misbegun(e); why != "" {
				return fmt.Sprintf("attempt %d %s", e.Attempt, why)
			}
			if was, twice := holders[e.Attempt]; twice && was != e.AgentID {
				return fmt.Sprintf("attempt %d was given to %s and to %s", e.Attempt, was, e.AgentID)
			}
			holders[e.Attempt] = e.AgentID
		}
		counts := e.Kind == fleet.KindOutcome && (e.State == fleet.StateDone || e.State == fleet.StatePartial) && e.Data.Human == nil
		if counts && holders[e.Attempt] != e.AgentID && e.AgentID != "" && !slices.ContainsFunc(e.Facts.Attempts, func(a fleet.Attempt) bool { return a.AgentID == e.AgentID }) {
			return fmt.Sprintf("its result is of %s, which never had it", e.AgentID)
		}
		if e.State.Terminal() {
			ended = e
		}
	}
	return ""
}

// misbegun says why an attempt must not have begun; "" where it may.
func misbegun(e *fleet.Event) string {
	switch may := escalation.CandidatesOf(e.Facts.Policy, e.Facts.Attempts, e.Facts.Widened, e.Facts.Human); {
	case e.Time.After(e.Facts.Deadline):
		return "began after the deadline"
	case e.Facts.TokenBudget > 0 && e.Facts.TokensSpent >= e.Facts.TokenBudget && e.Facts.Human == nil:
		return "began with its budget spent"
	case !may.Allow(e.AgentID, e.InstanceID):
		return fmt.Sprintf("is of %s, which may not have it", e.AgentID)
	}
	return ""
}

// contexts looks at the latest sessions, whether the versions of their contexts
// follow each other.
func contexts(ctx context.Context, c *client) finding {
	const then = "nats stream backup " + subjects.StreamContext + " DIR  keeps the data for analysis; parley session context SESSION  shows it"
	list, err := call[handshake.ListReply](ctx, c, "session", "list", handshake.List{Limit: sampledSessions})
	if err != nil {
		return judgeSeen("contexts", err, "", "parley serve --workers sessions")
	}
	var l sample
	for i := range list.value.Sessions {
		if l.over() {
			break
		}
		id := list.value.Sessions[i].Session.SessionID
		r, err := call[handshake.ReadReply](ctx, c, "session", "context", handshake.Read{SessionID: id, Limit: sampledVersions})
		l.see(string(id), gap(&r.value), err)
	}
	return l.judge("contexts", "sessions", len(list.value.Sessions), then)
}

// gap says what is wrong with the first page of a context; "" for nothing.
func gap(r *handshake.ReadReply) string {
	for i := range r.Records {
		if v, want := r.Records[i].Version, uint64(i)+1; v != want {
			return fmt.Sprintf("version %d stands where version %d must", v, want)
		}
	}
	if n := uint64(len(r.Records)); !r.More && n < r.Version {
		return fmt.Sprintf("version %d is not there", n+1)
	}
	return ""
}

// nodes looks at runs under way, whether what was begun might be, and is there.
func (a *app) nodes(ctx context.Context, c *client, runs []runwire.Record) finding {
	var l sample
	for i := range runs {
		if l.over() {
			break
		}
		r := &runs[i]
		l.see(string(r.RunID), early(r), nil)
		for _, task := range begun(r, a.now()) {
			_, err := call[fleet.TaskView](ctx, c, "task", "get", fleet.TaskRef{TaskID: r.Nodes[task].TaskID})
			switch {
			case err == nil:
			case subjects.CodeOf(err) == subjects.CodeNotFound:
				l.see(string(r.RunID), fmt.Sprintf("node %s was begun, and its task %s is not there", task, r.Nodes[task].TaskID), nil)
			default:
				l.see("", "", err)
			}
		}
	}
	f := l.judge("runs", "runs", len(runs), "parley run get RUN; journalctl -u parley  of the workers runs; parley run cancel RUN  and  parley run retry RUN  begin what failed anew")
	if f.OK && l.unread == 0 {
		f.Found = fmt.Sprintf("%d runs under way: every node was begun in its order, and its task is there", len(runs))
	}
	return f
}

// early says which node of a run was begun before its time; "" for none.
func early(r *runwire.Record) string {
	for i := range r.Definition.Agents {
		node := &r.Definition.Agents[i]
		if r.Nodes[node.Name()].State != runwire.Dispatched {
			continue
		}
		for _, dep := range node.Dependencies {
			if state := r.Nodes[dep].State; !state.Ended() {
				return fmt.Sprintf("node %s was begun while %s is %s", node.Name(), dep, state)
			}
		}
	}
	return ""
}

// begun are the nodes whose task must be there by now, a few. A fan-out has one
// for each item.
func begun(r *runwire.Record, now time.Time) (names []runwire.NodeID) {
	for i := range r.Definition.Agents {
		node := &r.Definition.Agents[i]
		n := r.Nodes[node.Name()]
		if n.State == runwire.Dispatched && n.TaskID != "" && node.FanOut == nil && n.Begun != nil && now.Sub(*n.Begun) > overdue && len(names) < atMost {
			names = append(names, node.Name())
		}
	}
	return names
}

// heard is whether humans hear of what waits for them: each task is in an alert,
// and alerts are called about, where there is somebody to call.
func (a *app) heard(ctx context.Context, c *client, tasks []fleet.TaskView, alerts []fleet.Alert, somebody bool) finding {
	const then = "journalctl -u parley  of the workers escalation; parley serve --workers escalation  is another one; parley escalation ls  shows who waits"
	var silent []string
	for i := range alerts {
		if al := &alerts[i]; somebody && al.State == fleet.AlertTriggered && al.Held == "" && al.Answer == nil && al.NextAt != nil && a.now().Sub(*al.NextAt) > overdue {
			silent = append(silent, fmt.Sprintf("%s has its next call due for %s", al.AlertID, roughly(a.now().Sub(*al.NextAt))))
		}
	}
	missing, unnamed := untold(tasks, alerts, a.now()), 0
	for i := range alerts {
		unnamed += alerts[i].Omitted
	}
	// Alerts may have left out so many; the others may have gone on meanwhile.
	left := len(missing) - unnamed
	var still []string
	for i := 0; i < len(missing) && left > 0; i++ {
		v, err := call[fleet.TaskView](ctx, c, "task", "get", fleet.TaskRef{TaskID: missing[i].TaskID})
		if err == nil && v.value.Seq == missing[i].Seq {
			still = append(still, string(missing[i].TaskID))
		} else {
			left--
		}
	}
	switch {
	case left > 0:
		return finding{
			Check: "told", Found: fmt.Sprintf("%d tasks wait for a human and are in no alert: %s", left, strings.Join(still[:min(len(still), atMost)], ", ")), Then: then,
		}
	case len(silent) > 0:
		return finding{Check: "told", Found: strings.Join(silent[:min(len(silent), atMost)], "; "), Then: then}
	}
	return finding{Check: "told", OK: true, Found: "every task that waits for a human is in an alert"}
}

// untold are the tasks that wait for a human for a while and that no alert names.
func untold(tasks []fleet.TaskView, alerts []fleet.Alert, now time.Time) (missing []fleet.TaskView) {
	named := map[subjects.TaskID]bool{}
	for i := range alerts {
		for j := range alerts[i].Tasks {
			named[alerts[i].Tasks[j].TaskID] = true
		}
	}
	for i := range tasks {
		if t := &tasks[i]; t.State == fleet.StateInputRequired && t.Await == fleet.AwaitHuman && !named[t.TaskID] && now.Sub(t.Updated) > overdue {
			missing = append(missing, *t)
		}
	}
	return missing
}
