package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/audit"
	"parley/subjects/fleet"
	runwire "parley/subjects/run"
	"parley/subjects/schedule"
)

// missing is whether services that were in use are served. Those of routers,
// escalation and webhooks have checks of their own.
func missing(services []bus.ServiceInfo, err error, streams []bus.StreamFigures) finding {
	if f, ok := unknown("workers", err); ok {
		return f
	}
	if err != nil {
		return judge("workers", err, "", seeServers)
	}
	var bad, unused []string
	for _, kind := range []struct{ service, keeps string }{ // what it keeps says that it was in use
		{"a2e", "KV_" + subjects.BucketA2E},
		{"audit", subjects.StreamAudit},
		{"callout", "KV_" + subjects.BucketIdentities},
		{"mesh", subjects.StreamMesh},
		{"registry", subjects.StreamAnnounce},
		{"runs", subjects.StreamRuns},
		{"schedules", "KV_" + subjects.BucketSchedules},
		{"sessions", "KV_" + subjects.BucketSessions},
	} {
		switch {
		case serves(services, kind.service):
		case slices.ContainsFunc(streams, func(s bus.StreamFigures) bool { return s.Name == kind.keeps && s.Msgs > 0 }):
			bad = append(bad, kind.service)
		default:
			unused = append(unused, kind.service)
		}
	}
	switch {
	case len(bad) > 0:
		return finding{Check: "workers", Found: "nobody runs what was in use: " + strings.Join(bad, ", "), Then: "parley serve --workers " + strings.Join(bad, ",")}
	case len(unused) > 0:
		return finding{Check: "workers", OK: true, Found: "nobody runs: " + strings.Join(unused, ", ")}
	}
	return finding{Check: "workers", OK: true, Found: "every service is served"}
}

// serves reports whether somebody serves a service.
func serves(services []bus.ServiceInfo, name string) bool {
	return slices.ContainsFunc(services, func(s bus.ServiceInfo) bool { return s.Name == name })
}

// underWay is how many tasks of a state are looked at, whether they are past
// their time: those that live the longest.
const underWay = 500

// work is what is under way, as far as it was looked at.
type work struct {
	tasks     []fleet.TaskView
	runs      []runwire.Record
	schedules []schedule.Record
	unseen    int // tasks and runs that were not looked at
}

// atWork asks for what is under way, and judges whether it is in time. What
// nobody serves is left out: others say so.
func (a *app) atWork(ctx context.Context, c *client, services []bus.ServiceInfo) (*work, finding) {
	w := &work{}
	for _, state := range []fleet.State{fleet.StateQueued, fleet.StateWorking, fleet.StateInputRequired} {
		l, err := call[fleet.TaskListReply](ctx, c, "task", "list", fleet.TaskList{State: state, Limit: underWay, OldestFirst: true})
		if err != nil {
			return w, judge("overdue", err, "", "parley serve --workers router")
		}
		w.tasks = append(w.tasks, l.value.Tasks...)
		w.unseen += max(0, l.value.Total-len(l.value.Tasks))
	}
	if serves(services, "runs") {
		l, err := call[runwire.List](ctx, c, "run", "list", struct{}{})
		if err != nil {
			return w, judge("overdue", err, "", "parley serve --workers runs")
		}
		asked, unread := 0, 0
		for _, r := range slices.Backward(l.value.Runs) { // the oldest first
			if r.State.Ended() {
				continue
			}
			if asked == sampled || unread == many {
				w.unseen++
				continue
			}
			asked++
			got, err := call[runwire.Record](ctx, c, "run", "get", runwire.Ref{RunID: r.RunID})
			switch {
			case err == nil:
				w.runs = append(w.runs, got.value)
			case subjects.CodeOf(err) != subjects.CodeNotFound: // it may be gone by now
				unread++
				w.unseen++
			}
		}
	}
	if serves(services, "schedules") {
		l, err := call[schedule.List](ctx, c, "schedule", "list", schedule.ListRequest{All: slices.Contains(a.operators(), c.from)})
		if err != nil {
			return w, judge("overdue", err, "", "parley serve --workers schedules")
		}
		w.schedules = l.value.Schedules
	}
	return w, past(w, a.now())
}

// past is whether anything is under way whose time is over: what has not ended
// by its deadline, or waits for a human for longer than it may; schedules that
// were not seen to when they were due.
func past(w *work, now time.Time) finding {
	var bad []string
	note := func(what, name string, due time.Time) {
		if by := now.Sub(due); by > overdue {
			bad = append(bad, fmt.Sprintf("%s %s, by %s", what, name, roughly(by)))
		}
	}
	for i := range w.tasks {
		t := &w.tasks[i]
		if t.State.Terminal() {
			continue
		}
		due := t.Deadline
		if t.GiveUpAt != nil && t.GiveUpAt.Before(due) {
			due = *t.GiveUpAt
		}
		note(string(t.State)+" task", string(t.TaskID), due)
	}
	for i := range w.runs {
		if r := &w.runs[i]; !r.State.Ended() {
			note("run", string(r.RunID), r.Deadline)
		}
	}
	for i := range w.schedules {
		if s := &w.schedules[i]; s.State == schedule.Active && s.Next != nil {
			note("schedule", string(s.Definition.Name), *s.Next)
		}
	}
	if len(bad) > 0 {
		return finding{
			Check: "overdue", Found: fmt.Sprintf("%d are past their time: %s", len(bad), strings.Join(bad[:min(len(bad), atMost)], "; ")),
			Then: "journalctl -u parley  of the routers, of runs and of schedules says why; after  systemctl restart parley  they go on with all of it",
		}
	}
	f := finding{Check: "overdue", OK: true, Found: "nothing is past its time"}
	if w.unseen > 0 {
		f.Found += fmt.Sprintf("; %d more were not looked at", w.unseen)
	}
	return f
}

// lately is how long ago a message that is not stored counts as a finding.
const lately = time.Hour

// foreign is whether workers had to skip messages that they could not read:
// those that are stored, and those of the last hour.
func foreign(list []bus.ServiceInfo, err error, now time.Time) finding {
	const check = "junk"
	if f, ok := unknown(check, err); ok {
		return f
	}
	if err != nil {
		return judge(check, err, "", seeServers)
	}
	most := map[string]bus.Skipped{} // by place: processes read the same messages
	for i := range list {
		for _, s := range list[i].Skipped {
			if s.Seq == 0 && now.Sub(s.Last) > lately {
				continue
			}
			if was, ok := most[s.Place]; !ok || s.Count > was.Count {
				most[s.Place] = s
			}
		}
	}
	if len(most) == 0 {
		return finding{Check: check, OK: true, Found: "every message can be read"}
	}
	var bad, then []string
	const keepOut = "docs/guide/security.md  keeps out whoever sends them"
	for _, place := range slices.Sorted(maps.Keys(most)) {
		s := most[place]
		where, see := "on "+s.Subject, fmt.Sprintf("nats sub '%s.>'  shows what else comes", place)
		if s.Seq != 0 {
			where = fmt.Sprintf("message %d %s", s.Seq, where)
			see = fmt.Sprintf("nats stream get %s %d  shows it,  nats stream rmm %s %d  removes it", place, s.Seq, place, s.Seq)
		}
		if bucket, ok := strings.CutPrefix(place, "KV_"); ok { // whose messages nobody deletes one by one
			key := strings.TrimPrefix(s.Subject, "$KV."+bucket+".")
			see = fmt.Sprintf("nats kv get %s %s  shows it,  nats kv del %s %s  removes it", bucket, key, bucket, key)
		}
		then = append(then, see)
		bad = append(bad, fmt.Sprintf("%s: %d skipped, the first is %s: %s", place, s.Count, where, oneLine(s.Reason)))
	}
	return finding{Check: check, Found: strings.Join(bad, "; "), Then: strings.Join(append(then, keepOut), "; ")}
}

// newestBlocks is how many blocks of the audit are checked.
const newestBlocks = 20

// newest looks at the end of the audit, whether it is as it was written.
func newest(ctx context.Context, b *bus.Bus) finding {
	s, err := b.StreamState(ctx, subjects.StreamAudit)
	if f, ok := unknown("audit", err); ok {
		return f
	}
	var blocks []bus.Msg
	if err == nil && s.Msgs > 0 {
		first := max(s.FirstSeq+newestBlocks, s.LastSeq+1) - newestBlocks
		blocks, _, err = b.History(ctx, subjects.StreamAudit, subjects.Audit, first, newestBlocks)
	}
	if err != nil {
		return judge("audit", err, "", "parley serve --provision create  makes what is missing")
	}
	return chained(blocks)
}

// chained is whether blocks of the audit follow each other, and are as they were
// sealed.
func chained(stored []bus.Msg) finding {
	const then = "parley audit verify  looks at all of it; compare it with an earlier export or backup"
	chain := new(audit.Chain)
	for _, m := range stored {
		at := audit.Foreign{Seq: m.Seq, Time: m.Time, Bytes: len(m.Data)}
		b, err := audit.Decode(m.Data)
		if err != nil {
			at.Reason = "no block of this audit"
			chain.AddForeign(at)
			continue
		}
		chain.Add(b, at)
	}
	if err := chain.Broken(); err != nil {
		return judge("audit", errors.New("it is not as it was written: "+err.Error()), "", then)
	}
	found := fmt.Sprintf("the newest %d blocks are as they were written", len(stored)-len(chain.Foreign))
	if n := len(chain.Foreign); n > 0 {
		found += fmt.Sprintf("; %d entries there are not of the audit and hide nothing of it, the first is %s", n, chain.Foreign[0])
	}
	return finding{Check: "audit", OK: true, Found: found}
}
