package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
	"parley/workers/router"
)

// caller is who dispatches.
const caller subjects.AgentID = "bench"

// patience is how long a dispatch may take: a busy machine is no error.
const patience = time.Minute

// sampled is how many outcomes are read again by task get.
const sampled = 50

// parley is the fleet as anybody would run it.
type parley struct {
	*meter
	client *bus.Bus
	ids    chan subjects.TaskID // a sample of what was dispatched
	wrong  atomic.Int64         // outcomes that are not done

	parked  atomic.Int64 // tasks that wait for ever
	crew    *crew        // the agents, where they have a process of their own
	tempest *tempest     // nil where nobody waits for humans
	turns   atomic.Int64
	started atomic.Int64 // runs

	cancel context.CancelFunc
	buses  []*bus.Bus
	wg     sync.WaitGroup
}

var commits = map[string]bus.CommitMode{"": bus.CommitAuto, "auto": bus.CommitAuto, "direct": bus.CommitDirect, "grouped": bus.CommitGrouped}

// quietLog logs what should not happen.
func quietLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (p *parley) connect(ctx context.Context, srv *servers, name string) (*bus.Bus, error) {
	b, err := bus.Connect(ctx, bus.Config{URL: srv.url(), Name: name, SyncAlways: srv.sync, Log: quietLog(os.Stderr)})
	if err == nil {
		p.buses = append(p.buses, b)
	}
	return b, err
}

func (p *parley) prepare(ctx context.Context, srv *servers, s spec) error {
	p.ids = make(chan subjects.TaskID, sampled)
	var err error
	if p.client, err = p.connect(ctx, srv, "client"); err != nil {
		return err
	}
	if err := p.client.Provision(ctx, bus.Provisioning{Replicas: srv.replicas(), MaxBytes: 16 << 30}); err != nil {
		return err
	}
	if err := p.lead(ctx, srv); err != nil {
		return err
	}
	if _, err := p.client.Subscribe("fleet.outcome."+string(caller)+".*", "", p.onOutcome); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel = cancel
	for i := range s.Routers {
		if err := p.startRouter(run, srv, s, i); err != nil {
			return err
		}
	}
	if s.Apart {
		err = p.startCrew(ctx, srv, s)
	} else {
		err = p.startAgents(run, s, func() (*bus.Bus, error) { return p.connect(run, srv, "agent") })
	}
	if err != nil {
		return err
	}
	if s.Storm != "" {
		if err := p.startWorking(run, srv, s.InFlight); err != nil {
			return err
		}
	}
	if s.Run != "" {
		if err := p.manage(run, srv); err != nil {
			return err
		}
	}
	if s.Storm != "" {
		if err := p.humans(run, srv); err != nil {
			return err
		}
	}
	if s.Storm != "" && s.Storm != stormNone {
		if err := p.brew(ctx, srv, s); err != nil {
			return err
		}
	}
	if s.Storm == stormWaits {
		p.tempest.strike()
		if err := p.settled(ctx, s.Failing); err != nil {
			return err
		}
	}
	return p.client.Ping(ctx)
}

func (p *parley) startRouter(ctx context.Context, srv *servers, s spec, i int) error {
	b, err := p.connect(ctx, srv, "router")
	if err != nil {
		return err
	}
	w, err := router.New(router.Config{
		Bus: b, ID: subjects.InstanceID(fmt.Sprintf("r%d", i)), Commit: commits[s.Commit],
		Sessions: contexts{b}, MaxQueued: 2_000_000, HumanContact: s.Storm != "", Log: quietLog(os.Stderr),
	})
	if err != nil {
		return err
	}
	p.run(ctx, "router", w.Run)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for w.Ready() != nil {
		select {
		case <-tick.C:
		case <-time.After(serverReady):
			return errors.New("the router does not get ready")
		}
		if err := p.failure(); err != nil {
			return err
		}
	}
	return nil
}

// perConnection is how many agents of a crowd share a connection.
const perConnection = 100

// startAgents returns once the fleet knows of all of them.
func (p *parley) startAgents(ctx context.Context, s spec, connect func() (*bus.Bus, error)) error {
	var b *bus.Bus
	all := make([]*agent.Worker, s.Agents)
	for i := range all {
		var err error
		if s.Agents <= perConnection || i%perConnection == 0 {
			if b, err = connect(); err != nil {
				return err
			}
		}
		if all[i], err = p.startAgent(ctx, b, i, (s.InFlight+s.Agents-1)/s.Agents); err != nil {
			return err
		}
	}
	return p.until(ctx, "agents are known", func() (bool, error) {
		return !slices.ContainsFunc(all, func(w *agent.Worker) bool { return w.Ready() != nil }), p.failure()
	})
}

// startCrew starts the agents in a process of their own.
func (p *parley) startCrew(ctx context.Context, srv *servers, s spec) (err error) {
	s.Role, s.URL = roleAgents, srv.url()
	if p.crew, err = startCrew(ctx, s); err != nil {
		return err
	}
	return p.crew.hear("the fleet knows of them")
}

func (p *parley) startAgent(ctx context.Context, b *bus.Bus, i, parallel int) (*agent.Worker, error) {
	w, err := agent.New(agent.Config{
		ID: subjects.AgentID(fmt.Sprintf("echo-%d", i)), ModelTier: "haiku", Tools: []string{"echo"},
		MaxParallel: parallel, Bus: watched{b, p.meter}, Handler: agent.HandlerFunc(echo), Log: quietLog(os.Stderr),
	})
	if err != nil {
		return nil, err
	}
	p.run(ctx, "agent", w.Run)
	return w, nil
}

// echo answers with the beginning of the brief.
func echo(_ context.Context, t *agent.Task) (fleet.Result, error) {
	return agent.Text(t.Dispatch.Brief[:resultBytes]), nil
}

func (p *parley) run(ctx context.Context, what string, f func(context.Context) error) {
	p.wg.Go(func() {
		if err := f(ctx); err != nil {
			p.broken(fmt.Errorf("%s: %w", what, err))
		}
	})
}

// watched is an agent's bus that notes when offers come.
type watched struct {
	*bus.Bus
	m *meter
}

func (w watched) Subscribe(subject, queue string, fn func(bus.Msg)) (*bus.Subscription, error) {
	if !strings.HasPrefix(subject, "fleet.offer.") {
		return w.Bus.Subscribe(subject, queue, fn)
	}
	return w.Bus.Subscribe(subject, queue, func(m bus.Msg) {
		w.m.offered(m.Data)
		fn(m)
	})
}

func (p *parley) onOutcome(m bus.Msg) {
	if kind := m.Header.Get(subjects.HeaderKind); kind != string(fleet.StateDone) {
		p.wrong.Add(1)
		p.broken(fmt.Errorf("an outcome is %s: %s", kind, m.Data))
	}
	p.worked(m.Data)
	p.end()
}

func request(content []byte, pin subjects.AgentID) []byte {
	return fleet.MustEncode(&fleet.Dispatch{
		Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version},
		Task:   fleet.Task{Agent: pin}, Brief: string(content),
	})
}

// send dispatches one task and returns its id.
func (p *parley) send(ctx context.Context, data []byte) (subjects.TaskID, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := p.client.Request(ctx, subjects.API(caller, "task", "dispatch"), data, nil)
	if err != nil {
		return "", fmt.Errorf("dispatch: %w", err)
	}
	d, err := fleet.DecodeReply[fleet.Dispatched](m.Data)
	if err != nil {
		return "", fmt.Errorf("dispatch: %w", err)
	}
	return d.TaskID, nil
}

func (p *parley) one(ctx context.Context) error {
	data := request(p.task(), "")
	if p.tempest != nil { // every other task is one that takes a while
		data = request(p.task(), "echo-0")
		if p.turns.Add(1)%2 == 0 {
			data = request(p.taskOf(worksKind), working)
		}
	}
	id, err := p.send(ctx, data)
	if err != nil {
		return err
	}
	select {
	case p.ids <- id:
	default:
	}
	return nil
}

func (p *parley) dispatch(ctx context.Context, n, inFlight int) error {
	return inParallel(n, inFlight, func() error { return p.one(ctx) })
}

// inParallel calls f n times on up to most goroutines, until one fails.
func inParallel(n, most int, f func() error) error {
	return inParallelCount(n, most, func(int) error { return f() })
}

// inParallelCount calls f with 0 to n-1.
func inParallelCount(n, most int, f func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, most)
	for range most {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := f(int(i - 1)); err != nil {
					next.Store(int64(n))
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// park dispatches n tasks that nobody can do now: they are pinned to agents
// that drain, classes of them.
func (p *parley) park(ctx context.Context, n, classes int) (perSecond float64, err error) {
	for i := range classes {
		if err := announce(ctx, p.client, parkedAgent(i), true); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	err = inParallel(n, 256, func() error {
		return p.put(ctx, parkedAgent(int(p.parked.Add(1))%classes))
	})
	return float64(n) / time.Since(start).Seconds(), err
}

// put dispatches one task for the agent pin.
func (p *parley) put(ctx context.Context, pin subjects.AgentID) error {
	_, err := p.send(ctx, request(p.task(), pin))
	return err
}

func parkedAgent(i int) subjects.AgentID { return subjects.AgentID(fmt.Sprintf("parked-%d", i)) }

// announce makes an agent known that needs no heartbeats.
func announce(ctx context.Context, b *bus.Bus, id subjects.AgentID, draining bool) error {
	_, err := b.Store(ctx, subjects.Announce(id, "main"), fleet.MustEncode(&fleet.Announce{
		Header:       fleet.Header{Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version},
		Worker:       fleet.Worker{AgentID: id, Model: "claude-sonnet-4-5", ModelTier: "sonnet", Epoch: time.Now().UnixNano(), MaxParallel: 4, Labels: map[string]string{"site": "lab"}},
		Capabilities: fleet.Capabilities{Tools: []string{"terminal", "git", "browser"}, MCPServers: []string{"git", "jira"}},
		MCPHealth:    fleet.MCPHealth{"git": fleet.HealthOK, "jira": fleet.HealthOK},
		Session:      fleet.SessionState{RepoState: &fleet.RepoState{Branch: "main", Clean: true}, SessionFresh: true},

		HeartbeatSeconds: new(float64), Draining: draining,
	}), "", nil)
	return err
}

// verify reads a sample of the outcomes by task get.
func (p *parley) verify(ctx context.Context) (checked int, err error) {
	if n := p.wrong.Load(); n > 0 {
		return 0, fmt.Errorf("%d outcomes are not done", n)
	}
	for len(p.ids) > 0 {
		id := <-p.ids
		m, err := p.client.Request(ctx, subjects.API(caller, "task", "get"), fleet.MustEncode(fleet.TaskRef{TaskID: id}), nil)
		if err != nil {
			return checked, fmt.Errorf("get task %s: %w", id, err)
		}
		v, err := fleet.DecodeReply[fleet.TaskView](m.Data)
		if err != nil {
			return checked, fmt.Errorf("get task %s: %w", id, err)
		}
		var output string
		if v.State != fleet.StateDone || v.Result == nil || json.Unmarshal(v.Result.Output, &output) != nil || len(output) != resultBytes {
			return checked, fmt.Errorf("task %s is %s, without the result that was handed in", id, v.State)
		}
		checked++
	}
	return checked, nil
}

func (p *parley) close() {
	if p.cancel != nil {
		p.cancel()
	}
	p.wg.Wait()
	if p.crew != nil {
		p.crew.close()
	}
	if p.tempest != nil {
		p.tempest.close()
	}
	for _, b := range p.buses {
		b.Close()
	}
}

// lead brings the leader of the task stream to where the clients are.
func (p *parley) lead(ctx context.Context, srv *servers) error {
	nc, err := nats.Connect(srv.url())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer nc.Close()
	return srv.lead(ctx, nc, subjects.StreamTasks)
}
