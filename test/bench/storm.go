package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
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

// workTakes is how long a task takes that is measured as a whole: what the
// agents of a fleet do takes seconds to minutes.
const workTakes = 250 * time.Millisecond

// working is the agent that takes workTakes.
const working subjects.AgentID = "works"

// worksKind is what its tasks begin with.
const worksKind = "t1="

// tempest is what fails, and the humans that nobody can reach.
type tempest struct {
	dead *httptest.Server // hangs

	agents *crew // those that fail; nil: none do
}

// strike has every task fail that the agents hold.
func (t *tempest) strike() { _, _ = t.agents.say.Write([]byte("fail\n")) } // they are gone: then everything fails, too

func (t *tempest) close() {
	t.dead.Close()
	if t.agents != nil {
		t.agents.close()
	}
}

// humans starts the workers that call humans, with one endpoint, which hangs.
func (p *parley) humans(ctx context.Context, srv *servers) error {
	p.tempest = new(tempest)
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

// startWorking starts the agent that takes its time.
func (p *parley) startWorking(ctx context.Context, srv *servers, parallel int) error {
	b, err := p.connect(ctx, srv, "agent")
	if err != nil {
		return err
	}
	w, err := agent.New(agent.Config{
		ID: working, MaxParallel: parallel, Bus: b, Log: quietLog(os.Stderr),
		Handler: agent.HandlerFunc(func(ctx context.Context, t *agent.Task) (fleet.Result, error) {
			select {
			case <-time.After(workTakes):
			case <-ctx.Done():
			}
			return echo(ctx, t)
		}),
	})
	if err != nil {
		return err
	}
	p.run(ctx, "working agent", w.Run)
	return nil
}

// brew has agents hold tasks that fail when the storm strikes.
func (p *parley) brew(ctx context.Context, srv *servers, s spec) (err error) {
	s.Role, s.URL = roleFail, srv.url()
	if p.tempest.agents, err = startCrew(ctx, s); err != nil {
		return err
	}
	err = inParallelCount(s.Failing, 256, func(i int) error {
		return p.sendAs(ctx, stormCaller, fleet.MustEncode(&fleet.Dispatch{
			Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version}, Brief: string(filler),
			Task: fleet.Task{Agent: failing(i), MaxRetries: new(int)},
		}))
	})
	if err != nil {
		return err
	}
	return p.tempest.agents.hear("failing tasks are worked on")
}

// beFailing is the agents that fail: they say when they have all their tasks,
// fail them at a word, and end with their input.
func beFailing(ctx context.Context, s spec, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	var agents sync.WaitGroup
	defer agents.Wait()
	defer cancel()
	fails, all := make(chan struct{}), make(chan struct{})
	var begun atomic.Int64
	for i := range stormCauses {
		b, err := bus.Connect(ctx, bus.Config{URL: s.URL, Name: "failing", Log: quietLog(os.Stderr)})
		if err != nil {
			return err
		}
		defer b.Close()
		w, err := agent.New(agent.Config{
			ID: failing(i), Bus: b, MaxParallel: (s.Failing + stormCauses - 1) / stormCauses,
			Handler: agent.HandlerFunc(func(ctx context.Context, _ *agent.Task) (fleet.Result, error) {
				if begun.Add(1) == int64(s.Failing) {
					close(all)
				}
				select {
				case <-fails:
				case <-ctx.Done():
				}
				return fleet.Result{}, &agent.Fail{Message: "the disk is full"}
			}),
		})
		if err != nil {
			return err
		}
		agents.Go(func() { _ = w.Run(ctx) }) // what it cannot do its tasks tell
	}
	select {
	case <-all:
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, err := fmt.Fprintln(out, "all are worked on"); err != nil {
		return err
	}
	words := bufio.NewReader(in)
	if _, err := words.ReadString('\n'); err != nil {
		return nil //nolint:nilerr // the end, before the storm
	}
	close(fails)
	_, _ = words.ReadString('\n')
	return nil
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
	p.section(fmt.Sprintf("%s tasks fail at once, one webhook endpoint hangs: dispatch sent → offer of other tasks, and → outcome of tasks that take %s, %d/s of each for %d s, ms",
		thousands(float64(n)), workTakes, rate, seconds))
	kinds := []struct{ storm, name string }{{stormNone, "calm"}, {stormBreaks, "as they fail"}, {stormWaits, "while they wait for a human"}}
	type seen struct{ p50, p99, whole50, whole99, cpu spread }
	all := make([]seen, len(kinds))
	for round := range o.rounds {
		for i, k := range kinds {
			s := o.spec(roleFleet, r1Lazy)
			s.Rate, s.Tasks, s.Storm, s.Failing = 2*rate, 2*rate*seconds, k.storm, n
			r, err := run(ctx, s)
			if err != nil {
				return err
			}
			a := &all[i]
			a.p50, a.p99, a.cpu = append(a.p50, r.P50), append(a.p99, r.P99), append(a.cpu, r.CPU)
			a.whole50, a.whole99 = append(a.whole50, r.Whole50), append(a.whole99, r.Whole99)
			p.say("storm %s, round %d: offers p50 %s, p99 %s ms, tasks p50 %s, p99 %s ms, %.1f s CPU", k.name, round+1, ms(r.P50), ms(r.P99), ms(r.Whole50), ms(r.Whole99), r.CPU)
			p.record("storm", map[string]any{
				"variant": k.name, "round": round + 1, "failing": n, "p50_ms": r.P50, "p99_ms": r.P99, "max_ms": r.Max,
				"whole_p50_ms": r.Whole50, "whole_p99_ms": r.Whole99, "cpu_s": r.CPU,
			})
		}
	}
	var rows [][]string
	calm := all[0]
	for i, k := range kinds {
		a := all[i]
		offers, tasks := a.p99.median()/calm.p99.median(), a.whole99.median()/calm.whole99.median()
		rows = append(rows, []string{
			k.name, ms(a.p50.median()), ms(a.p99.median()), percent(offers),
			ms(a.whole50.median()), ms(a.whole99.median()), percent(tasks), fmt.Sprintf("%.1f", a.cpu.median()),
		})
		if i > 0 {
			p.target(k.name+": p99 of other tasks moves by", percent(tasks-1), "< 20 %", tasks < 1.2)
			p.target(k.name+": p99 of their offers alone moves by", percent(offers-1), "< 20 %", offers < 1.2)
		}
	}
	p.table([]string{"", "offer p50", "p99", "of calm", "task p50", "p99", "of calm", "CPU s"}, rows)
	return nil
}
