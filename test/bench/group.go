package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// group writes for the floor in groups, as hand-written code would: whatever
// piled up during the last commit is the next atomic batch (ADR-50).
type group struct {
	nc    *nats.Conn
	ids   atomic.Int64
	queue chan *grouped
	wg    sync.WaitGroup
}

// grouped is a message on its way.
type grouped struct {
	m    *nats.Msg
	done chan error // capacity 1
	seq  uint64
}

// mostGrouped is less than the server takes in a batch.
const mostGrouped = 900

func newGroup(nc *nats.Conn) *group {
	g := &group{nc: nc, queue: make(chan *grouped, mostGrouped)}
	g.wg.Go(g.run)
	return g
}

func (g *group) close() {
	close(g.queue)
	g.wg.Wait()
}

func (g *group) write(m *nats.Msg) (uint64, error) {
	w := &grouped{m: m, done: make(chan error, 1)}
	g.queue <- w
	err := <-w.done
	return w.seq, err
}

func (g *group) run() {
	for w := range g.queue {
		batch := []*grouped{w}
		for len(batch) < mostGrouped && len(g.queue) > 0 {
			batch = append(batch, <-g.queue)
		}
		err := g.commit(batch)
		for _, w := range batch {
			w.done <- err
		}
	}
}

// commit stores the batch, and notes where each message is.
func (g *group) commit(batch []*grouped) error {
	id := strconv.FormatInt(g.ids.Add(1), 36)
	var reply *nats.Msg
	for i, w := range batch {
		if len(batch) > 1 {
			w.m.Header["Nats-Batch-Id"] = []string{id}
			w.m.Header["Nats-Batch-Sequence"] = []string{strconv.Itoa(i + 1)}
		}
		var err error
		if i < len(batch)-1 {
			err = g.nc.PublishMsg(w.m)
		} else {
			if len(batch) > 1 {
				w.m.Header["Nats-Batch-Commit"] = []string{"1"}
			}
			reply, err = g.nc.RequestMsg(w.m, 10*time.Second)
		}
		if err != nil {
			return err
		}
	}
	var ack struct {
		Seq   uint64 `json:"seq"`
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil || ack.Error != nil {
		return fmt.Errorf("commit: %s: %w", reply.Data, err)
	}
	for i, w := range batch {
		w.seq = ack.Seq - uint64(len(batch)-1-i)
	}
	return nil
}

// submit asks the router to store a task, where it writes in groups.
func (l *lean) submit() error {
	m := l.newTask()
	_, err := l.producer.Request(m.Subject[len("t."):], m.Data, patience)
	return err
}

// onSubmit is the router's part where it writes in groups: no consumer brings
// it what it has itself stored.
func (l *lean) onSubmit(m *nats.Msg) {
	if _, err := l.group.write(expecting("t."+m.Subject, m.Data, 0)); err != nil {
		l.broken(fmt.Errorf("record new: %w", err))
		return
	}
	if err := m.Respond([]byte("+")); err != nil {
		l.broken(fmt.Errorf("answer: %w", err))
		return
	}
	l.offer(strings.TrimSuffix(m.Subject, ".new"), m.Data)
}

// inGroups has the router write in groups, and take tasks as requests.
func (l *lean) inGroups() error {
	l.group = newGroup(l.router)
	_, err := l.router.Subscribe("*.new", func(m *nats.Msg) { l.wg.Go(func() { l.onSubmit(m) }) })
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return l.router.Flush()
}
