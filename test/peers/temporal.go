package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// temporalPeer is Temporal's dev server on SQLite, as its command line starts
// it. A task is a workflow of one activity, whose result is the workflow's.
type temporalPeer struct {
	program string // the command line
	lazy    bool

	store  *store
	client client.Client
	worker worker.Worker

	mu   sync.Mutex
	runs []client.WorkflowRun // some of those that were dispatched
	ends sync.WaitGroup       // goroutines that wait for a workflow's end
	done func()
}

const temporalQueue = "echo"

func (p *temporalPeer) start(ctx context.Context, dir string, begun func([]byte), done func()) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	sync := "full"
	if p.lazy {
		sync = "normal"
	}
	p.store, err = run(nil, dir, p.program, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", strconv.Itoa(port),
		"--db-filename", filepath.Join(dir, "temporal.db"), "--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous="+sync,
		"--log-level", "error")
	if err != nil {
		return err
	}
	quiet := log.NewStructuredLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	if err := answers(ctx, func(ctx context.Context) error {
		p.client, err = client.DialContext(ctx, client.Options{HostPort: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Logger: quiet})
		return err
	}); err != nil {
		return err
	}
	p.done = done
	output := bytes.Repeat([]byte("r"), resultBytes)
	p.worker = worker.New(p.client, temporalQueue, worker.Options{
		MaxConcurrentActivityExecutionSize: concurrency, MaxConcurrentWorkflowTaskExecutionSize: concurrency,
		MaxConcurrentActivityTaskPollers: 10, MaxConcurrentWorkflowTaskPollers: 10,
	})
	p.worker.RegisterActivityWithOptions(func(_ context.Context, body []byte) ([]byte, error) {
		begun(body)
		return output, nil
	}, activity.RegisterOptions{Name: "echo"})
	p.worker.RegisterWorkflowWithOptions(func(ctx workflow.Context, body []byte) (result []byte, err error) {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		err = workflow.ExecuteActivity(ctx, "echo", body).Get(ctx, &result)
		return result, err
	}, workflow.RegisterOptions{Name: "echo"})
	return p.worker.Start()
}

// prefill starts workflows of a queue that nobody serves.
func (p *temporalPeer) prefill(ctx context.Context, n int) error {
	body := bytes.Repeat([]byte("x"), taskBytes)
	return inParallel(n, func() error {
		_, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: "waiting"}, "echo", body)
		return err
	})
}

func (p *temporalPeer) dispatch(ctx context.Context, n int, task func() []byte) error {
	return inParallel(n, func() error {
		r, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: temporalQueue}, "echo", task())
		if err != nil {
			return err
		}
		p.mu.Lock()
		if len(p.runs) < 50 {
			p.runs = append(p.runs, r)
		}
		p.mu.Unlock()
		p.ends.Go(func() {
			if r.Get(ctx, nil) == nil {
				p.done()
			}
		})
		return nil
	})
}

func (p *temporalPeer) check(ctx context.Context) (int, error) {
	p.ends.Wait()
	for _, r := range p.runs {
		var output []byte
		if err := p.client.GetWorkflow(ctx, r.GetID(), r.GetRunID()).Get(ctx, &output); err != nil {
			return 0, err
		}
		if len(output) != resultBytes {
			return 0, fmt.Errorf("the result of workflow %s has %d bytes", r.GetID(), len(output))
		}
	}
	return len(p.runs), nil
}

func (p *temporalPeer) stop() {
	if p.worker != nil {
		p.worker.Stop()
		p.worker = nil
	}
	if p.client != nil {
		p.client.Close()
		p.client = nil
	}
	p.store.stop(os.Kill)
}
