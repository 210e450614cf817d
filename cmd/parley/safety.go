package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"parley/bus"
	"parley/workers/telemetry"
)

const (
	safetyEvery = time.Minute      // between two looks
	safetyTry   = 10 * time.Second // for one of them
)

// danger is what is not as safe as it should be, or not known to be.
type danger struct{ about, says string }

// enough is how many copies outlive the loss of a server, and go on without it.
const enough = 3

// seen is what was looked at.
type seen struct {
	durability bus.Durability
	off        bool // nobody has looked at the streams at the start

	monitored bool // somebody has named monitoring pages
	pages     []*varz
	unread    error // of the pages that do not answer

	streams    []bus.StreamFigures
	unanswered error // of the streams that do not
}

// dangers judges it.
func (s *seen) dangers() []danger {
	var all []danger
	note := func(about, says string) { all = append(all, danger{about, oneLine(says)}) }
	switch d := s.durability; {
	case !d.SyncAlways:
		note(telemetry.UnsafeSync, "--sync says that servers acknowledge before they flush: a power cut loses what was acknowledged since")
	case d.Embedded:
	case !s.monitored:
		note(telemetry.Unverified, "durability unverified: nobody has looked whether the servers have sync_interval: always; --monitor names their monitoring pages")
	default:
		if err := syncs(s.pages); err != nil {
			note(telemetry.UnsafeSync, err.Error())
		}
		if s.unread != nil {
			note(telemetry.Unverified, "durability unverified: a monitoring page does not answer: "+s.unread.Error())
		}
	}
	if few, least := fewCopies(s.streams); few > 0 {
		note(telemetry.UnsafeCopies, fmt.Sprintf("the servers are a cluster, and %d streams have fewer than %d copies, %s has %d: while one server is away work stands still, and what was acknowledged is lost with its disk; --replicas 3 copies what is there",
			few, enough, least.Name, least.Replicas))
	}
	if i := slices.IndexFunc(s.streams, func(f bus.StreamFigures) bool { return f.InMemory }); i >= 0 {
		note(telemetry.UnsafeStorage, s.streams[i].Name+" is in memory: what was acknowledged is lost with its servers")
	}
	if s.unanswered != nil {
		note(telemetry.Unverified, "copies unverified: streams do not say how many they have: "+s.unanswered.Error())
	}
	if s.off {
		note(telemetry.Unverified, "streams unverified: --provision off: nobody has looked whether they are as they must be; parley doctor does")
	}
	return all
}

// fewCopies counts the streams that have too few on servers that are a cluster,
// and names one with the fewest.
func fewCopies(list []bus.StreamFigures) (few int, least *bus.StreamFigures) {
	for i := range list {
		s := &list[i]
		if least == nil || s.Replicas < least.Replicas {
			least = s
		}
		if s.Cluster != "" && s.Replicas < enough {
			few++
		}
	}
	return few, least
}

// lookAround gives a function that looks at servers and streams now.
func (a *app) lookAround(b *bus.Bus) func(context.Context) []danger {
	return func(ctx context.Context) []danger {
		s := seen{durability: b.Durability(), off: a.conf.Provision == bus.ProvisionOff, monitored: len(a.conf.Monitor) > 0}
		if s.durability.SyncAlways && !s.durability.Embedded {
			s.pages, s.unread = a.conf.pages(ctx)
		}
		s.streams, s.unanswered = b.Streams(ctx)
		return s.dangers()
	}
}

// safety looks again and again at what workers rely on: a server may come back
// with another configuration, and a stream be edited, while they run.
type safety struct {
	look func(context.Context) []danger
	log  *slog.Logger

	mu    sync.Mutex
	found []danger // guarded by mu
}

// Run looks until ctx ends. It begins a while after the first look, which is the
// caller's.
func (s *safety) Run(ctx context.Context) error {
	tick := time.NewTicker(safetyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s.again(ctx)
	}
}

// again looks once, and tells the log of what is new.
func (s *safety) again(ctx context.Context) {
	try, cancel := context.WithTimeout(ctx, safetyTry)
	found := s.look(try)
	cancel()
	if ctx.Err() != nil {
		return // the process ends
	}
	s.mu.Lock()
	was := s.found
	s.found = found
	s.mu.Unlock()
	for _, d := range found {
		switch {
		case slices.Contains(was, d):
		case d.about == telemetry.Unverified:
			s.log.Warn("not known to be safe", slog.String("found", d.says))
		default:
			s.log.Warn("UNSAFE", slog.String("about", d.about), slog.String("found", d.says))
		}
	}
	if len(found) == 0 && len(was) > 0 {
		s.log.Info("all that was unsafe is safe now")
	}
}

// Unsafe says what is unsafe, or not known to be safe.
func (s *safety) Unsafe() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, d := range s.found {
		all = append(all, d.says)
	}
	return all
}

// figures are whether there is anything, by what it is about.
func (s *safety) figures() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := map[string]bool{telemetry.UnsafeSync: false, telemetry.UnsafeCopies: false, telemetry.UnsafeStorage: false, telemetry.Unverified: false}
	for _, d := range s.found {
		by[d.about] = true
	}
	return by
}
