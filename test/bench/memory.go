package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/registry"
	"parley/workers/router"
)

// statsSubject is where a worker child says how large its heap is.
const statsSubject = "bench.stats"

// footprint is what a worker child needs.
type footprint struct {
	RSS  int64 `json:"rss"`  // of the process
	Peak int64 `json:"peak"` // of RSS
	Heap int64 `json:"heap"` // in use after a collection
}

// beWorker is a router and a registry on their own, until in ends.
func beWorker(ctx context.Context, s spec, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b, err := bus.Connect(ctx, bus.Config{URL: s.URL, Name: "worker", SyncAlways: s.Profile != r1Lazy, Log: quietLog(os.Stderr)})
	if err != nil {
		return err
	}
	defer b.Close() //nolint:contextcheck // it ends with the process
	w, err := router.New(router.Config{Bus: b, Commit: commits[s.Commit], MaxQueued: 2_000_000, Log: quietLog(os.Stderr)})
	if err != nil {
		return err
	}
	reg, err := registry.New(registry.Config{Bus: b, Log: quietLog(os.Stderr)})
	if err != nil {
		return err
	}
	_, err = b.Subscribe(statsSubject, "", func(m bus.Msg) {
		f := footprint{RSS: status(os.Getpid(), "VmRSS"), Peak: status(os.Getpid(), "VmHWM")}
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		f.Heap = int64(stats.HeapAlloc)
		if data, err := json.Marshal(f); err == nil {
			_ = m.Respond(data, nil)
		}
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 3)
	go func() { _, err := io.Copy(io.Discard, in); ended <- err }()
	go func() { ended <- w.Run(ctx) }()
	go func() { ended <- reg.Run(ctx) }()
	return <-ended
}

// colony is a server and a worker, each a process of its own, and a client.
type colony struct {
	page   *page
	spec   spec
	server *exec.Cmd
	worker *exec.Cmd
	stop   []io.Closer // the standard inputs: closing one ends its process
	client *bus.Bus
	last   subjects.TaskID
}

func (c *colony) startServer(ctx context.Context) error {
	s := c.spec
	s.Role = roleServer
	cmd, err := child(ctx, s)
	if err != nil {
		return err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	c.server, c.stop = cmd, append(c.stop, in)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	return json.Unmarshal(line, &c.spec.URL)
}

// startWorker starts the worker and waits until the API answers ask.
func (c *colony) startWorker(ctx context.Context, ask func(context.Context) error) (took time.Duration, err error) {
	s := c.spec
	s.Role = roleWorker
	if c.worker, err = child(ctx, s); err != nil {
		return 0, err
	}
	in, err := c.worker.StdinPipe()
	if err != nil {
		return 0, err
	}
	c.stop = append(c.stop, in)
	start := time.Now()
	if err := c.worker.Start(); err != nil {
		return 0, fmt.Errorf("start worker: %w", err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		err := ask(try)
		cancel()
		if err == nil {
			return time.Since(start), nil
		}
		if time.Since(start) > 3*time.Minute {
			return 0, fmt.Errorf("the worker does not answer: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// known asks for a task that must be known; "" for none.
func (c *colony) known(ctx context.Context) error {
	m, err := c.client.Request(ctx, subjects.API(caller, "task", "list"), fleet.MustEncode(fleet.TaskList{Limit: 1}), nil)
	if err != nil {
		return err
	}
	if _, err := fleet.DecodeReply[fleet.TaskListReply](m.Data); err != nil || c.last == "" {
		return err
	}
	m, err = c.client.Request(ctx, subjects.API(caller, "task", "get"), fleet.MustEncode(fleet.TaskRef{TaskID: c.last}), nil)
	if err != nil {
		return err
	}
	v, err := fleet.DecodeReply[fleet.TaskView](m.Data)
	if err == nil && v.State != fleet.StateQueued {
		err = fmt.Errorf("task %s is %s, want queued", c.last, v.State)
	}
	return err
}

func (c *colony) footprint(ctx context.Context) (f footprint, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	m, err := c.client.Request(ctx, statsSubject, nil, nil)
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(m.Data, &f)
}

// kill ends the worker as a crash would.
func (c *colony) kill() error {
	if err := c.worker.Process.Kill(); err != nil {
		return fmt.Errorf("kill worker: %w", err)
	}
	_ = c.worker.Wait()
	return nil
}

func (c *colony) close() {
	if c.client != nil {
		c.client.Close()
	}
	for _, in := range c.stop {
		_ = in.Close()
	}
	for _, cmd := range []*exec.Cmd{c.worker, c.server} {
		if cmd != nil && cmd.ProcessState == nil {
			_ = cmd.Wait()
		}
	}
}

// memory is what a router and a registry need for many agents, then for many
// tasks, and how long they take to come back with them.
func memory(ctx context.Context, o options, p *page) error {
	dir, remove, err := tempDir(o.base)
	if err != nil {
		return err
	}
	defer remove()
	c := &colony{page: p, spec: spec{Profile: r1Sync, Commit: o.commit, Dir: dir}}
	defer c.close() //nolint:contextcheck // it must be closed when ctx has ended, too
	if err := c.startServer(ctx); err != nil {
		return err
	}
	if c.client, err = bus.Connect(ctx, bus.Config{URL: c.spec.URL, Name: "client", SyncAlways: true, Log: quietLog(os.Stderr)}); err != nil {
		return err
	}
	if err := c.client.Provision(ctx, bus.Provisioning{Replicas: 1, MaxBytes: 40 << 30}); err != nil {
		return err
	}
	p.section("Memory of a process with a router and a registry, on " + r1Sync)
	var rows [][]string
	row := func(what, rate string, ready time.Duration) (footprint, error) {
		f, err := c.footprint(ctx)
		if err != nil {
			return f, fmt.Errorf("%s: %w", what, err)
		}
		rows = append(rows, []string{what, mib(f.RSS), mib(f.Peak), mib(f.Heap), rate, fmt.Sprintf("%.1f", ready.Seconds())})
		p.say("%s: RSS %s, heap %s, ready after %.1f s, %s", what, mib(f.RSS), mib(f.Heap), ready.Seconds(), rate)
		p.record("memory", map[string]any{"what": what, "rss": f.RSS, "peak": f.Peak, "heap": f.Heap, "ready_seconds": ready.Seconds(), "dispatches_per_second": rate})
		return f, nil
	}
	if err := c.grow(ctx, o, row); err != nil {
		return err
	}
	p.table([]string{"", "RSS", "most RSS", "live heap", "filled at /s", "ready after s"}, rows)
	return nil
}

type addRow func(what, rate string, ready time.Duration) (footprint, error)

// grow adds agents, then tasks, then restarts the worker.
func (c *colony) grow(ctx context.Context, o options, row addRow) error {
	ready, err := c.startWorker(ctx, c.known)
	if err != nil {
		return err
	}
	if _, err := row("nothing", "", ready); err != nil {
		return err
	}
	if err := inParallelCount(o.announced, 256, func(i int) error {
		return announce(ctx, c.client, subjects.AgentID(fmt.Sprintf("agent-%05d", i)), false)
	}); err != nil {
		return err
	}
	if err := c.settled(ctx); err != nil {
		return err
	}
	agents := thousands(float64(o.announced)) + " agents"
	if _, err := row(agents, "", 0); err != nil {
		return err
	}
	rate, err := c.fill(ctx, o.queued)
	if err != nil {
		return err
	}
	what := agents + ", " + thousands(float64(o.queued)) + " queued tasks"
	full, err := row(what, thousands(rate), 0)
	if err != nil {
		return err
	}
	if err := c.kill(); err != nil {
		return err
	}
	if ready, err = c.startWorker(ctx, c.known); err != nil {
		return err
	}
	again, err := row(what+", killed and restarted", "", ready)
	if err != nil {
		return err
	}
	c.page.target("memory: "+what, mib(full.RSS), "≤ 300 MiB", full.RSS <= 300<<20)
	c.page.target("memory after the restart", mib(again.RSS), "≤ 300 MiB", again.RSS <= 300<<20)
	c.page.target("ready again after", fmt.Sprintf("%.1f s", ready.Seconds()), "≤ 15 s", ready <= 15*time.Second)
	return nil
}

// settled waits until the workers have read what was announced.
func (c *colony) settled(ctx context.Context) error {
	if err := c.client.Ping(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(3 * time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fill dispatches n tasks for an agent that drains.
func (c *colony) fill(ctx context.Context, n int) (perSecond float64, err error) {
	if err := announce(ctx, c.client, parkedAgent(0), true); err != nil {
		return 0, err
	}
	if err := c.settled(ctx); err != nil {
		return 0, err
	}
	p := &parley{meter: newMeter(), client: c.client}
	start := time.Now()
	step := max(n/10, 1)
	for done := 0; done < n; done += step {
		from := time.Now()
		if err := inParallel(step, 256, func() error {
			return p.put(ctx, parkedAgent(0))
		}); err != nil {
			return 0, err
		}
		c.page.say("queued %d tasks, the last %d at %.0f/s", done+step, step, float64(step)/time.Since(from).Seconds())
	}
	perSecond = float64(n) / time.Since(start).Seconds()
	c.last, err = p.send(ctx, request(p.task(), parkedAgent(0)))
	if err == nil && c.last == "" {
		err = errors.New("a dispatch was answered without a task id")
	}
	return perSecond, err
}
