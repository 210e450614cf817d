package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects/fleet"
)

// finding is one line of parley doctor.
type finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	Found string `json:"found"`
	Then  string `json:"then,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look for what is wrong with the fleet", Args: cobra.NoArgs,
		Long: `Look for what is wrong with the fleet: connection, streams, workers, whether
humans can be told, and what could not be delivered. The exit code is 1 if
anything is.`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			found := a.examine(ctx, c)
			ill := 0
			for _, f := range found {
				if !f.OK {
					ill++
				}
			}
			if a.json() {
				if err := a.printValue(found); err != nil {
					return err
				}
			} else {
				g := a.grid("Doctor", []string{"Check", "Is", "Found", "Then"}, "Then")
				for _, f := range found {
					is := a.paint(green, "ok")
					if !f.OK {
						is = a.paint(red, "ill")
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
	bind(cmd.Flags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	return cmd
}

// examine makes all checks; none that fails keeps the others from being made.
func (a *app) examine(ctx context.Context, c *client) []finding {
	begin := time.Now()
	ping := c.bus.Ping(ctx)
	list := []finding{judge("connection", ping, c.server+", "+roughly(time.Since(begin)), "see that the server answers")}
	err := c.bus.Provision(ctx, bus.Provisioning{Mode: "verify", Replicas: a.conf.Replicas})
	list = append(list, judge("streams", err, "as they must be", "parley serve --provision create  makes what is missing"))
	_, err = call[fleet.TaskListReply](ctx, c, "task", "list", fleet.TaskList{Limit: 1})
	list = append(list, judge("router", err, "answers", "parley serve --workers router"))
	s, err := call[fleet.EscalationStatusReply](ctx, c, "escalation", "status", fleet.EscalationStatus{})
	list = append(list, judge("escalation", err, fmt.Sprintf("%d alerts, %d tasks wait for a human", s.value.Open, s.value.Waiting), "parley serve --workers escalation"))
	if err == nil {
		list = append(list, contacts(&s.value), changeLog(&s.value))
	}
	w, err := call[fleet.WebhookListReply](ctx, c, "webhook", "list", fleet.WebhookList{State: fleet.DeliveryDead})
	dead := judge("webhooks", err, "nothing undelivered", "parley serve --workers webhooks")
	if err == nil && w.value.Total > 0 {
		dead = finding{Check: "webhooks", Found: fmt.Sprintf("%d dead letters", w.value.Total), Then: "parley webhook ls --state dead"}
	}
	late, err := call[fleet.WebhookListReply](ctx, c, "webhook", "list", fleet.WebhookList{State: fleet.DeliveryPending})
	if n := failing(&late.value); err == nil && n > 0 {
		list = append(list, finding{Check: "calls", Found: fmt.Sprintf("%d calls have failed so far and are tried again", n), Then: "parley webhook ls --state pending"})
	}
	return append(list, dead)
}

func judge(check string, err error, found, then string) finding {
	if err != nil {
		return finding{Check: check, Found: oneLine(err.Error()), Then: then}
	}
	return finding{Check: check, OK: true, Found: found}
}

func contacts(s *fleet.EscalationStatusReply) finding {
	if len(s.Contacts) == 0 {
		return finding{Check: "contacts", OK: true, Found: "nobody is called: tasks end where they would wait for a human", Then: "PARLEY_WEBHOOK_URL or PARLEY_ALERT_CONTACTS names somebody"}
	}
	return finding{Check: "contacts", OK: true, Found: fmt.Sprint(s.Contacts)}
}

func changeLog(s *fleet.EscalationStatusReply) finding {
	switch {
	case s.ChangeLog == "":
		return finding{Check: "CHANGE.log", OK: true, Found: "off"}
	case s.LogError != "":
		return finding{Check: "CHANGE.log", Found: fmt.Sprintf("%s; %d lines not written", s.LogError, s.LogFailures), Then: "repair " + s.ChangeLog + "; what is missing there is in the stream FLEET_ESCALATIONS"}
	}
	return finding{Check: "CHANGE.log", OK: true, Found: fmt.Sprintf("%s, %d lines", s.ChangeLog, s.LogLines)}
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
