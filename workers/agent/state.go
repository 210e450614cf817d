package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Intervals of announcing.
const (
	announceEvery = time.Hour // jittered by a tenth: a fleet is not to speak at once
	announceTry   = 10 * time.Second
	announceAgain = time.Second // after a failure
)

// vitals is what an agent tells of its surroundings. It is read-only.
type vitals struct {
	health fleet.MCPHealth
	probed fleet.ProbeTimes
	repo   *fleet.RepoState
	skills []json.RawMessage // A2A skills
}

// state holds the latest vitals.
type state struct {
	mu       sync.Mutex
	now      vitals
	known    bool            // an announce was stored
	told     fleet.MCPHealth // of the latest announce that was stored
	announce chan struct{}   // asks for an announce; capacity 1
	stopped  bool            // nothing is to be expected here any more
	farewell chan struct{}   // closed once the fleet knows that the agent has stopped
}

func newState(c MCPConfig, skills []json.RawMessage) *state {
	s := &state{announce: make(chan struct{}, 1), farewell: make(chan struct{})}
	s.now.skills = skills
	if len(c.Servers) > 0 {
		s.now.health = fleet.MCPHealth{}
		for _, server := range c.Servers {
			s.now.health[server.Name] = fleet.HealthUnknown
		}
	}
	return s
}

func (s *state) get() vitals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// setHealth notes the outcome of a probe; one that is news is announced.
func (s *state) setHealth(server, health string, at time.Time) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news = s.now.health[server] != health
	s.now.health, s.now.probed = maps.Clone(s.now.health), maps.Clone(s.now.probed)
	if s.now.health == nil {
		s.now.health = fleet.MCPHealth{}
	}
	if s.now.probed == nil {
		s.now.probed = fleet.ProbeTimes{}
	}
	s.now.health[server], s.now.probed[server] = health, at.UTC()
	if news {
		kick(s.announce)
	}
	return news
}

// setSkills notes the skills; news are announced.
func (s *state) setSkills(skills []json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.EqualFunc(s.now.skills, skills, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
		s.now.skills = skills
		kick(s.announce)
	}
}

// setRepo notes the state of the work tree, nil when it cannot be read; one
// that is news is announced.
func (s *state) setRepo(r *fleet.RepoState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.now.repo
	if (was == nil) != (r == nil) || was != nil && (was.Branch != r.Branch || was.Clean != r.Clean) {
		kick(s.announce)
	}
	s.now.repo = r
}

// announced notes what was announced; last says that it was the farewell.
func (s *state) announced(h fleet.MCPHealth, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told, s.known = h, true
	if last {
		closeOnce(s.farewell)
	}
}

// stop notes that the agent has ended its work, and has that announced.
func (s *state) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	kick(s.announce)
}

func (s *state) hasStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

func (s *state) isKnown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// changedHealth is what has changed since the latest announce.
func (s *state) changedHealth() fleet.MCPHealth {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed fleet.MCPHealth
	for name, health := range s.now.health {
		if s.told[name] != health {
			if changed == nil {
				changed = fleet.MCPHealth{}
			}
			changed[name] = health
		}
	}
	return changed
}

// announceAll announces at the start, on every change, and hourly, until life
// ends.
func (w *Worker) announceAll(life context.Context) {
	for {
		next := announceAgain
		if w.announce(life) {
			next = announceEvery - announceEvery/10 + mathrand.N(announceEvery/5) //nolint:gosec // to spread load, not to hide
		}
		t := time.NewTimer(next)
		select {
		case <-life.Done():
			t.Stop()
			return
		case <-w.state.announce:
		case <-w.hand.announced:
		case <-t.C:
		}
		t.Stop()
	}
}

// announce stores one SESSION_ANNOUNCE and reports whether that worked.
func (w *Worker) announce(life context.Context) bool {
	ctx, cancel := context.WithTimeout(life, announceTry)
	defer cancel()
	v := w.state.get()
	a := w.announcement(v)
	if _, err := w.cfg.Bus.Store(ctx, subjects.Announce(w.cfg.ID, w.cfg.Instance), fleet.MustEncode(a), rand.Text(), nil); err != nil {
		if life.Err() == nil {
			w.log.Warn("announce", slog.Any("error", err))
		}
		return false
	}
	w.state.announced(v.health, a.Stopped)
	return true
}

func (w *Worker) announcement(v vitals) *fleet.Announce {
	held, draining, fresh := w.hand.holding()
	c := &w.cfg
	stopped := w.state.hasStopped()
	messages := 0
	if c.Inbox != nil {
		messages = c.MaxMessages
	}
	return &fleet.Announce{
		Header: header(fleet.TypeAnnounce),
		Worker: fleet.Worker{
			AgentID: c.ID, Model: c.Model, ModelTier: c.ModelTier, ContextWindow: c.ContextWindow,
			InstanceID: c.Instance, Epoch: w.epoch, MaxParallel: c.MaxParallel, MaxMessages: messages, Labels: c.Labels, AgentType: c.AgentType,
		},
		Capabilities: fleet.Capabilities{
			Tools: orEmpty(c.Tools), MCPServers: orEmpty(slices.Sorted(maps.Keys(v.health))), Skills: v.skills,
		},
		MCPHealth: v.health, MCPProbedAt: v.probed,
		Session:          fleet.SessionState{ActiveTasks: len(held), RepoState: v.repo, SessionFresh: fresh},
		HeartbeatSeconds: new(c.Heartbeat.Seconds()),
		Draining:         draining, Stopped: stopped, Retired: stopped && c.OneOff,
	}
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// beatsApart is the least time between heartbeats, and beatsApartFor more for
// each task that they name: however much changes, they cost little.
const (
	beatsApart    = 50 * time.Millisecond
	beatsApartFor = 4 * time.Millisecond
)

// beatAll sends heartbeats until life ends: on the interval, and as soon as
// something has changed that routers are to know.
func (w *Worker) beatAll(life context.Context) {
	t := time.NewTicker(w.cfg.Heartbeat)
	defer t.Stop()
	for {
		sent := time.Now()
		apart := min(beatsApart+time.Duration(w.heartbeat())*beatsApartFor, w.cfg.Heartbeat)
		select {
		case <-life.Done():
			return
		case <-t.C:
		case <-w.hand.beat:
			if within(life.Done(), apart-time.Since(sent)) {
				return
			}
			select {
			case <-w.hand.beat: // what changed meanwhile is told with it
			default:
			}
		}
	}
}

// heartbeat sends one, and returns how many tasks it names.
func (w *Worker) heartbeat() int {
	held, draining, _ := w.hand.holding()
	b := &fleet.Heartbeat{
		Header: header(fleet.TypeHeartbeat), Epoch: w.epoch, ActiveTasks: len(held), Holding: held,
		MCPHealth: w.state.changedHealth(), Draining: draining,
	}
	if err := w.cfg.Bus.Publish(subjects.Heartbeat(w.cfg.ID, w.cfg.Instance), fleet.MustEncode(b), nil); err != nil {
		w.log.Warn("send a heartbeat", slog.Any("error", err))
	}
	return len(held)
}
