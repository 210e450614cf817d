//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"parley/test/rig"
)

// clockwork is a schedule as it goes over the wire.
type clockwork struct {
	Name     string         `json:"name"`
	Cron     string         `json:"cron,omitempty"`
	Every    float64        `json:"every_seconds,omitzero"`
	At       *time.Time     `json:"at,omitempty"`
	Missed   string         `json:"missed,omitempty"`
	Grace    float64        `json:"grace_seconds,omitzero"`
	Overlap  string         `json:"overlap,omitempty"`
	Dispatch *task          `json:"dispatch,omitempty"`
	Message  map[string]any `json:"message,omitempty"`
	Run      map[string]any `json:"run,omitempty"`
}

// clocks has things done by the clock, until the load stops: by intervals, by
// cron, at one time; tasks, runs and messages.
func (l *load) clocks(who string, rng *rand.Rand) {
	brief := rig.Play(rig.Step{Do: rig.DoDone, MS: rng.IntN(50)})
	give := &task{Task: taskHead{Timeout: 20, Escalate: "never", Priority: "critical"}, Brief: brief}
	plan := map[string]any{"timeout": 600, "description": who, "agents": []planNode{{ID: "a", Dependencies: []string{}, Brief: brief, MaxRetries: 5, OnFailure: "continue"}}}
	note := map[string]any{"to": l.f.agents[rng.IntN(len(l.f.agents))].ID, "text": "by the clock", "action": "info", "reply": "no"}
	list := []clockwork{
		{Name: "even", Every: 5, Overlap: "queue", Dispatch: give},
		{Name: "cron", Cron: "*/5 * * * * *", Overlap: "queue", Dispatch: give},
		{Name: "strict", Every: 6, Missed: "skip", Grace: 4, Overlap: "queue", Dispatch: give},
		{Name: "run", Every: 8, Overlap: "skip", Run: plan},
		{Name: "note", Every: 7, Overlap: "queue", Message: note},
	}
	for _, c := range list {
		l.schedule(who, c)
	}
	l.every(8*time.Second, func(n int) {
		at := time.Now().Add(time.Duration(1+rng.IntN(6)) * time.Second)
		l.schedule(who, clockwork{Name: fmt.Sprintf("once-%d", n), At: &at, Overlap: "queue", Dispatch: give})
	})
	for _, c := range list {
		end := l.journal.begin(line{Client: who, Op: "unschedule", ID: c.Name})
		var reply map[string]any
		what, code := told(l.ask(l.hard, who, "schedule", "pause", map[string]string{"name": c.Name}, &reply))
		end(what, line{Code: code})
	}
}

// schedule creates one.
func (l *load) schedule(who string, c clockwork) {
	body, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	end := l.journal.begin(line{Client: who, Op: "schedule", ID: c.Name, Body: body})
	var reply map[string]any
	what, code := told(l.ask(l.hard, who, "schedule", "create", c, &reply))
	end(what, line{Code: code})
}
