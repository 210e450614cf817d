package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// finding is one line of parley doctor.
type finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	Bad   string `json:"severity,omitempty"` // how bad; absent where it is ok
	Found string `json:"found"`
	Then  string `json:"then,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look for what is wrong with the fleet", Args: cobra.NoArgs,
		Long: `Look for what is wrong with the fleet: connection and access, versions of the
servers and workers, doors that ask nobody, streams, their copies and consumers,
disk and clocks, whether what was acknowledged survives a power cut, workers that
are missing, work that nobody takes or that is past its time, whether the records
of the latest tasks, sessions and runs are sound and the newest blocks of the
audit unchanged, whether humans can be told and are, what waits for them, and what
could not be delivered or not be read. What is wrong is

  critical  what was acknowledged may be lost, or anybody may come in
  major     work stands still, or soon will
  minor     to be seen to in working hours

and each line has the command that mends it. The exit code is 1 if anything is
wrong.`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			found := a.examine(ctx, c)
			ill := 0
			for i := range found {
				if f := &found[i]; !f.OK {
					f.Bad = badness(f.Check)
					ill++
				}
			}
			if a.json() {
				if err := a.printValue(found); err != nil {
					return err
				}
			} else {
				g := a.grid("Doctor", []string{"Check", "Is", "Found", "Then"})
				for _, f := range found {
					is := a.paint(green, "ok")
					if !f.OK {
						is = a.paint(red, f.Bad)
					}
					g.add(f.Check, is, f.Found, f.Then)
				}
				g.print()
			}
			if ill > 0 {
				return &problem{what: fmt.Sprintf("%d of %d checks failed", ill, len(found)), exit: exitFailed, err: errors.New("ill")}
			}
			return nil
		}),
	}
	bind(cmd.Flags(), a.conf, append([]string{"as", "monitor"}, connectionFlags...)...)
	return cmd
}

// examine makes all checks; none that fails keeps the others from being made.
func (a *app) examine(ctx context.Context, c *client) []finding {
	begin := time.Now()
	ping := c.bus.Ping(ctx)
	list := []finding{judge("connection", ping, c.server+", "+roughly(time.Since(begin)), seeServers)}
	pages, unread := a.conf.pages(ctx)
	services, unheard := c.bus.Services(ctx)
	server, err := c.bus.Server(ctx)
	unasked := 0
	if len(pages) == 0 {
		unasked = c.bus.OtherServers()
	}
	list = append(list, a.access(ctx), doors(services, unheard), foreign(services, unheard, a.now()), serverFinding(server, err, unasked), versions(services, unheard, pages), workerClocks(services, unheard))
	err = c.bus.Provision(ctx, bus.Provisioning{Mode: bus.ProvisionVerify, Replicas: a.conf.Replicas})
	list = append(list, judgeSeen("streams", err, "as they must be, on files", "parley serve --provision create  makes what is missing"),
		taken("writes", c.bus.Canary(ctx)), a.synced(ctx, c.bus, pages, unread))
	begin = time.Now()
	streams, err := c.bus.StreamFigures(ctx)
	list = append(list, storage(streams, err, a.now(), time.Since(begin))...)
	if len(a.conf.Monitor) > 0 {
		list = append(list, store(pages))
	}
	list = append(list, missing(services, unheard, streams))
	_, err = call[fleet.TaskListReply](ctx, c, "task", "list", fleet.TaskList{Limit: 1})
	list = append(list, judge("router", err, "answers", "parley serve --workers router"), stuck(ctx, c), records(ctx, c), newest(ctx, c.bus))
	w, late := a.atWork(ctx, c, services)
	list = append(list, late)
	if len(w.runs) > 0 {
		list = append(list, a.nodes(ctx, c, w.runs))
	}
	if serves(services, "sessions") {
		list = append(list, contexts(ctx, c))
	}
	return append(list, a.people(ctx, c, w)...)
}

// people is whether humans are told, and what could not be delivered.
func (a *app) people(ctx context.Context, c *client, w *work) []finding {
	s, err := call[fleet.EscalationStatusReply](ctx, c, "escalation", "status", fleet.EscalationStatus{})
	list := []finding{judge("escalation", err, fmt.Sprintf("%d alerts, %d tasks wait for a human", s.value.Open, s.value.Waiting), "parley serve --workers escalation")}
	if err == nil {
		l, unread := c.alerts(ctx, fleet.EscalationList{})
		list = append(list, a.oldAlerts(l.value.Alerts, unread), contacts(&s.value), changeLog(&s.value))
		if unread == nil {
			list = append(list, a.heard(ctx, c, w.tasks, l.value.Alerts, len(s.value.Contacts) > 0))
		}
	}
	if why, unread := call[fleet.TaskWaitingReply](ctx, c, "task", "waiting", struct{}{}); unread == nil {
		list = append(list, a.silentWaits(why.value.Causes, err == nil && len(s.value.Contacts) > 0))
	}
	list = append(list, deadLetters(ctx, c.bus))
	letters, err := call[fleet.WebhookListReply](ctx, c, "webhook", "list", fleet.WebhookList{State: fleet.DeliveryDead})
	dead := judge("webhooks", err, "nothing undelivered", "parley serve --workers webhooks")
	if err == nil && letters.value.Total > 0 {
		dead = finding{Check: "webhooks", Found: fmt.Sprintf("%d dead letters", letters.value.Total), Then: "parley webhook ls --state dead"}
	}
	late, err := call[fleet.WebhookListReply](ctx, c, "webhook", "list", fleet.WebhookList{State: fleet.DeliveryPending, Limit: 1000})
	if n := failing(&late.value); err == nil && n > 0 {
		list = append(list, finding{Check: "calls", Found: fmt.Sprintf("%d calls have failed so far and are tried again", n), Then: "parley webhook ls --state pending"})
	}
	return append(list, dead)
}

// seeServers says why a server does not answer.
const seeServers = "systemctl status nats  on each server, and  journalctl -u nats  says why it does not answer"

func judge(check string, err error, found, then string) finding {
	if err != nil {
		return finding{Check: check, Found: oneLine(err.Error()), Then: then}
	}
	return finding{Check: check, OK: true, Found: found}
}

// taken is whether a write was taken and given back: servers may say that they
// are well, and not do it.
func taken(check string, err error) finding {
	if errors.Is(err, bus.ErrDenied) {
		return finding{Check: check, OK: true, Found: "not tried: that is for workers alone; /readyz of theirs tries it"}
	}
	return judge(check, err, "one was acknowledged, and read again from the leader; the task stream commits",
		"nats stream info STREAM  says who leads the stream that is named; journalctl -u nats  there says why, and  systemctl restart nats  has another one lead")
}

// synced is whether what is acknowledged is on the disk: as the servers' monitoring
// pages say, or else as the workers believe.
func (a *app) synced(ctx context.Context, b *bus.Bus, pages []*varz, unread error) finding {
	if len(a.conf.Monitor) > 0 {
		return judge("sync", errors.Join(syncs(pages), unread), fmt.Sprintf("every write is on the disk before it is acknowledged, as %d servers say", len(pages)),
			"sync_interval: always  in the servers' jetstream block, then  systemctl restart nats  on one after the other; --monitor names their monitoring pages")
	}
	const ask = "as its system account: nats server request jetstream --config  shows sync_always and sync_interval"
	var d bus.Durability
	err := bus.ErrNoResponders
	for _, service := range []string{"fleet", "escalation", "webhooks", "registry"} {
		try, cancel := context.WithTimeout(ctx, 5*patience)
		d, err = b.ServiceDurability(try, service)
		cancel()
		if err == nil {
			break
		}
	}
	switch {
	case err != nil:
		return finding{Check: "sync", Found: "no worker says whether the server syncs before it acknowledges", Then: ask}
	case !d.SyncAlways:
		return finding{
			Check: "sync", Found: "not before it is acknowledged: a power cut loses what was acknowledged since the last flush",
			Then: "sync_interval: always  in the servers' configuration, then  systemctl restart nats  on one after the other; parley up  without --sync",
		}
	case !d.Embedded:
		return finding{
			Check: "sync", OK: true, Found: "before it is acknowledged, as --sync tells the workers; what the servers really do is not known here",
			Then: ask,
		}
	}
	return finding{Check: "sync", OK: true, Found: "every write is on the disk before it is acknowledged"}
}

// old is how long an alert may be open before that is worth a line.
const old = time.Hour

func (a *app) oldAlerts(alerts []fleet.Alert, err error) finding {
	f := judge("alerts", err, "none is open for longer than an hour", "parley escalation ls")
	n := 0
	for i := range alerts {
		if a.now().Sub(alerts[i].Since) > old {
			n++
		}
	}
	if n > 0 {
		f = finding{Check: "alerts", Found: fmt.Sprintf("%d open for longer than an hour", n), Then: "parley escalation ls"}
	}
	return f
}

// deadLetters are messages that nobody could handle.
func deadLetters(ctx context.Context, b *bus.Bus) finding {
	s, err := b.StreamState(ctx, subjects.StreamDLQ)
	f := judgeSeen("dead letters", err, "none", "parley serve --provision create  makes what is missing")
	if err == nil && s.Msgs > 0 {
		f = finding{Check: "dead letters", Found: fmt.Sprintf("%d messages that nobody could handle", s.Msgs), Then: "parley dlq ls"}
	}
	return f
}

// contacts is who is called. That nobody is may be meant, until a task waits.
func contacts(s *fleet.EscalationStatusReply) finding {
	const then = "PARLEY_WEBHOOK_URL or PARLEY_ALERT_CONTACTS names somebody, to every worker; systemctl restart parley"
	switch {
	case len(s.Contacts) > 0:
		return finding{Check: "contacts", OK: true, Found: strings.Join(s.Contacts, ", ")}
	case s.Waiting > 0:
		return finding{Check: "contacts", Found: fmt.Sprintf("%d tasks wait for a human, and nobody is called", s.Waiting), Then: "parley escalation ls; " + then}
	}
	return finding{Check: "contacts", OK: true, Found: "nobody is called: tasks end where they would wait for a human", Then: then}
}

func changeLog(s *fleet.EscalationStatusReply) finding {
	switch {
	case s.ChangeLog == "":
		return finding{Check: "CHANGE.log", OK: true, Found: "off"}
	case s.LogError != "":
		return finding{Check: "CHANGE.log", Found: fmt.Sprintf("%s; %d lines not written", s.LogError, s.LogFailures), Then: changeLogMend(s.ChangeLog)}
	}
	return finding{Check: "CHANGE.log", OK: true, Found: fmt.Sprintf("%s, %d lines", s.ChangeLog, s.LogLines)}
}

// changeLogMend is what to do about a file that cannot be written. The worker
// tries again at the next line.
func changeLogMend(path string) string {
	return "ls -ld " + path + " " + filepath.Dir(path) + "  and  df " + filepath.Dir(path) + "  show what is in its way, on the machine of the worker escalation (journalctl -u parley); " +
		"what is not written is in  nats stream view " + subjects.StreamEscalations
}

// failing counts the calls of people that have not arrived at the first try.
func failing(r *fleet.WebhookListReply) int {
	n := 0
	for i := range r.Deliveries {
		if d := &r.Deliveries[i]; d.Schedule == fleet.ScheduleHuman && d.Error != nil {
			n++
		}
	}
	return n
}
