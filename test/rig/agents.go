package rig

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	exact "github.com/go-json-experiment/json"

	"parley/bus"
	"parley/bus/plant/skew"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/workers/agent"
)

// AgentsEnv names the file that tells this binary which agents to be.
const AgentsEnv = "PARLEY_E2E_AGENTS"

// Cast is the agents of one process.
type Cast struct {
	URL       string        `json:"url"`
	Journal   string        `json:"journal"`
	Fsync     bool          `json:"fsync"` // each line of the journal is on the disk before what it tells happens
	Heartbeat time.Duration `json:"heartbeat"`
	Try       time.Duration `json:"try"` // how long one report to a router may take; 0 leaves it to the harness
	Log       slog.Level    `json:"log"` // the least that is logged
	Agents    []Actor       `json:"agents"`
}

// Mute names the file that keeps the agents with this journal from sending
// heartbeats while it is there.
func Mute(journal string) string { return journal + ".mute" }

// Actor is one agent instance.
type Actor struct {
	ID          string            `json:"id"`
	Instance    string            `json:"instance"` // "" for a new one in each process
	MaxParallel int               `json:"max_parallel"`
	Labels      map[string]string `json:"labels"`
	Spool       string            `json:"spool"`
	Limits      string            `json:"limits"` // file that tells when its account is limited: a list of Limit; "" for never
}

// Limit is a time in which the account of an agent is limited.
type Limit struct {
	From   time.Time `json:"from"`
	Until  time.Time `json:"until"`
	Untold bool      `json:"untold"` // nobody says until when
}

// RunAgents is the life of a process of agents, until ctx ends.
func RunAgents(ctx context.Context, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var c Cast
	if err := json.Unmarshal(data, &c); err != nil {
		return err
	}
	j, err := OpenJournal(c.Journal, c.Fsync)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: c.Log}))
	b, err := bus.Connect(ctx, bus.Config{URL: c.URL, Name: "e2e agents", ConnectTimeout: time.Minute, Log: log})
	if err != nil {
		return err
	}
	defer b.Close()
	var wg sync.WaitGroup
	errs := make([]error, len(c.Agents))
	for i, a := range c.Agents {
		p := &player{Cast: c, id: a.ID, limits: a.Limits, journal: j}
		w, err := agent.New(agent.Config{
			ID: subjects.AgentID(a.ID), Instance: subjects.InstanceID(a.Instance), Labels: a.Labels,
			MaxParallel: a.MaxParallel, Heartbeat: c.Heartbeat, Grace: 2 * time.Second, HandIn: 2 * time.Second,
			Spool: a.Spool, Bus: spy{b, p}, Log: log, Handler: p, Inbox: agent.InboxFunc(p.receive), MaxMessages: 4,
		})
		if err != nil {
			return err
		}
		p.instance, p.epoch = string(w.Instance()), w.Epoch()
		p.note(Entry{What: WasStarted})
		wg.Go(func() { errs[i] = w.Run(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// player plays the scripts of the tasks that it is given, and keeps a journal.
type player struct {
	Cast     Cast
	id       string
	instance string
	epoch    int64
	limits   string
	journal  *Journal
	beat     atomic.Int64 // ns; when the last heartbeat was sent
}

func (p *player) note(e Entry) {
	e.Agent, e.Instance, e.Epoch = p.id, p.instance, p.epoch
	p.journal.Write(e)
}

// Output is what an execution hands in: its nonce tells it from all others.
type Output struct {
	Nonce  string `json:"nonce"`
	Answer string `json:"answer,omitempty"`
}

// Tokens is what each execution says that it has spent.
const Tokens = 7

// Handle implements agent.Handler.
func (p *player) Handle(ctx context.Context, t *agent.Task) (fleet.Result, error) {
	o := Output{Nonce: rand.Text()}
	e := Entry{What: WasBegun, Task: string(t.ID()), Attempt: t.Dispatch.Attempt, Nonce: o.Nonce}
	p.note(e)
	r, err := p.perform(ctx, t, &o)
	e.What, e.Status = WasEnded, string(r.Status)
	if err != nil {
		e.Status = err.Error()
	}
	p.note(e)
	r.Output = fleet.MustEncode(o) // a failed one hands it in, too
	r.TokensSpent = Tokens
	return r, err
}

// receive deals with a message of the mesh: it notes it, and answers.
func (p *player) receive(_ context.Context, m *mesh.Message) (agent.LetterReply, error) {
	p.note(Entry{What: WasLetter, Task: string(m.MessageID), Attempt: m.Attempt, From: string(m.From)})
	return agent.LetterReply{Text: "re " + m.Text}, nil
}

func (p *player) perform(ctx context.Context, t *agent.Task, o *Output) (fleet.Result, error) {
	if l, err := limitAt(p.limits, skew.Now()); err != nil || l != nil {
		if err == nil {
			err = p.limited(t, l)
		}
		return fleet.Result{}, err
	}
	s := StepAt(t.Dispatch.Brief, t.Dispatch.Attempt)
	if err := s.wait(ctx); err != nil {
		return fleet.Result{}, err
	}
	failure := func(f agent.Fail) (fleet.Result, error) {
		f.Message = "the script says " + s.Do
		return fleet.Result{}, &f
	}
	switch s.Do {
	case DoDone:
	case DoPartial:
		return fleet.Result{Status: fleet.StatusPartial, Remaining: []string{"the rest"}}, nil
	case DoError:
		return failure(agent.Fail{Retryable: true})
	case DoFatal:
		return failure(agent.Fail{})
	case DoLimited:
		return failure(agent.Fail{Code: subjects.CodeRateLimited, RetryAfter: time.Second})
	case DoReturned:
		return failure(agent.Fail{Code: subjects.CodeAgentBusy, Retryable: true})
	case DoBlocked:
		return fleet.Result{}, agent.Blocked("the script says " + s.Do)
	case DoSilent:
		<-ctx.Done()
		return fleet.Result{}, context.Cause(ctx)
	case DoArtifact:
		if err := s.publish(ctx, t, o.Nonce); err != nil {
			return fleet.Result{}, err
		}
	case DoCrash:
		if s.N > 0 {
			if err := s.publish(ctx, t, o.Nonce); err != nil {
				return fleet.Result{}, err
			}
		}
		os.Exit(1) //nolint:forbidigo // nothing is stopped: that is what it is for
	case DoAsk:
		answer, err := t.AskFor(ctx, fleet.Question{ID: o.Nonce, Text: "which?"})
		if err != nil {
			return fleet.Result{}, err
		}
		o.Answer = answer.Text
	default:
		return fleet.Result{}, fmt.Errorf("the script says %q, whatever that is", s.Do)
	}
	return fleet.Result{Status: fleet.StatusDone}, nil
}

// limitAt is the limit that holds at a moment by what the file tells; nil for none.
func limitAt(file string, now time.Time) (*Limit, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var list []Limit
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	for i := range list {
		if l := &list[i]; !now.Before(l.From) && now.Before(l.Until) {
			return l, err
		}
	}
	return nil, err
}

// limited is how a task fails while the account is limited: until when it is, is
// told as the provider of a model does.
func (p *player) limited(t *agent.Task, l *Limit) error {
	f := &agent.Fail{Code: subjects.CodeRateLimited, Message: "usage limit reached"}
	e := Entry{What: WasLimited, Task: string(t.ID()), Attempt: t.Dispatch.Attempt}
	if !l.Untold {
		f.RetryAfter, e.Time = l.Until.Sub(skew.Now()), l.Until.UnixNano()
	}
	p.note(e)
	return f
}

// publish publishes the pieces of a step, each under an id of its own.
func (s Step) publish(ctx context.Context, t *agent.Task, id string) error {
	text := "a piece"
	for n := range max(s.N, 1) {
		if n > 0 {
			if err := Pause(ctx, s.delay()); err != nil {
				return err
			}
		}
		if err := t.Artifact(ctx, fleet.Artifact{ArtifactID: fmt.Sprintf("%s-%d", id, n), Parts: []fleet.Part{{Text: &text}}}); err != nil {
			return err
		}
	}
	return nil
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// spy is an agent's bus that notes what goes through it.
type spy struct {
	*bus.Bus
	p *player
}

var _ agent.Bus = spy{}

// Publish keeps heartbeats back while the agents are to be silent.
func (s spy) Publish(subject string, data []byte, h bus.Header) error {
	if strings.HasPrefix(subject, "fleet.heartbeat.") {
		if _, err := os.Stat(Mute(s.p.Cast.Journal)); err == nil {
			return nil
		}
		now := skew.Now().UnixNano()
		if last := s.p.beat.Swap(now); last > 0 && now-last > int64(silentBeats*s.p.Cast.Heartbeat) {
			s.p.note(Entry{What: WasSilent, Time: last})
		}
	}
	return s.Bus.Publish(subject, data, h)
}

// silentBeats is how many heartbeats may be late before an agent notes that.
const silentBeats = 2

// Subscribe notes offers and what routers say.
func (s spy) Subscribe(subject, queue string, fn func(bus.Msg)) (*bus.Subscription, error) {
	return s.Bus.Subscribe(subject, queue, func(m bus.Msg) {
		var about struct {
			Task struct {
				ID string `json:"task_id"`
			} `json:"task"`
			TaskID  string `json:"task_id"`
			Attempt int    `json:"attempt"`
			Action  string `json:"action"`
			Reason  struct {
				Code string `json:"code"`
			} `json:"reason"`
		}
		_ = exact.Unmarshal(m.Data, &about) // the harness refuses what is no JSON
		if strings.HasPrefix(subject, "fleet.offer.") {
			s.p.note(Entry{What: WasOffered, Task: about.Task.ID, Attempt: about.Attempt, Words: wordsIn(m.Data)})
		} else {
			s.p.note(Entry{What: WasControl, Task: about.TaskID, Attempt: about.Attempt, Code: about.Action, Status: about.Reason.Code})
		}
		fn(m)
	})
}

var word = regexp.MustCompile(`canary-[a-z0-9-]+`)

// wordsIn are the different words in an offer, see Mark.
func wordsIn(offer []byte) []string {
	words := word.FindAllString(string(offer), -1)
	slices.Sort(words)
	return slices.Compact(words)
}

// RequestUntil notes results and what they were answered.
func (s spy) RequestUntil(ctx context.Context, subject string, data []byte, h bus.Header, try time.Duration, retry func(bus.Msg) bool) (bus.Msg, error) {
	if s.p.Cast.Try > 0 {
		try = min(try, s.p.Cast.Try)
	}
	if !strings.HasPrefix(subject, "fleet.result.") {
		return s.Bus.RequestUntil(ctx, subject, data, h, try, retry)
	}
	var r struct {
		TaskID  string `json:"task_id"`
		Attempt int    `json:"attempt"`
		Status  string `json:"status"`
		Output  Output `json:"output"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return bus.Msg{}, err
	}
	e := Entry{What: WasSent, Task: r.TaskID, Attempt: r.Attempt, Status: r.Status, Nonce: r.Output.Nonce}
	s.p.note(e)
	m, err := s.Bus.RequestUntil(ctx, subject, data, h, try, retry)
	if err != nil {
		return m, err // dropped, or the end of the process
	}
	var a struct {
		OK    bool   `json:"ok"`
		State string `json:"state"`
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return m, err
	}
	e.What, e.Code, e.State = WasAnswered, a.Error.Code, a.State
	if a.OK {
		e.Code = "ok"
	}
	s.p.note(e)
	return m, nil
}
