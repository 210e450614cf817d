package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	runwire "parley/subjects/run"
	"parley/workers/router"
	"parley/workers/runs"
	"parley/workers/sessions"
)

// Values of spec.Run: what of a run is measured, and what beside it.
const (
	runTurns = "turns" // plain tasks, one after the other
	runChain = "chain" // a run of as many nodes, each of which depends on the one before
	runPlain = "plain" // plain tasks, as many at a time as there is room for
	runFan   = "fan"   // a run of one node with as many items
)

// contexts asks the sessions worker, as the router of parley does.
type contexts struct{ b *bus.Bus }

func (c contexts) Context(ctx context.Context, id subjects.SessionID, from subjects.AgentID, after uint64) (router.SessionContext, error) {
	m, err := c.b.Request(ctx, subjects.API(handshake.Router, "session", "offer"), fleet.MustEncode(handshake.OfferContext{SessionID: id, From: from, AfterSeq: after}), nil)
	if err != nil {
		return router.SessionContext{}, err
	}
	r, err := fleet.DecodeReply[handshake.OfferContextReply](m.Data)
	return router.SessionContext{Context: r.Context, Token: r.Token}, err
}

// manage starts the workers that carry runs out.
func (p *parley) manage(ctx context.Context, srv *servers) error {
	b, err := p.connect(ctx, srv, "sessions")
	if err != nil {
		return err
	}
	s, err := sessions.New(sessions.Config{Bus: b, Log: quietLog(os.Stderr)})
	if err != nil {
		return err
	}
	p.run(ctx, "sessions", s.Run)
	if b, err = p.connect(ctx, srv, "runs"); err != nil {
		return err
	}
	r, err := runs.New(runs.Config{Bus: b, Log: quietLog(os.Stderr)})
	if err != nil {
		return err
	}
	p.run(ctx, "runs", r.Run)
	return p.until(ctx, "workers are ready", func() (bool, error) { return s.Ready() == nil && r.Ready() == nil, p.failure() })
}

// doRun is the job of one measurement of runs.
func (p *parley) doRun(ctx context.Context, kind string, n, inFlight int) error {
	switch kind {
	case runPlain:
		return dispatchAndAwait(ctx, p, p.meter, n, inFlight)
	case runTurns:
		for range n {
			if err := dispatchAndAwait(ctx, p, p.meter, 1, 1); err != nil {
				return err
			}
		}
		return nil
	}
	brief := string(filler)
	d := &runwire.Definition{TaskID: subjects.RunID(fmt.Sprintf("%s-%d", kind, p.started.Add(1)))}
	if kind == runFan {
		items := make([]json.RawMessage, n)
		for i := range items {
			items[i] = json.RawMessage("1")
		}
		d.Agents = []runwire.Node{{ID: "n", Brief: brief, Dependencies: []runwire.NodeID{}, FanOut: &runwire.FanOut{Items: items}}}
	} else {
		for i := range n {
			node := runwire.Node{ID: runwire.NodeID(fmt.Sprintf("n%d", i)), Brief: brief, Dependencies: []runwire.NodeID{}}
			if i > 0 {
				node.Dependencies = append(node.Dependencies, d.Agents[i-1].ID)
			}
			d.Agents = append(d.Agents, node)
		}
	}
	return p.finish(ctx, d)
}

// finish starts a run and waits for its end.
func (p *parley) finish(ctx context.Context, d *runwire.Definition) error {
	over := make(chan runwire.State, 1)
	sub, err := p.client.Subscribe(subjects.RunEvent(d.TaskID), "", func(m bus.Msg) {
		if s := runwire.State(m.Header.Get(subjects.HeaderKind)); s.Ended() {
			select {
			case over <- s:
			default:
			}
		}
	})
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	try, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := p.client.Request(try, subjects.API(caller, "run", "start"), fleet.MustEncode(d), nil)
	if err != nil {
		return fmt.Errorf("start a run: %w", err)
	}
	if _, err := fleet.DecodeReply[runwire.Started](m.Data); err != nil {
		return fmt.Errorf("start a run: %w", err)
	}
	select {
	case s := <-over:
		if s != runwire.Done {
			return errors.New("the run has " + string(s))
		}
		return nil
	case <-time.After(5 * time.Minute):
		return errors.New("the run does not end")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runsPart is what a run costs beyond its tasks.
func runsPart(ctx context.Context, o options, p *page) error {
	nodes, items := 100, 10_000
	if o.quick {
		items = 2_000
	}
	p.section(fmt.Sprintf("Runs: a chain of %d nodes and a fan-out of %s, beside plain tasks of the same agent", nodes, thousands(float64(items))))
	kinds := []struct {
		kind string
		n    int
	}{{runTurns, nodes}, {runChain, nodes}, {runPlain, items}, {runFan, items}}
	var rows [][]string
	for profile := range strings.SplitSeq(o.profiles, ",") {
		took := make([]spread, len(kinds))
		for round := range o.rounds {
			for i, k := range kinds {
				s := o.spec(roleFleet, profile)
				s.Run, s.Tasks = k.kind, k.n
				if k.kind == runFan {
					s.CPU, s.Allocs, s.Mutex = o.cpu, o.allocs, o.mutex
				}
				r, err := run(ctx, s)
				if err != nil {
					return err
				}
				took[i] = append(took[i], r.Seconds)
				p.say("%s runs %s, round %d: %.0f tasks/s, %.2f ms each, %.2f writes each", profile, k.kind, round+1, r.perSecond(), r.Seconds/float64(r.Tasks)*1e3, r.Writes)
				p.record("runs", map[string]any{"profile": profile, "variant": k.kind, "round": round + 1, "tasks": k.n, "seconds": r.Seconds, "writes_per_task": r.Writes})
			}
		}
		each := func(i int) float64 { return took[i].median() / float64(kinds[i].n) * 1e3 }
		edge, ratio := each(1)-each(0), took[2].median()/took[3].median()
		rows = append(rows, []string{profile, ms(each(0)), ms(each(1)), ms(edge), thousands(1e3 / each(2)), thousands(1e3 / each(3)), percent(ratio)})
		p.target(profile+": an edge of a chain adds", ms(edge)+" ms", "≤ 3 ms", edge <= 3)
		p.target(profile+": fan-out, of plain throughput", percent(ratio), "≥ 80 %", ratio >= .8)
	}
	p.table([]string{"", "plain in turns, ms", "chain, ms", "edge adds, ms", "plain tasks/s", "fan-out tasks/s", "of plain"}, rows)
	return nil
}
