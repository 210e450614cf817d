package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// leanStream holds every record of the floor.
const leanStream = "T"

// lean is the floor: what the job costs on raw nats.go. Producer, router,
// settler and agent have a connection each.
type lean struct {
	*meter
	producer, router, settler, agent *nats.Conn

	produce, route, settle jetstream.JetStream

	consume jetstream.ConsumeContext
	group   *group        // nil where each record is written by itself
	slots   chan struct{} // of the agent
	next    atomic.Int64
	working sync.Map // task id → chan uint64 of capacity 1: the sequence of its working record
	wg      sync.WaitGroup
}

func (l *lean) prepare(ctx context.Context, srv *servers, s spec) error {
	l.slots = make(chan struct{}, s.InFlight)
	for _, c := range []struct {
		nc *(*nats.Conn)
		js *jetstream.JetStream
	}{{&l.producer, &l.produce}, {&l.router, &l.route}, {&l.settler, &l.settle}, {&l.agent, nil}} {
		nc, err := nats.Connect(srv.url())
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		*c.nc = nc
		if c.js == nil {
			continue
		}
		if *c.js, err = jetstream.New(nc); err != nil {
			return fmt.Errorf("open JetStream: %w", err)
		}
	}
	stream, err := l.route.CreateStream(ctx, jetstream.StreamConfig{
		Name: leanStream, Subjects: []string{"t.>"}, Storage: jetstream.FileStorage, Replicas: srv.replicas(), AllowAtomicPublish: true,
	})
	if err != nil {
		return fmt.Errorf("create stream: %w", err)
	}
	if err := srv.lead(ctx, l.router, leanStream); err != nil {
		return err
	}
	if _, err := l.agent.Subscribe("offer.*", l.onOffer); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	if _, err := l.settler.Subscribe("result.*", func(m *nats.Msg) { l.wg.Go(func() { l.onResult(m) }) }); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	if err := errors.Join(l.agent.Flush(), l.settler.Flush()); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	if s.Commit == "grouped" {
		return l.inGroups()
	}
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "router", FilterSubject: "t.*.new", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: s.InFlight,
	})
	if err != nil {
		return fmt.Errorf("create consumer: %w", err)
	}
	l.consume, err = consumer.Consume(func(m jetstream.Msg) { l.wg.Go(func() { l.onNew(m) }) },
		jetstream.PullMaxMessages(s.InFlight))
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	return nil
}

// newTask is the first record of the next task.
func (l *lean) newTask() *nats.Msg {
	return expecting("t."+strconv.FormatInt(l.next.Add(1), 10)+".new", l.task(), 0)
}

func expecting(subject string, data []byte, seq uint64) *nats.Msg {
	return &nats.Msg{Subject: subject, Data: data, Header: nats.Header{
		jetstream.ExpectedLastSubjSeqHeader: []string{strconv.FormatUint(seq, 10)},
	}}
}

func (l *lean) dispatch(ctx context.Context, n, inFlight int) error {
	if l.group != nil {
		return inParallel(n, inFlight, l.submit)
	}
	window := make(chan jetstream.PubAckFuture, inFlight)
	failed := make(chan error, 1)
	go func() {
		var err error
		for f := range window {
			err = cmpErr(err, acknowledged(ctx, f))
		}
		failed <- err
	}()
	var err error
	for range n {
		f, perr := l.produce.PublishMsgAsync(l.newTask())
		if perr != nil {
			err = perr
			break
		}
		window <- f
	}
	close(window)
	return cmpErr(err, <-failed)
}

func acknowledged(ctx context.Context, f jetstream.PubAckFuture) error {
	select {
	case <-f.Ok():
		return nil
	case err := <-f.Err():
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *lean) one(ctx context.Context) error {
	if l.group != nil {
		return l.submit()
	}
	_, err := l.produce.PublishMsg(ctx, l.newTask())
	return err
}

// seqOf is where the sequence of a task's working record is left.
func (l *lean) seqOf(id string) chan uint64 {
	c, ok := l.working.Load(id)
	if !ok {
		c, _ = l.working.LoadOrStore(id, make(chan uint64, 1))
	}
	return c.(chan uint64) //nolint:forcetypeassert // nothing else is in there
}

// onNew is the router's part until the agent has the task.
func (l *lean) onNew(m jetstream.Msg) {
	l.offer(strings.TrimSuffix(strings.TrimPrefix(m.Subject(), "t."), ".new"), m.Data())
	if err := m.Ack(); err != nil {
		l.broken(fmt.Errorf("ack: %w", err))
	}
}

func (l *lean) offer(id string, data []byte) {
	if _, err := l.router.Request("offer."+id, data, 10*time.Second); err != nil {
		l.broken(fmt.Errorf("offer: %w", err))
		return
	}
	seq, err := l.write(l.route, expecting("t."+id+".st", []byte(`{"state":"working"}`), 0))
	if err != nil {
		l.broken(fmt.Errorf("record working: %w", err))
		return
	}
	l.seqOf(id) <- seq
}

func (l *lean) write(js jetstream.JetStream, m *nats.Msg) (uint64, error) {
	if l.group != nil {
		return l.group.write(m)
	}
	f, err := js.PublishMsgAsync(m)
	if err != nil {
		return 0, err
	}
	select {
	case a := <-f.Ok():
		return a.Sequence, nil
	case err := <-f.Err():
		return 0, err
	}
}

// onOffer is the agent: it accepts when it has a slot, works, and hands in.
func (l *lean) onOffer(m *nats.Msg) {
	l.offered(m.Data)
	l.slots <- struct{}{}
	if err := m.Respond([]byte("+")); err != nil {
		l.broken(fmt.Errorf("accept: %w", err))
		return
	}
	id := strings.TrimPrefix(m.Subject, "offer.")
	l.wg.Go(func() {
		defer func() { <-l.slots }()
		if _, err := l.agent.Request("result."+id, m.Data[:resultBytes], 10*time.Second); err != nil {
			l.broken(fmt.Errorf("hand in: %w", err))
		}
		l.end()
	})
}

// onResult is the router's part from the result on.
func (l *lean) onResult(m *nats.Msg) {
	id := strings.TrimPrefix(m.Subject, "result.")
	seq := <-l.seqOf(id)
	l.working.Delete(id)
	if _, err := l.write(l.settle, expecting("t."+id+".st", m.Data, seq)); err != nil {
		l.broken(fmt.Errorf("record done: %w", err))
		return
	}
	if err := m.Respond([]byte("+")); err != nil {
		l.broken(fmt.Errorf("answer: %w", err))
	}
}

func (l *lean) verify(ctx context.Context) (int, error) {
	stream, err := l.route.Stream(ctx, leanStream)
	if err != nil {
		return 0, err
	}
	m, err := stream.GetLastMsgForSubject(ctx, "t."+strconv.FormatInt(l.next.Load(), 10)+".st")
	if err != nil {
		return 0, err
	}
	if len(m.Data) != resultBytes {
		return 0, fmt.Errorf("the last record has %d bytes, want the result's %d", len(m.Data), resultBytes)
	}
	return 1, nil
}

func (l *lean) close() {
	if l.consume != nil {
		l.consume.Stop()
	}
	if l.group != nil {
		l.wg.Wait()
		l.group.close()
	}
	for _, nc := range []*nats.Conn{l.producer, l.router, l.settler, l.agent} {
		if nc != nil {
			nc.Close()
		}
	}
}
