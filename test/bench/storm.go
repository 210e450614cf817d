package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
	"parley/workers/escalation"
	"parley/workers/webhooks"
)

// Values of spec.Storm.
const (
	stormNone   = "none"   // the workers for humans are there, and nothing fails
	stormBreaks = "breaks" // everything fails as the clock begins
	stormWaits  = "waits"  // everything has failed before, and waits for a human
)

const stormCaller subjects.AgentID = "storm"

// stormCauses is how many agents fail: so many alerts.
const stormCauses = 10

// tempest is what fails, and the humans that nobody can reach.
type tempest struct {
	dead  *httptest.Server // hangs
	fails chan struct{}    // closed: every task that the agents hold fails
	begun atomic.Int64
}

// humans starts the workers that call humans, with one endpoint, which hangs.
func (p *parley) humans(ctx context.Context, srv *servers) error {
	p.tempest = &tempest{fails: make(chan struct{})}
	p.tempest.dead = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise it does not see that the caller has gone
		<-r.Context().Done()
	}))
	b, err := p.connect(ctx, srv, "escalation")
	if err != nil {
		return err
	}
	e, err := escalation.New(escalation.Config{Bus: b, Chain: policy.Chain{Contacts: []string{"dead"}}, Log: quietLog(os.Stderr)})
	if err != nil {
		return err
	}
	p.run(ctx, "escalation", e.Run)
	if b, err = p.connect(ctx, srv, "webhooks"); err != nil {
		return err
	}
	w, err := webhooks.New(webhooks.Config{Bus: b, Endpoints: []webhooks.Endpoint{{
		Name: "dead", URL: p.tempest.dead.URL, Allow: []string{"127.0.0.1"},
		Secrets: []string{"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32))},
	}}})
	if err != nil {
		return err
	}
	p.run(ctx, "webhooks", w.Run)
	return nil
}

// brew has agents hold n tasks that fail once fails is closed.
func (p *parley) brew(ctx, run context.Context, srv *servers, n int) error {
	for i := range stormCauses {
		b, err := p.connect(ctx, srv, "failing")
		if err != nil {
			return err
		}
		w, err := agent.New(agent.Config{
			ID: failing(i), Bus: b, MaxParallel: (n + stormCauses - 1) / stormCauses, Log: quietLog(os.Stderr),
			Handler: agent.HandlerFunc(func(ctx context.Context, _ *agent.Task) (fleet.Result, error) {
				p.tempest.begun.Add(1)
				select {
				case <-p.tempest.fails:
				case <-ctx.Done():
				}
				return fleet.Result{}, &agent.Fail{Message: "the disk is full"}
			}),
		})
		if err != nil {
			return err
		}
		p.run(run, "failing agent", w.Run)
	}
	err := inParallelCount(n, 256, func(i int) error {
		return p.sendAs(ctx, stormCaller, fleet.MustEncode(&fleet.Dispatch{
			Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version}, Brief: string(filler),
			Task: fleet.Task{Agent: failing(i), MaxRetries: new(int)},
		}))
	})
	if err != nil {
		return err
	}
	return p.until(ctx, "failing tasks are worked on", func() (bool, error) { return p.tempest.begun.Load() >= int64(n), nil })
}

func failing(i int) subjects.AgentID {
	return subjects.AgentID(fmt.Sprintf("failing-%d", i%stormCauses))
}

// sendAs dispatches a task for somebody.
func (p *parley) sendAs(ctx context.Context, from subjects.AgentID, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := p.client.Request(ctx, subjects.API(from, "task", "dispatch"), data, nil)
	if err != nil {
		return fmt.Errorf("dispatch: %w", err)
	}
	_, err = fleet.DecodeReply[fleet.Dispatched](m.Data)
	return err
}

// settled waits until n tasks wait for a human.
func (p *parley) settled(ctx context.Context, n int) error {
	return p.until(ctx, "tasks wait for a human", func() (bool, error) {
		m, err := p.client.Request(ctx, subjects.API("operator", "escalation", "status"), []byte("{}"), nil)
		if err != nil {
			return false, nil //nolint:nilerr // the worker is not ready yet
		}
		s, err := fleet.DecodeReply[fleet.EscalationStatusReply](m.Data)
		return s.Waiting >= n, err
	})
}

// until waits for something that takes a while.
func (p *parley) until(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if done, err := ok(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// storm is what others feel of thousands of tasks that fail at once, with one
// webhook endpoint that hangs.
func storm(ctx context.Context, o options, p *page) error {
	const rate = 100
	n, seconds := 10_000, 30
	if o.quick {
		n, seconds = 1000, 5
	}
	p.section(fmt.Sprintf("%s tasks fail at once, one webhook endpoint hangs: dispatch sent → offer of other tasks, %d/s for %d s, ms",
		thousands(float64(n)), rate, seconds))
	kinds := []struct{ storm, name string }{{stormNone, "calm"}, {stormBreaks, "as they fail"}, {stormWaits, "while they wait for a human"}}
	p50, p99, cpu := make([]spread, len(kinds)), make([]spread, len(kinds)), make([]spread, len(kinds))
	for round := range o.rounds {
		for i, k := range kinds {
			s := o.spec(roleFleet, r1Lazy)
			s.Rate, s.Tasks, s.Storm, s.Failing = rate, rate*seconds, k.storm, n
			r, err := run(ctx, s)
			if err != nil {
				return err
			}
			p50[i], p99[i], cpu[i] = append(p50[i], r.P50), append(p99[i], r.P99), append(cpu[i], r.CPU)
			p.say("storm %s, round %d: p50 %s, p99 %s ms, %.1f s CPU", k.name, round+1, ms(r.P50), ms(r.P99), r.CPU)
			p.record("storm", map[string]any{"variant": k.name, "round": round + 1, "failing": n, "p50_ms": r.P50, "p99_ms": r.P99, "max_ms": r.Max, "cpu_s": r.CPU})
		}
	}
	var rows [][]string
	for i, k := range kinds {
		ratio := p99[i].median() / p99[0].median()
		rows = append(rows, []string{k.name, ms(p50[i].median()), ms(p99[i].median()), percent(ratio), fmt.Sprintf("%.1f", cpu[i].median())})
		if i > 0 {
			p.target(k.name+": p99 of other tasks' offers moves by", percent(ratio-1), "< 20 %", ratio < 1.2)
		}
	}
	p.table([]string{"", "p50", "p99", "of calm", "CPU s"}, rows)
	return nil
}
