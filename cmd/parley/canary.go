package main

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
)

const (
	canaryEvery = 5 * time.Second  // between two writes
	canaryTry   = 5 * time.Second  // for one of them
	canaryLimit = 15 * time.Second // without one that went through: the store does not work. An election takes up to ten
)

// canary tries the store every few seconds by a write and a read.
type canary struct {
	try func(context.Context) error
	log *slog.Logger

	mu   sync.Mutex
	good time.Time // guarded by mu: when it last went through
	last error     // guarded by mu
}

// newCanary trusts the store at first: it was just provisioned.
func newCanary(try func(context.Context) error, log *slog.Logger) *canary {
	return &canary{try: try, log: log, good: time.Now()}
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

// sing is one write and read.
func (c *canary) sing(ctx context.Context) {
	try, cancel := context.WithTimeout(ctx, canaryTry)
	err := c.try(try)
	cancel()
	if ctx.Err() != nil {
		return // the process ends
	}
	c.mu.Lock()
	was := c.last
	c.last = err
	if err == nil {
		c.good = time.Now()
	}
	c.mu.Unlock()
	switch {
	case err != nil && was == nil:
		c.log.Warn("the store takes no write, or does not give it back", slog.Any("error", err))
	case err == nil && was != nil:
		c.log.Info("the store takes writes again")
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
	if time.Since(c.good) < canaryLimit {
		return nil
	}
	return c.last
}
