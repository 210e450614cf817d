package agent

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"time"

	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

// NewTask makes a task that reports to told.
func NewTask(d *fleet.Dispatch, told func(text string, tokens *int64)) *Task {
	return &Task{Dispatch: d, line: toldLine(told)}
}

type toldLine func(text string, tokens *int64)

func (l toldLine) progress(p progress)                            { l(p.text, p.tokens) }
func (l toldLine) artifact(context.Context, fleet.Artifact) error { return nil }
func (l toldLine) followUp(context.Context, int) (fleet.Message, error) {
	return fleet.Message{}, context.Canceled
}

func (l toldLine) ask(context.Context, fleet.Question) (fleet.Answer, error) {
	return fleet.Answer{}, context.Canceled
}

// ReadLimit is what is read of a text that says that a limit is met; ok is false
// for a text that does not say so.
func ReadLimit(text string, now time.Time) (resetAt time.Time, after time.Duration, tier string, ok bool) {
	l := readLimit(text, now)
	return l.resetAt, l.after, l.tier, isLimit(text)
}

// Guard starts the guard of e.
func Guard(e *Exec) { startGuard(e.own, discardLog()) }

// ThisProcess is what names of directories begin with.
func ThisProcess() string { return thisProcess().String() }

// Things that tests look at from outside.
var (
	ChildEnv    = childEnv
	ExpandEnv   = expandEnv
	ParseStatus = parseStatus
	Clip        = clip
)

// Read has a meter read what a command printed; exit is its status.
func Read(u Usage, output string, exit error) (fleet.Result, error) {
	return ReadFor(&fleet.Dispatch{}, u, output, exit)
}

// ReadFor is Read for the task of a dispatch.
func ReadFor(d *fleet.Dispatch, u Usage, output string, exit error) (fleet.Result, error) {
	past := newTotals("")
	m, err := newMeter(u, past)
	if err != nil {
		return fleet.Result{}, err
	}
	answer := &head{max: fleet.MaxMessage}
	if m == nil {
		_, _ = answer.Write([]byte(output))
		output = ""
	}
	l := &lines{max: maxLine, each: func(b []byte, cut bool) { m.line(b, cut) }}
	_, _ = l.Write([]byte(output))
	_ = l.Close()
	r := &ran{meter: m, totals: past, answer: answer, last: &recent{max: lastLines}, limits: &recent{max: lastLines}, end: ending{failed: exit, state: succeededState()}}
	return r.conclude(d)
}

// Lines splits writes into lines of at most limit bytes.
func Lines(limit int, writes ...string) (out []string) {
	l := &lines{max: limit, each: func(b []byte, cut bool) {
		s := string(b)
		if cut {
			s += "|cut"
		}
		out = append(out, s)
	}}
	for _, s := range writes {
		_, _ = l.Write([]byte(s))
	}
	_ = l.Close()
	return out
}

// Check is the validation of an offer, by an agent in zone a that has a
// terminal.
func Check(d *fleet.Dispatch, health fleet.MCPHealth, repo *fleet.RepoState, tier string, now time.Time) *fleet.ResultError {
	return check(d, vitals{health: health, repo: repo}, abilities{
		tier: tier, tiers: " haiku sonnet opus ", capabilities: []string{"terminal"}, labels: map[string]string{"zone": "a"},
	}, now)
}

// Probe probes one server.
func Probe(ctx context.Context, s MCPServer, env []string) string {
	p := prober{env: env, timeout: 5 * time.Second, log: discardLog()}
	return p.probe(ctx, s)
}

// succeededState is the state of a process that ended well.
var succeededState = sync.OnceValue(func() *os.ProcessState {
	c := exec.Command(os.Args[0], "helper", "true")
	if err := c.Run(); err != nil {
		panic(err)
	}
	return c.ProcessState
})

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (toldLine) askAgents(context.Context, Question) ([]mesh.Answer, error) { return nil, nil }
