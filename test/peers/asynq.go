package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

// asynqPeer is asynq on Redis. Its worker looks for tasks each 10 ms in place
// of each second, its default.
type asynqPeer struct {
	lazy bool

	store  *store
	client *asynq.Client
	server *asynq.Server
	redis  asynq.RedisClientOpt

	mu  sync.Mutex
	ids []string // of some tasks
}

func (p *asynqPeer) start(ctx context.Context, dir string, begun func([]byte), done func()) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	if p.store, err = redis(dir, port, p.lazy); err != nil {
		return err
	}
	p.redis = asynq.RedisClientOpt{Addr: fmt.Sprintf("127.0.0.1:%d", port)}
	p.client = asynq.NewClient(p.redis)
	if err := answers(ctx, func(context.Context) error { return p.client.Ping() }); err != nil {
		return err
	}
	p.server = asynq.NewServer(p.redis, asynq.Config{Concurrency: concurrency, TaskCheckInterval: 10 * time.Millisecond, LogLevel: asynq.ErrorLevel})
	output := bytes.Repeat([]byte("r"), resultBytes)
	return p.server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		begun(t.Payload())
		if _, err := t.ResultWriter().Write(output); err != nil {
			return err
		}
		done()
		return nil
	}))
}

func (p *asynqPeer) prefill(_ context.Context, n int) error {
	body := bytes.Repeat([]byte("x"), taskBytes)
	return inParallel(n, func() error {
		_, err := p.client.Enqueue(asynq.NewTask("wait", body), asynq.Queue("waiting"))
		return err
	})
}

func (p *asynqPeer) dispatch(_ context.Context, n int, task func() []byte) error {
	return inParallel(n, func() error {
		info, err := p.client.Enqueue(asynq.NewTask("echo", task()), asynq.Retention(time.Hour))
		if err != nil {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.ids) < 50 {
			p.ids = append(p.ids, info.ID)
		}
		return nil
	})
}

func (p *asynqPeer) check(ctx context.Context) (int, error) {
	i := asynq.NewInspector(p.redis)
	defer func() { _ = i.Close() }()
	for _, id := range p.ids {
		err := answers(ctx, func(context.Context) error { // completed a moment after its result was written
			t, err := i.GetTaskInfo("default", id)
			if err == nil && (len(t.Result) != resultBytes || t.State != asynq.TaskStateCompleted) {
				err = errors.New("it has no result")
			}
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("task %s: %w", id, err)
		}
	}
	return len(p.ids), nil
}

func (p *asynqPeer) stop() {
	if p.server != nil {
		p.server.Shutdown()
		p.server = nil
	}
	if p.client != nil {
		_ = p.client.Close()
		p.client = nil
	}
	p.store.stop(os.Kill)
}
