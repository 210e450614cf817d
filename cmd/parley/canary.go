package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/subjects"
)

const (
	canaryEvery = 5 * time.Second  // between two writes
	canaryTry   = 5 * time.Second  // for one of them
	canaryRound = 12               // looks in which each stream has had its turn
	canaryLimit = 15 * time.Second // after the first that failed: the store does not work. An election takes up to ten
)

// canary tries the store every few seconds by a write and a read, and in turn
// the streams that this process's workers write: each about once a minute, and
// each time while it fails.
type canary struct {
	// Fixed from the beginning, streams from Run.
	try     func(context.Context) error
	commits func(ctx context.Context, stream string) error
	log     *slog.Logger
	streams []string

	next int // owned by sing: whose turn it is

	mu  sync.Mutex
	ill map[string]illness // guarded by mu: by stream; "" is the write and read
}

// illness is of what does not work.
type illness struct {
	since time.Time // it was tried, and did not
	err   error     // the last one
}

// newCanary trusts the store at first: it was just provisioned.
func newCanary(try func(context.Context) error, commits func(context.Context, string) error, log *slog.Logger) *canary {
	return &canary{try: try, commits: commits, log: log, ill: make(map[string]illness)}
}

// watch adds streams, before Run.
func (c *canary) watch(streams ...string) {
	for _, s := range streams {
		if !slices.Contains(c.streams, s) {
			c.streams = append(c.streams, s)
		}
	}
}

// Run sings until ctx ends.
func (c *canary) Run(ctx context.Context) error {
	tick := time.NewTicker(canaryEvery)
	defer tick.Stop()
	for {
		c.sing(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// sing is one write and read, and what is due beside it.
func (c *canary) sing(ctx context.Context) {
	began := time.Now()
	try, cancel := context.WithTimeout(ctx, canaryTry)
	defer cancel()
	due := c.due()
	errs := make([]error, len(due))
	var all sync.WaitGroup
	for i, stream := range due {
		all.Go(func() { errs[i] = c.commits(try, stream) })
	}
	err := c.try(try)
	all.Wait()
	if ctx.Err() != nil {
		return // the process ends
	}
	c.note("", began, err)
	for i, stream := range due {
		c.note(stream, began, errs[i])
	}
}

// due are the streams that are tried now.
func (c *canary) due() []string {
	var due []string
	for range (len(c.streams) + canaryRound - 1) / canaryRound {
		due = append(due, c.streams[c.next%len(c.streams)])
		c.next++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for stream := range c.ill {
		if stream != "" && !slices.Contains(due, stream) {
			due = append(due, stream)
		}
	}
	return due
}

// note remembers what came of a try that began then.
func (c *canary) note(stream string, began time.Time, err error) {
	c.mu.Lock()
	was, ill := c.ill[stream]
	switch {
	case err == nil:
		delete(c.ill, stream)
	case ill:
		c.ill[stream] = illness{was.since, err}
	default:
		c.ill[stream] = illness{began, err}
	}
	c.mu.Unlock()
	switch {
	case err != nil && !ill:
		c.log.Warn("the store takes no write, or does not give it back", slog.Any("error", err))
	case err == nil && ill:
		c.log.Info("the store takes writes again", slog.String("stream", cmp.Or(stream, "KV_"+subjects.BucketScratch+" and "+subjects.StreamTasks)))
	}
}

// clockTeller is a canary that also says when the clock of this machine is not
// that of the servers, whenever that changes.
func clockTeller(b *bus.Bus, log *slog.Logger) func(context.Context) error {
	var told atomic.Int64
	return func(ctx context.Context) error {
		err := b.Canary(ctx)
		ahead := b.ClockAhead().Round(time.Second)
		switch was := time.Duration(told.Swap(int64(ahead))); {
		case (ahead - was).Abs() < time.Second:
		case ahead == 0:
			log.Info("the clock of this machine is right again")
		default:
			log.Warn("the clock of this machine is wrong: the time is taken from the servers; set it", slog.String("ahead", ahead.String()))
		}
		return err
	}
}

// Ready is why the store does not serve, nil while it does.
func (c *canary) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, stream := range slices.Sorted(maps.Keys(c.ill)) {
		if i := c.ill[stream]; time.Since(i.since) >= canaryLimit {
			errs = append(errs, i.err)
		}
	}
	return errors.Join(errs...)
}
