package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"parley/subjects/fleet"
)

// Condition is how whoever does an agent's work is; see Config.Watch.
type Condition struct {
	// Name is what the announce calls them, among the health of MCP servers.
	Name string
	// Down says why no task can be done just now; "" all is well. Until it is
	// well again the agent is announced as draining, so that it is offered
	// nothing.
	Down string
	// Skills are the A2A skills to announce; nil: those that are known stay.
	Skills []json.RawMessage
}

// told takes in a Condition.
func (w *Worker) told(life context.Context, c Condition) {
	health := fleet.HealthOK
	if c.Down != "" {
		health = fleet.HealthError
	}
	if w.hand.setUnwell(c.Down) {
		if c.Down != "" {
			w.log.Warn("no task can be done just now", slog.String("name", c.Name), slog.String("reason", c.Down))
		} else {
			w.log.Info("tasks can be done", slog.String("name", c.Name))
		}
	}
	if life.Err() == nil {
		w.state.setHealth(c.Name, health, time.Now())
	}
	if c.Skills == nil {
		return
	}
	v := w.state.get()
	v.skills = c.Skills
	if err := w.checkAnnouncement(v); err != nil {
		w.log.Warn("the skills cannot be announced", slog.Any("error", err))
		return
	}
	w.state.setSkills(c.Skills)
}

// setUnwell notes why nothing can be done just now, and reports whether that is
// news.
func (a *hand) setUnwell(why string) (news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	news = (a.unwell == "") != (why == "")
	a.unwell = why
	if news {
		kick(a.beat)
		kick(a.announced)
	}
	return news
}
