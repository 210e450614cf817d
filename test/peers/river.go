package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
)

// riverPeer is River on PostgreSQL. It fetches each 5 ms in place of each 100
// ms, its default.
type riverPeer struct {
	lazy  bool
	batch int // jobs inserted at a time; 0: one by one

	store  *store
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]

	mu  sync.Mutex
	ids []int64 // of some jobs
}

type echo struct {
	Body string `json:"body"`
}

func (echo) Kind() string { return "echo" }

type echoer struct {
	river.WorkerDefaults[echo]
	work func(ctx context.Context, body string) error
}

func (e *echoer) Work(ctx context.Context, j *river.Job[echo]) error { return e.work(ctx, j.Args.Body) }

func (p *riverPeer) start(ctx context.Context, dir string, begun func([]byte), done func()) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	if p.store, err = postgres(ctx, dir, port, p.lazy); err != nil {
		return err
	}
	c, err := pgxpool.ParseConfig(fmt.Sprintf("postgres://bench@127.0.0.1:%d/postgres", port))
	if err != nil {
		return err
	}
	c.MaxConns = 40
	if p.pool, err = pgxpool.NewWithConfig(ctx, c); err != nil {
		return err
	}
	if err := answers(ctx, p.pool.Ping); err != nil {
		return err
	}
	driver := riverpgxv5.New(p.pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	workers := river.NewWorkers()
	output := string(bytes.Repeat([]byte("r"), resultBytes-2)) // and two quotes
	river.AddWorker(workers, &echoer{work: func(ctx context.Context, body string) error {
		begun([]byte(body))
		return river.RecordOutput(ctx, output)
	}})
	p.client, err = river.NewClient(driver, &river.Config{
		Workers: workers, FetchCooldown: 5 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: concurrency}},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	// Completed in batches behind the worker: only what is recorded counts.
	events, _ := p.client.SubscribeConfig(&river.SubscribeConfig{Kinds: []river.EventKind{river.EventKindJobCompleted}, ChanSize: 100_000})
	go func() {
		for range events {
			done()
		}
	}()
	return p.client.Start(ctx)
}

func (p *riverPeer) prefill(ctx context.Context, n int) error {
	body := echo{string(bytes.Repeat([]byte("x"), taskBytes-11))}
	for n > 0 {
		many := make([]river.InsertManyParams, min(n, 5000))
		for i := range many {
			many[i] = river.InsertManyParams{Args: body, InsertOpts: &river.InsertOpts{Queue: "waiting"}}
		}
		if _, err := p.client.InsertManyFast(ctx, many); err != nil {
			return err
		}
		n -= len(many)
	}
	_, err := p.pool.Exec(ctx, "VACUUM ANALYZE river_job")
	return err
}

func (p *riverPeer) dispatch(ctx context.Context, n int, task func() []byte) error {
	if p.batch == 0 || n == 1 {
		return inParallel(n, func() error {
			r, err := p.client.Insert(ctx, echo{string(task())}, nil)
			if err == nil {
				p.note(r.Job.ID)
			}
			return err
		})
	}
	for n > 0 {
		many := make([]river.InsertManyParams, min(n, p.batch))
		for i := range many {
			many[i] = river.InsertManyParams{Args: echo{string(task())}}
		}
		rs, err := p.client.InsertMany(ctx, many)
		if err != nil {
			return err
		}
		p.note(rs[0].Job.ID)
		n -= len(many)
	}
	return nil
}

func (p *riverPeer) note(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ids) < 50 {
		p.ids = append(p.ids, id)
	}
}

func (p *riverPeer) check(ctx context.Context) (int, error) {
	for _, id := range p.ids {
		j, err := p.client.JobGet(ctx, id)
		if err != nil {
			return 0, err
		}
		var output string
		if err := json.Unmarshal(j.Output(), &output); err != nil || len(output) != resultBytes-2 || j.State != rivertype.JobStateCompleted {
			return 0, fmt.Errorf("job %d is %s, its output has %d bytes (%v)", id, j.State, len(output), err)
		}
	}
	return len(p.ids), nil
}

func (p *riverPeer) stop() {
	if p.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_ = p.client.StopAndCancel(ctx)
		cancel()
		p.client = nil
	}
	if p.pool != nil {
		p.pool.Close()
		p.pool = nil
	}
	p.store.stop(syscall.SIGQUIT) // at once: a signal to kill would leave its processes
}
