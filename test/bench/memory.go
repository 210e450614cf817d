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
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// footprint is what a worker process needs, in bytes.
type footprint struct {
	rss, peak int64
	heap      int64 // live after the latest collection
}

// heapWatch reads the collector's trace on the worker's standard error.
type heapWatch struct {
	live atomic.Int64
	rest io.Writer // for every other line
}

// "gc 7 @1.2s 3%: … ms cpu, 210->214->105 MB, 212 MB goal, …": the third is live.
var gcLine = regexp.MustCompile(`^gc \d+ @.* \d+->\d+->(\d+) MB`)

func (h *heapWatch) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if m := gcLine.FindStringSubmatch(lines.Text()); m != nil {
			if n, err := strconv.ParseInt(m[1], 10, 64); err == nil {
				h.live.Store(n << 20)
			}
			continue
		}
		fmt.Fprintln(h.rest, lines.Text())
	}
}

// colony is a server and a worker, each a process of its own, and a client.
type colony struct {
	page   *page
	spec   spec
	server *exec.Cmd
	binary string // parley
	worker *exec.Cmd
	heap   *heapWatch
	stop   io.Closer // standard input of the server: closing it ends it
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
	c.server, c.stop = cmd, in
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	return json.Unmarshal(line, &c.spec.URL)
}

// build makes the binary that is measured.
func (c *colony) build(ctx context.Context) error {
	c.binary = filepath.Join(c.spec.Dir, "parley")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", c.binary, "parley/cmd/parley")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build parley: %w\n%s", err, out)
	}
	return nil
}

// startWorker starts parley serve and waits until the API answers ask.
func (c *colony) startWorker(ctx context.Context, ask func(context.Context) error) (took time.Duration, err error) {
	c.worker = exec.CommandContext(ctx, c.binary, "serve", "--workers", "router,registry", "--server", c.spec.URL,
		"--http", "off", "--provision", "off", "--max-queued", "2000000", "--log-level", "warn")
	c.worker.Env = append(os.Environ(), "GODEBUG=gctrace=1")
	c.worker.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	trace, err := c.worker.StderrPipe()
	if err != nil {
		return 0, err
	}
	c.heap = &heapWatch{rest: os.Stderr}
	start := time.Now()
	if err := c.worker.Start(); err != nil {
		return 0, fmt.Errorf("start worker: %w", err)
	}
	go c.heap.read(trace) // ends with the process
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

func (c *colony) footprint() footprint {
	pid := c.worker.Process.Pid
	return footprint{rss: status(pid, "VmRSS"), peak: status(pid, "VmHWM"), heap: c.heap.live.Load()}
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
	if c.worker != nil && c.worker.Process != nil && c.worker.ProcessState == nil {
		_ = c.kill()
	}
	if c.client != nil {
		c.client.Close()
	}
	if c.stop != nil {
		_ = c.stop.Close()
		_ = c.server.Wait()
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
	c := &colony{page: p, spec: spec{Profile: r1Sync, Dir: dir}}
	defer c.close() //nolint:contextcheck // it must be closed when ctx has ended, too
	if err := c.build(ctx); err != nil {
		return err
	}
	if err := c.startServer(ctx); err != nil {
		return err
	}
	if c.client, err = bus.Connect(ctx, bus.Config{URL: c.spec.URL, Name: "client", SyncAlways: true, Log: quietLog(os.Stderr)}); err != nil {
		return err
	}
	if err := c.client.Provision(ctx, bus.Provisioning{Replicas: 1, MaxBytes: 40 << 30}); err != nil {
		return err
	}
	p.section("Memory of parley serve --workers router,registry, on " + r1Sync)
	var rows [][]string
	row := func(what, rate string, ready time.Duration) footprint {
		f := c.footprint()
		rows = append(rows, []string{what, mib(f.rss), mib(f.peak), mib(f.heap), rate, fmt.Sprintf("%.1f", ready.Seconds())})
		p.say("%s: RSS %s, live heap %s, ready after %.1f s, %s", what, mib(f.rss), mib(f.heap), ready.Seconds(), rate)
		p.record("memory", map[string]any{"what": what, "rss": f.rss, "peak": f.peak, "heap": f.heap, "ready_seconds": ready.Seconds(), "dispatches_per_second": rate})
		return f
	}
	if err := c.grow(ctx, o, row); err != nil {
		return err
	}
	p.table([]string{"", "RSS", "most RSS", "live heap", "filled at /s", "ready after s"}, rows)
	return nil
}

type addRow func(what, rate string, ready time.Duration) footprint

// grow adds agents, then tasks, then restarts the worker.
func (c *colony) grow(ctx context.Context, o options, row addRow) error {
	ready, err := c.startWorker(ctx, c.known)
	if err != nil {
		return err
	}
	row("nothing", "", ready)
	if err := inParallelCount(o.announced, 256, func(i int) error {
		return announce(ctx, c.client, subjects.AgentID(fmt.Sprintf("agent-%05d", i)), false)
	}); err != nil {
		return err
	}
	if err := c.settled(ctx); err != nil {
		return err
	}
	agents := thousands(float64(o.announced)) + " agents"
	row(agents, "", 0)
	rate, err := c.fill(ctx, o.queued)
	if err != nil {
		return err
	}
	what := agents + ", " + thousands(float64(o.queued)) + " queued tasks"
	full := row(what, thousands(rate), 0)
	if err := c.kill(); err != nil {
		return err
	}
	if ready, err = c.startWorker(ctx, c.known); err != nil {
		return err
	}
	again := row(what+", killed and restarted", "", ready)
	c.page.target("memory: "+what, mib(full.rss), "≤ 300 MiB", full.rss <= 300<<20)
	c.page.target("memory after the restart", mib(again.rss), "≤ 300 MiB", again.rss <= 300<<20)
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
