//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"parley/bus/plant/skew"
	"parley/test/rig"
)

// settings are the flags.
type settings struct {
	time   time.Duration
	seed   uint64
	rate   float64
	dir    string
	check  string
	parley string
	plant  string
	only   string
	lose   string
	must   []string
	faults int
	kinds  int
	tasks  int
	lazy   bool
	dry    bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	skew.Follow(os.Getenv(skewEnv))
	// This program is also the servers and the agents.
	if path := os.Getenv(brokerEnv); path != "" {
		exit(runBroker(path))
	}
	if path := os.Getenv(rig.AgentsEnv); path != "" {
		exit(rig.RunAgents(ctx, path))
	}
	var s settings
	flag.DurationVar(&s.time, "time", time.Minute, "how long faults happen")
	flag.Uint64Var(&s.seed, "seed", 0, "of everything random; 0 takes a new one")
	flag.Float64Var(&s.rate, "rate", 0, "plain tasks a second, beside all other work; 0: 80, and 40 where it lasts longer than ten minutes")
	flag.StringVar(&s.dir, "dir", "", "directory of journals, streams and logs, which stay there; absent: one that stays only where something is wrong")
	flag.StringVar(&s.check, "check", "", "judge what an earlier run has left in this directory, and do nothing else")
	flag.StringVar(&s.parley, "parley", "", "the program under test; absent: it is built, with the tags crashpoints and planted")
	flag.StringVar(&s.plant, "plant", "", "a bug to plant, see bus/plant")
	flag.StringVar(&s.only, "only", "", "kinds of faults, comma separated; absent: all; none for none")
	flag.StringVar(&s.lose, "lose", "97", "of so many writes of each worker one is done and its writer told that it timed out; 0 for none")
	flag.IntVar(&s.faults, "faults", 0, "fewer faults than this prove nothing")
	flag.IntVar(&s.kinds, "kinds", 0, "fewer kinds of faults than this prove nothing; a new seed is one whose plan has them, and some more")
	flag.IntVar(&s.tasks, "tasks", 0, "fewer tasks than this prove nothing")
	flag.Func("must", "kinds of faults, comma separated: without each of them it proves nothing", s.mustHave)
	flag.BoolVar(&s.lazy, "lazy", false, "servers that acknowledge before they flush: shows what is lost then")
	flag.BoolVar(&s.dry, "plan", false, "print the plan, and do nothing")
	flag.Parse()
	if s.rate == 0 {
		s.rate = 80
		if s.time > 10*time.Minute { // what it leaves must fit into memory to be judged
			s.rate = 40
		}
	}
	exit(s.run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	os.Exit(exitCode(err))
}

// How a run ends in which something is violated, or in which too little was looked
// at. 1 is any other error, and 2 is Go's own.
const (
	exitViolated = 3
	exitLittle   = 4
)

var (
	errViolated = errors.New("violations")
	errLittle   = errors.New("this run proves too little")
)

func exitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errViolated):
		return exitViolated
	case errors.Is(err, errLittle):
		return exitLittle
	}
	return 1
}

// say tells how far it is.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stdout, "chaos: %s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}

func (s *settings) run(ctx context.Context) (err error) {
	if s.check != "" {
		f, readErr := readFindings(s.check)
		if readErr != nil {
			return readErr
		}
		from, to := f.span()
		s.time = to.Sub(from)
		return s.report(f)
	}
	if s.dry {
		s.seed = cmp.Or(s.seed, newSeed())
		for _, f := range plan(s.seed, s.time, &world{nets: true, disks: true}, s.only) {
			fmt.Fprintln(os.Stdout, f.String())
		}
		return nil
	}
	keep := s.dir != ""
	if !keep {
		if s.dir, err = os.MkdirTemp("", "parley-chaos-"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	defer func() {
		if err == nil && !keep {
			err = os.RemoveAll(s.dir)
		} else {
			say("journals, streams and logs are in %s; judge them again with -check %s", s.dir, s.dir)
		}
	}()
	if s.parley == "" {
		s.parley = filepath.Join(s.dir, "parley")
		if out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-tags=crashpoints,planted", "-o", s.parley, "./cmd/parley").CombinedOutput(); err != nil {
			return fmt.Errorf("build parley (from the module's root): %w\n%s", err, out)
		}
	}
	w, err := newWorld(ctx, s.dir)
	if w != nil {
		defer w.cleanup()
		for _, why := range w.why {
			say("NOT COVERED: %s", why)
		}
		for _, k := range refused(w) {
			say("NOT COVERED: this machine cannot do: %s", k)
		}
	}
	if err != nil {
		return err
	}
	if err := s.possible(w); err != nil {
		return err
	}
	s.choose(w)
	say("seed %d (repeat with %s)", s.seed, s.again())
	f, err := s.act(ctx, w)
	if err != nil {
		return err
	}
	return s.report(f)
}

func newSeed() uint64 { return uint64(time.Now().UnixNano()) }

// choose takes a seed where none was given: one that is good for enough kinds of
// faults on this machine, and for those that must happen, if there is one.
func (s *settings) choose(w *world) {
	if s.seed != 0 {
		return
	}
	s.seed = newSeed()
	for range 10_000 {
		if s.good(plan(s.seed, s.time, w, s.only)) {
			return
		}
		s.seed++
	}
}

// again are the flags that repeat the run.
func (s *settings) again() string {
	flags := fmt.Sprintf("-seed %d -time %s -rate %g -lose %s", s.seed, s.time, s.rate, s.lose)
	if s.only != "" {
		flags += fmt.Sprintf(" -only %q", s.only)
	}
	if s.plant != "" {
		flags += " -plant " + s.plant
	}
	if s.lazy {
		flags += " -lazy"
	}
	return flags
}

// act lets everything happen, and reads what it left behind.
func (s *settings) act(ctx context.Context, w *world) (f *findings, err error) {
	watched := make(chan error, 1)
	watch, end := context.WithCancel(ctx)
	go func() { watched <- w.machine.watch(watch, w.dir) }()
	defer func() {
		end()
		err = errors.Join(err, <-watched)
	}()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	st, err := s.stage(ctx, w, self)
	if st != nil {
		defer st.close()
	}
	if err != nil {
		return nil, err
	}
	st.load.start()
	say("%d servers, %d processes of workers, %d agents; %.0f tasks a second and other work", len(nodeNames), len(st.f.workers), len(st.f.agents), s.rate)
	list := plan(s.seed, s.time, w, s.only)
	play, stop := context.WithTimeout(ctx, s.time)
	st.n.run(play, list)
	<-play.Done() // what is left of the time is quiet
	stop()
	st.stop()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	strange := st.settle(ctx)
	if f, err = st.collect(ctx); err != nil {
		return nil, err
	}
	f.strange = append(f.strange, strange...)
	return f, nil
}

// stage is all that plays a part.
type stage struct {
	w       *world
	c       *cluster
	f       *fleet
	n       *nemesis
	load    *load
	people  *humans
	planted bool // a bug is, and will be found

	patience time.Duration      // for clients to see the end of what they began
	stop     context.CancelFunc // of the load: begins nothing more
	abort    context.CancelFunc // and gives up
}

func (s *settings) stage(ctx context.Context, w *world, self string) (*stage, error) {
	st := &stage{w: w, planted: s.plant != "", patience: loadTime + s.time/2}
	var scribes [4]*scribe
	for i, name := range []string{"clients", "calls", "faults", "wounds"} {
		var err error
		if scribes[i], err = newScribe(filepath.Join(w.dir, name+".jsonl")); err != nil {
			return nil, err
		}
	}
	hard, abort := context.WithCancel(context.WithoutCancel(ctx))
	st.abort = abort
	c, err := newCluster(w, self, s.lazy)
	if err != nil {
		return st, err
	}
	st.c = c
	if err := c.start(ctx); err != nil {
		return st, err
	}
	if err := c.makeCanary(ctx); err != nil {
		return st, err
	}
	if st.people, err = newHumans(hard, w.here(), scribes[1], s.seed); err != nil {
		return st, err
	}
	if st.f, err = newFleet(w, c, fleetConfig{parley: s.parley, self: self, hook: st.people.url, plant: s.plant, lose: s.lose}); err != nil {
		return st, err
	}
	if err := st.f.start(ctx); err != nil {
		return st, err
	}
	st.n = &nemesis{w: w, c: c, f: st.f, journal: scribes[2], must: s.must, done: map[string]int{}}
	soft, stop := context.WithCancel(hard)
	st.stop = stop
	st.load = &load{f: st.f, nc: c.nc, js: c.js, journal: scribes[0], wounds: scribes[3], rate: s.rate, lasts: s.time, seed: s.seed, anew: time.Second, waits: make(chan struct{}, waitsMost), stop: soft, hard: hard}
	return st, nil
}

// close ends every process.
func (st *stage) close() {
	st.abort()
	if st.load != nil {
		st.load.wg.Wait()
	}
	if st.people != nil {
		st.people.close()
	}
	if st.f != nil {
		for _, p := range st.f.all() {
			p.retire()
		}
	}
	if st.c != nil {
		if st.c.nc != nil {
			st.c.nc.Close()
		}
		for _, p := range st.c.nodes {
			p.retire()
		}
	}
}

// inTurn orders violations so that the first of each invariant come before the
// second of any: what is said of many says something of all.
func inTurn(found []violation) []violation {
	nth, seen := make(map[violation]int, len(found)), map[string]int{}
	for _, v := range found {
		nth[v] = seen[v.invariant]
		seen[v.invariant]++
	}
	slices.SortStableFunc(found, func(a, b violation) int { return nth[a] - nth[b] })
	return found
}

// report says what was found.
func (s *settings) report(f *findings) error {
	found := inTurn(f.check())
	for i, v := range found {
		if i == 30 {
			say("… and %d more", len(found)-i)
			break
		}
		say("VIOLATION %s", v)
		if len(f.records[v.about]) > 0 && i < 5 {
			e := rig.Evidence{Records: f.records, Journals: f.notes}
			fmt.Fprintln(os.Stdout, f.records.Story(v.about)+e.Story(v.about))
		}
	}
	f.summary()
	if len(found) > 0 {
		return fmt.Errorf("%d %w", len(found), errViolated)
	}
	if little := s.little(f); len(little) > 0 {
		if away, of := f.absent(); away > of/4 {
			little = append(little, fmt.Sprintf("others had the machine for %s of %s", away.Round(time.Second), of.Round(time.Second)))
		}
		return fmt.Errorf("%w: %s", errLittle, strings.Join(little, "; "))
	}
	return nil
}
