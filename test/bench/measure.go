package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	taskBytes   = 512
	resultBytes = 128
	warmUp      = 1000 // tasks before the clock runs
	gcPercent   = 400  // on both sides: parley's own setting, see cmd/parley
	stuckAfter  = 20 * time.Second
)

// pipeline is a system under test.
type pipeline interface {
	// prepare connects everything; tasks that are dispatched then are done.
	prepare(ctx context.Context, srv *servers, s spec) error
	// dispatch sends n tasks with at most inFlight not yet acknowledged, and
	// returns when all are.
	dispatch(ctx context.Context, n, inFlight int) error
	// one sends one task and returns when it is acknowledged.
	one(ctx context.Context) error
	// verify looks at outcomes once more, and says at how many.
	verify(ctx context.Context) (int, error)
	close()
}

// meter counts what ends and how late offers come.
type meter struct {
	begin time.Time
	ended atomic.Int64
	woken chan struct{} // capacity 1

	mu    sync.Mutex
	late  []time.Duration // guarded by mu; nil unless latency is measured
	whole []time.Duration // guarded by mu; of tasks that take a while
	fail  error           // guarded by mu
}

func newMeter() *meter { return &meter{begin: time.Now(), woken: make(chan struct{}, 1)} }

// task is the content of a task, which says when it was made.
func (m *meter) task() []byte { return m.taskOf("t0=") }

func (m *meter) taskOf(kind string) []byte {
	b := make([]byte, 0, taskBytes)
	b = fmt.Appendf(b, "%s%019d ", kind, int64(time.Since(m.begin)))
	return append(b, filler[:taskBytes-len(b)]...)
}

// since is how long ago the task of that kind was made of which data has the
// content.
func (m *meter) since(kind string, data []byte) (d time.Duration, ok bool) {
	now := time.Since(m.begin)
	i := bytes.Index(data, []byte(kind))
	if i < 0 || len(data) < i+22 {
		return 0, false
	}
	t0, err := strconv.ParseInt(string(data[i+3:i+22]), 10, 64)
	return now - time.Duration(t0), err == nil
}

var filler = bytes.Repeat([]byte("x"), taskBytes)

// offered notes the arrival of an offer that holds a task's content.
func (m *meter) offered(data []byte) {
	d, ok := m.since("t0=", data)
	m.mu.Lock()
	defer m.mu.Unlock()
	if ok && m.late != nil {
		m.late = append(m.late, d)
	}
}

// worked notes the outcome of a task that took a while.
func (m *meter) worked(data []byte) {
	d, ok := m.since(worksKind, data)
	m.mu.Lock()
	defer m.mu.Unlock()
	if ok && m.late != nil {
		m.whole = append(m.whole, d)
	}
}

// end notes the end of a task.
func (m *meter) end() {
	m.ended.Add(1)
	select {
	case m.woken <- struct{}{}:
	default:
	}
}

// broken notes that something went wrong; the run fails.
func (m *meter) broken(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = cmpErr(m.fail, err)
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (m *meter) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fail
}

// await waits until n tasks have ended; it gives up when nothing moves.
func (m *meter) await(ctx context.Context, n int) error {
	last, stuck := int64(-1), time.NewTicker(stuckAfter)
	defer stuck.Stop()
	for m.ended.Load() < int64(n) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.woken:
		case <-stuck.C:
			if now := m.ended.Load(); now == last {
				return cmpErr(m.failure(), fmt.Errorf("stuck: %d of %d tasks have ended", now, n))
			}
			last = m.ended.Load()
		}
	}
	return m.failure()
}

// measure starts the servers and the system of s, and measures one thing.
func measure(ctx context.Context, s spec) (result, error) {
	debug.SetGCPercent(gcPercent)
	dir, remove, err := tempDir(s.Base)
	if err != nil {
		return result{}, err
	}
	defer remove()
	srv, err := startServers(s.Profile, dir)
	if err != nil {
		return result{}, err
	}
	defer srv.stop()
	m := newMeter()
	var p pipeline = &lean{meter: m}
	if s.Role == roleFleet {
		p = &parley{meter: m}
	}
	defer p.close()
	if err := p.prepare(ctx, srv, s); err != nil {
		return result{}, err
	}
	if s.Allocs != "" {
		runtime.MemProfileRate = 16 << 10
	}
	var r result
	if f, ok := p.(*parley); ok && s.Waiting > 0 {
		if r.Prefill, err = f.park(ctx, s.Waiting, s.Classes); err != nil {
			return result{}, err
		}
	}
	if err := dispatchAndAwait(ctx, p, m, min(warmUp, s.Tasks/4), s.InFlight); err != nil {
		return result{}, fmt.Errorf("warm up: %w", err)
	}
	job := func() error { return dispatchAndAwait(ctx, p, m, s.Tasks, s.InFlight) }
	if f, ok := p.(*parley); ok && s.Run != "" {
		if err := f.doRun(ctx, s.Run, min(s.Tasks, 20), s.InFlight); err != nil {
			return result{}, fmt.Errorf("warm up: %w", err)
		}
		job = func() error { return f.doRun(ctx, s.Run, s.Tasks, s.InFlight) }
	}
	if s.Rate > 0 {
		job = func() error {
			if f, ok := p.(*parley); ok && s.Storm == stormBreaks {
				f.tempest.strike()
			}
			return paced(ctx, s, m, p)
		}
	}
	if err := clocked(ctx, srv, s, &r, job); err != nil {
		return result{}, err
	}
	m.quantiles(&r)
	r.RSS = status(os.Getpid(), "VmRSS")
	if r.Checked, err = p.verify(ctx); err != nil {
		return result{}, err
	}
	return r, m.failure()
}

func dispatchAndAwait(ctx context.Context, p pipeline, m *meter, n, inFlight int) error {
	m.ended.Store(0)
	if err := p.dispatch(ctx, n, inFlight); err != nil {
		return err
	}
	return m.await(ctx, n)
}

// clocked measures job.
func clocked(ctx context.Context, srv *servers, s spec, r *result, job func() error) error {
	nc, err := nats.Connect(srv.url())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer nc.Close()
	before, err := stored(ctx, nc)
	if err != nil {
		return err
	}
	runtime.GC()
	stop, err := profile(s)
	if err != nil {
		return err
	}
	msgs, bytes := srv.traffic()
	mark(s, "begin")
	cpu, start := usage(), time.Now()
	err = job()
	r.Tasks, r.Seconds, r.CPU = s.Tasks, time.Since(start).Seconds(), (usage() - cpu).Seconds()
	mark(s, "end")
	msgsEnd, bytesEnd := srv.traffic()
	n := float64(s.Tasks)
	r.MsgsIn, r.BytesIn = (msgsEnd-msgs)/n, (bytesEnd-bytes)/n
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	after, err := stored(ctx, nc)
	r.Writes = float64(after-before) / n
	return err
}

// mark leaves a note for strace: an attempt to open a file that does not exist.
func mark(s spec, what string) {
	if s.Markers {
		if f, err := os.Open("/parley-bench-" + what); err == nil {
			_ = f.Close()
		}
	}
}

// paced dispatches s.Tasks tasks at s.Rate, each on a goroutine of its own so
// that a slow one does not hold up the next, and notes when their offers come.
func paced(ctx context.Context, s spec, m *meter, p pipeline) error {
	m.mu.Lock()
	m.late = make([]time.Duration, 0, s.Tasks)
	m.mu.Unlock()
	m.ended.Store(0)
	tick := time.NewTicker(time.Duration(float64(time.Second) / s.Rate))
	defer tick.Stop()
	var wg sync.WaitGroup
	for range s.Tasks {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		wg.Go(func() {
			if err := p.one(ctx); err != nil {
				m.broken(err)
			}
		})
	}
	wg.Wait()
	if err := m.await(ctx, s.Tasks); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if seen := len(m.late) + len(m.whole); seen < s.Tasks {
		return fmt.Errorf("%d offers and outcomes were seen for %d tasks", seen, s.Tasks)
	}
	return nil
}

// quantiles puts what paced has seen into r.
func (m *meter) quantiles(r *result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.late) == 0 {
		return
	}
	at := func(all []time.Duration, q float64) float64 { return all[int(q*float64(len(all)-1))].Seconds() * 1e3 }
	slices.Sort(m.late)
	r.P50, r.P99, r.Max = at(m.late, .5), at(m.late, .99), at(m.late, 1)
	if len(m.whole) > 0 {
		slices.Sort(m.whole)
		r.Whole50, r.Whole99 = at(m.whole, .5), at(m.whole, .99)
	}
}

// profile starts the profiles that s asks for; the function writes them.
func profile(s spec) (stop func() error, err error) {
	var cpu *os.File
	if s.CPU != "" {
		if cpu, err = os.Create(s.CPU); err != nil {
			return nil, fmt.Errorf("profile: %w", err)
		}
		if err := pprof.StartCPUProfile(cpu); err != nil {
			return nil, fmt.Errorf("profile: %w", err)
		}
	}
	if s.Mutex != "" {
		runtime.SetMutexProfileFraction(10)
	}
	return func() error {
		var errs []error
		if cpu != nil {
			pprof.StopCPUProfile()
			errs = append(errs, cpu.Close())
		}
		errs = append(errs, dump("allocs", s.Allocs), dump("mutex", s.Mutex))
		return errors.Join(errs...)
	}, nil
}

func dump(kind, file string) error {
	if file == "" {
		return nil
	}
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return errors.Join(pprof.Lookup(kind).WriteTo(f, 0), f.Close())
}
