package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/bus/embedded"
)

const (
	demoLimit    = 5 * time.Minute         // for the whole story, on a machine that is busy
	demoPatience = 2 * time.Minute         // for one step of it
	demoListen   = 3200 * time.Millisecond // until a router believes that nobody could ever do a task
	demoBreath   = time.Second             // between acts, where a person reads along
)

// The stories.
const (
	storyFleet = "fleet"
	storyTeam  = "team"
)

// errDemoSlow ends a demo that does not get on.
var errDemoSlow = fmt.Errorf("the story was not over after %s", demoLimit)

// newDemoCommand makes the command that shows a whole fleet at work. The
// programs of its cast are hidden below it.
func newDemoCommand(a *app) *cobra.Command {
	var story string
	cmd := &cobra.Command{
		Use: "demo", Short: "Show a whole fleet at work", Args: cobra.NoArgs,
		Long: `Show a whole fleet at work: an embedded broker and all workers with their data in a
temporary directory, three agents as processes of their own, and a story of eight
acts. Whatever the story claims is checked; the demo fails if it is not so. It
takes a quarter of a minute, longer on a busy machine, and leaves nothing behind.

With --story team it is another story: four agents carry out a run of four nodes,
two of them at the same time; one fails and another takes over, and one asks
another in the middle of its work.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch story {
			case storyFleet:
				return a.demo(cmd.Context(), (*demo).play)
			case storyTeam:
				return a.demo(cmd.Context(), (*demo).team)
			}
			return usage("--story %q: expected %s or %s", story, storyFleet, storyTeam)
		},
	}
	cmd.Flags().StringVar(&story, "story", storyFleet, "which one to tell: fleet or team")
	complete(cmd, "story", storyFleet, storyTeam)
	cmd.AddCommand(a.demoAgent(), a.demoWork(), a.demoMCP())
	return cmd
}

// demo is one performance.
type demo struct {
	stage
	dir     string // everything that is kept, until the end
	agents  map[string]*demoAgent
	client  *client
	stops   []func() error // undo the steps of preparing, last first
	calls   chan demoCall  // of a human
	settled time.Time      // when the router believes that somebody is absent
}

// demo plays the story and cleans up, however it ends.
func (a *app) demo(ctx context.Context, play func(*demo, context.Context) error) error {
	begin := time.Now()
	left := make(chan os.Signal, 1)
	signal.Notify(left, syscall.SIGPIPE) // who stops reading is no reason to leave things behind
	defer signal.Stop(left)
	life, cancel := context.WithTimeoutCause(ctx, demoLimit, errDemoSlow)
	defer cancel()
	d := &demo{stage: stage{app: a}, agents: make(map[string]*demoAgent)}
	err := d.prepare(life)
	if err == nil {
		err = play(d, life)
	}
	interrupted := errors.Is(err, context.Canceled)
	if err != nil && !interrupted {
		d.tailLogs()
	}
	cleanErr := d.clean()
	switch {
	case interrupted:
		return errors.Join(err, cleanErr)
	case err != nil:
		return failed("the demo did not go as told: %w", err).because("%s", d.act).
			next("run it again; if it stays so, it is a fault: please report it with all of the above")
	case cleanErr != nil:
		return failed("the demo left something behind: %w", cleanErr)
	}
	d.say("")
	d.say("That was the whole story, in %s. Everything has been stopped and removed.", roughly(time.Since(begin)))
	d.say("Now for yourself:  parley up")
	return nil
}

// prepare starts the fleet and connects to it.
func (d *demo) prepare(ctx context.Context) (err error) {
	d.act = "before the first act"
	if d.exe, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if d.dir, err = os.MkdirTemp("", "parley-demo-"); err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	d.stops = append(d.stops, func() error { return os.RemoveAll(d.dir) })
	for _, name := range []string{"data", "tmp"} {
		if err := os.Mkdir(d.path(name), 0o700); err != nil {
			return fmt.Errorf("make a temporary directory: %w", err)
		}
	}
	d.hide = [][2]string{{d.dir + string(filepath.Separator), ""}, {d.exe, "parley"}}
	url, err := d.startFleet(ctx)
	if err != nil {
		return fmt.Errorf("start the fleet: %w", err)
	}
	d.settled = time.Now().Add(demoListen)
	d.environ = d.environment(url)
	own := &app{process: process{environ: d.environ, stderr: d.app.stderr}, conf: defaultConfig(d.app.getenv), now: time.Now}
	own.conf.Server, own.conf.LogLevel = url, "error"
	if d.client, err = own.connect(ctx); err != nil {
		return err
	}
	d.stops = append(d.stops, func() error { d.client.bus.Close(); return nil }) //nolint:contextcheck // it bounds itself
	d.say("%s", d.app.paint(bold, "Parley demo: a whole fleet on this machine, for a few seconds."))
	d.say("Broker: %s. Workers: %s. Data: %s", url, strings.Join(workerNames(), ", "), d.dir)
	return nil
}

func (d *demo) path(name string) string { return filepath.Join(d.dir, name) }

// environment makes the variables of everything that the demo runs: the user's,
// without settings of Parley and NATS, which are for another fleet.
func (d *demo) environment(url string) (env []string) {
	for _, kv := range d.app.environ {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "PARLEY_") && !strings.HasPrefix(name, "NATS_") && name != "TMPDIR" {
			env = append(env, kv)
		}
	}
	return append(env, "PARLEY_SERVER="+url, "PARLEY_CONFIG="+d.path("no-settings"),
		"PARLEY_DATA="+d.path("agents"), "PARLEY_GRACE=1s", "TMPDIR="+d.path("tmp"))
}

// startFleet starts a broker and every worker in this process.
func (d *demo) startFleet(ctx context.Context) (url string, err error) {
	file, err := os.Create(d.path("fleet.log"))
	if err != nil {
		return "", err
	}
	d.stops = append(d.stops, file.Close)
	log := slog.New(slog.NewJSONHandler(file, nil))
	server, err := embedded.Start(embedded.Options{
		Dir: d.path("data"), Port: -1, StoreLimit: 16 << 30, // a limit, which is never reached
		Log: log.With(slog.String("component", "nats")), Quiet: true,
	})
	if err != nil {
		return "", err
	}
	d.stops = append(d.stops, func() error { server.Close(); return nil })
	b, err := bus.Connect(ctx, bus.Config{
		InProcess: server, Name: "parley demo", SyncAlways: server.SyncAlways(), Log: log.With(slog.String("component", "bus")),
	})
	if err != nil {
		return "", err
	}
	d.stops = append(d.stops, func() error { b.Close(); return nil }) //nolint:contextcheck // it bounds itself
	own := &app{process: d.app.process, conf: defaultConfig(d.app.getenv), now: time.Now}
	own.conf.HTTP, own.conf.MaxStore, own.conf.Grace = "127.0.0.1:0", 64<<20, span(5*time.Second)
	if err := d.callsHere(ctx, own.conf); err != nil {
		return "", err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // the fleet outlives the story
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- own.fleet(life, b, server.Room(), log, func(string) { close(ready) }) }() // ends with life
	d.stops = append(d.stops, func() error { end(); return <-done })
	select {
	case <-ready:
		return server.URL(), nil
	case err := <-done:
		done <- nil // clean waits for it, too
		return "", errors.Join(errors.New("a worker ended"), err)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// clean ends every process and removes everything.
func (d *demo) clean() error {
	var errs []error
	for _, agent := range d.agents {
		agent.leave()
	}
	for _, agent := range d.agents {
		errs = append(errs, agent.gone())
	}
	for _, stop := range slices.Backward(d.stops) {
		errs = append(errs, stop())
	}
	if _, err := os.Stat(d.dir); d.dir != "" && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("%s is still there", d.dir))
	}
	return errors.Join(errs...)
}

// tailLogs shows the end of every log, for whoever looks for the fault.
func (d *demo) tailLogs() {
	const last = 8
	logs, err := filepath.Glob(d.path("*.log"))
	if err != nil || d.dir == "" {
		return
	}
	for _, path := range logs {
		data, err := os.ReadFile(path)
		if err != nil || len(data) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		fmt.Fprintf(d.app.stderr, "\nThe last lines of %s:\n", filepath.Base(path))
		for _, line := range lines[max(len(lines)-last, 0):] {
			fmt.Fprintln(d.app.stderr, "  "+printable(line))
		}
	}
}
