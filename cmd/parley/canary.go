package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
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

// Ready is why the store does not serve, nil while it does.
func (c *canary) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.good) < canaryLimit {
		return nil
	}
	return c.last
}
