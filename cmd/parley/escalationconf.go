package main

import (
	"cmp"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"parley/bus"
	policy "parley/escalation"
	"parley/subjects"
	"parley/workers/escalation"
)

func (a *app) operators() []subjects.AgentID {
	out := make([]subjects.AgentID, 0, len(a.conf.Operators))
	for _, id := range a.conf.Operators {
		out = append(out, subjects.AgentID(id))
	}
	return out
}

// contacts are the webhook endpoints that call people.
func (a *app) contacts() []string {
	if len(a.conf.AlertContacts) == 0 && a.conf.WebhookURL != "" {
		return []string{humanEndpoint}
	}
	return a.conf.AlertContacts
}

// newEscalation makes the escalation worker; here is where its pages are.
func (a *app) newEscalation(b *bus.Bus, log *slog.Logger, here string) (*escalation.Worker, error) {
	c := a.conf
	cfg := escalation.Config{
		Bus: b, Version: semver(), Log: log, Operators: a.operators(), GroupBy: c.GroupBy, ChangeLog: c.ChangeLog,
		Chain: policy.Chain{
			Contacts: a.contacts(), GroupWait: time.Duration(c.GroupWait), GroupInterval: time.Duration(c.GroupInterval),
			CallNext: time.Duration(c.AlertNext), AckTimeout: time.Duration(c.AckTimeout),
		},
		URL: cmp.Or(c.PublicURL, here), Key: []byte(c.LinkKey), LinkTTL: time.Duration(c.LinkTTL),
		WaitAlert: time.Duration(c.WaitAlert), HeartbeatTo: c.HeartbeatTo, Heartbeat: time.Duration(c.HeartbeatEach),
	}
	switch c.ChangeLog {
	case "":
		cfg.ChangeLog = filepath.Join(c.Data, "CHANGE.log")
	case "off":
		cfg.ChangeLog = ""
	}
	if cfg.ChangeLog != "" {
		// Where the file cannot be kept, the worker says so with every line.
		if err := os.MkdirAll(filepath.Dir(cfg.ChangeLog), 0o700); err != nil {
			log.Warn("make the folder of CHANGE.log", slog.Any("error", err))
		}
	}
	w, err := escalation.New(cfg)
	if err != nil {
		return nil, usage("%w", err).next("see docs/guide/escalation.md; parley help env  lists the settings")
	}
	return w, nil
}
