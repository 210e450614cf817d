package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Every task has as many bytes, and every result.
const (
	taskBytes   = 512
	resultBytes = 128
)

// concurrency is how many tasks a worker does at a time, and producers how many
// goroutines dispatch.
const (
	concurrency = 100
	producers   = 10
)

// spec is test/bench's.
type spec struct {
	Role    string  `json:"role"`    // asynq, river, river-batch, temporal
	Profile string  `json:"profile"` // how the store syncs: always, lazy
	Tasks   int     `json:"tasks"`
	Rate    float64 `json:"rate"`    // per second; not 0: measure latency instead
	Waiting int     `json:"waiting"` // tasks of a queue that nobody serves, dispatched before
	Base    string  `json:"base"`    // where temporary data goes
	Store   string  `json:"store"`   // the program of the store, where it is not a package of the system's
}

// result is test/bench's.
type result struct {
	Tasks   int     `json:"tasks"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"` // seconds of user and system time, the store's with it
	P50     float64 `json:"p50"` // ms, of latency
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
	Prefill float64 `json:"prefill"` // waiting tasks dispatched per second
	Checked int     `json:"checked"` // results read again
}

// peer is a queue with its store.
type peer interface {
	// start starts the store and the worker, which calls done for every task
	// that it does, with the task's content.
	start(ctx context.Context, dir string, begun func([]byte), done func()) error
	// prefill dispatches n tasks that nobody does.
	prefill(ctx context.Context, n int) error
	// dispatch dispatches the tasks, each acknowledged when it returns.
	dispatch(ctx context.Context, n int, task func() []byte) error
	// check reads results again, and returns how many.
	check(ctx context.Context) (int, error)
	stop()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := child(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func child(ctx context.Context, args []string) error {
	if len(args) != 2 || args[0] != "-child" {
		return errors.New("this is a child of test/bench: run `make bench-peers`")
	}
	var s spec
	if err := json.Unmarshal([]byte(args[1]), &s); err != nil {
		return fmt.Errorf("decode spec: %w", err)
	}
	r, err := measure(ctx, s)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func newPeer(s spec) (peer, error) {
	switch s.Role {
	case "asynq":
		return &asynqPeer{lazy: s.Profile == "lazy"}, nil
	case "river":
		return &riverPeer{lazy: s.Profile == "lazy"}, nil
	case "river-batch":
		return &riverPeer{lazy: s.Profile == "lazy", batch: 500}, nil
	case "temporal":
		return &temporalPeer{program: s.Store, lazy: s.Profile == "lazy"}, nil
	}
	return nil, fmt.Errorf("unknown role %q", s.Role)
}

func measure(ctx context.Context, s spec) (result, error) {
	p, err := newPeer(s)
	if err != nil {
		return result{}, err
	}
	dir, err := os.MkdirTemp(s.Base, "parley-peers-")
	if err != nil {
		return result{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	m := &meter{begin: time.Now(), ended: make(chan struct{}, 1), want: int64(s.Tasks)}
	defer p.stop()
	if err := p.start(ctx, dir, m.started, m.done); err != nil {
		return result{}, fmt.Errorf("start: %w", err)
	}
	r := result{Tasks: s.Tasks}
	if s.Waiting > 0 {
		began := time.Now()
		if err := p.prefill(ctx, s.Waiting); err != nil {
			return result{}, fmt.Errorf("prefill: %w", err)
		}
		r.Prefill = float64(s.Waiting) / time.Since(began).Seconds()
	}
	cpu := usage()
	began := time.Now()
	if s.Rate > 0 {
		err = m.paced(ctx, p, s)
	} else {
		err = p.dispatch(ctx, s.Tasks, m.task)
	}
	if err != nil {
		return result{}, fmt.Errorf("dispatch: %w", err)
	}
	if err := m.await(ctx); err != nil {
		return result{}, err
	}
	r.Seconds = time.Since(began).Seconds()
	if r.Checked, err = p.check(ctx); err != nil {
		return result{}, fmt.Errorf("read results again: %w", err)
	}
	own := usage() - cpu
	p.stop() // only then the store's time is known
	r.CPU = (own + children()).Seconds()
	m.quantiles(&r)
	return r, nil
}

// meter counts what ends and how late it began.
type meter struct {
	begin time.Time
	want  int64
	did   atomic.Int64
	ended chan struct{}

	mu   sync.Mutex
	late []time.Duration
}

// task is the content of a task: when it was dispatched, and filler.
func (m *meter) task() []byte {
	b := make([]byte, taskBytes)
	copy(b, fmt.Sprintf("t0=%019d ", time.Since(m.begin)))
	for i := 23; i < len(b); i++ {
		b[i] = 'x'
	}
	return b
}

func (m *meter) started(task []byte) {
	var t0 int64
	if _, err := fmt.Sscanf(string(task[:22]), "t0=%d", &t0); err != nil {
		return
	}
	late := time.Since(m.begin) - time.Duration(t0)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late = append(m.late, late)
}

func (m *meter) done() {
	if m.did.Add(1) == m.want {
		close(m.ended)
	}
}

// stuckAfter is how long nothing may end.
const stuckAfter = time.Minute

func (m *meter) await(ctx context.Context) error {
	tick := time.NewTicker(stuckAfter)
	defer tick.Stop()
	last := int64(-1)
	for {
		select {
		case <-m.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if did := m.did.Load(); did == last {
				return fmt.Errorf("stuck: %d of %d tasks have ended", did, m.want)
			}
			last = m.did.Load()
		}
	}
}

// paced dispatches s.Rate tasks in a second, however slow it is to dispatch.
func (m *meter) paced(ctx context.Context, p peer, s spec) error {
	errs := make([]error, s.Tasks)
	var wg sync.WaitGroup
	defer wg.Wait()
	began := time.Now()
	for i := range errs {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(began.Add(time.Duration(float64(i) / s.Rate * float64(time.Second))))):
		}
		wg.Go(func() { errs[i] = p.dispatch(ctx, 1, m.task) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (m *meter) quantiles(r *result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.late) == 0 {
		return
	}
	slices.Sort(m.late)
	at := func(q float64) float64 { return m.late[int(q*float64(len(m.late)-1))].Seconds() * 1e3 }
	r.P50, r.P99, r.Max = at(.5), at(.99), at(1)
}

// inParallel calls f n times, from producers goroutines.
func inParallel(n int, f func() error) error {
	var next atomic.Int64
	errs := make([]error, producers)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil && next.Add(1) <= int64(n) {
				errs[i] = f()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// usage is the user and system time of this process so far; children that of
// the processes that it started and that have ended.
func usage() time.Duration    { return rusage(syscall.RUSAGE_SELF) }
func children() time.Duration { return rusage(syscall.RUSAGE_CHILDREN) }

func rusage(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
