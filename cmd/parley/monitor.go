package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
)

// monitorTry bounds the look at one monitoring page.
const monitorTry = 5 * time.Second

// varz is what a server's monitoring page /varz says of what it keeps.
type varz struct {
	Name      string `json:"server_name"`
	Version   string `json:"version"`
	JetStream struct {
		Config struct {
			MaxStorage   int64 `json:"max_storage"`
			SyncAlways   bool  `json:"sync_always"`
			SyncInterval int64 `json:"sync_interval"` // ns
		} `json:"config"`
		Stats struct {
			Storage int64 `json:"storage"`
		} `json:"stats"`
	} `json:"jetstream"`
}

// readVarz asks one server.
func readVarz(ctx context.Context, address string) (*varz, error) {
	ctx, cancel := context.WithTimeout(ctx, monitorTry)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+"/varz", http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", r.URL, answer.Status)
	}
	var v varz
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&v); err != nil {
		return nil, fmt.Errorf("%s: %w", r.URL, err)
	}
	return &v, nil
}

// pages asks every server whose monitoring page is known, and returns what they
// say. The error is of those that do not answer.
func (c *config) pages(ctx context.Context) ([]*varz, error) {
	var pages []*varz
	var errs []error
	for _, address := range c.Monitor {
		v, err := readVarz(ctx, address)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		pages = append(pages, v)
	}
	return pages, errors.Join(errs...)
}

// syncs is an error that names each server which does not sync before it
// acknowledges.
func syncs(pages []*varz) error {
	var errs []error
	for _, v := range pages {
		if !v.JetStream.Config.SyncAlways {
			errs = append(errs, fmt.Errorf("server %s acknowledges writes before they are on the disk (sync_interval %s)", v.Name, time.Duration(v.JetStream.Config.SyncInterval)))
		}
	}
	return errors.Join(errs...)
}

// checkSync refuses to work on servers that do not keep what --sync says, and
// says loudly where that cannot be known.
func (a *app) checkSync(ctx context.Context, log *slog.Logger) error {
	always, _, err := a.conf.sync()
	switch {
	case err != nil:
		return err
	case !always:
		log.Warn("UNSAFE: --sync says that servers acknowledge before they flush: a power cut loses what was acknowledged since")
		return nil
	case len(a.conf.Monitor) == 0:
		log.Warn("durability unverified: nobody has looked whether the servers have sync_interval: always; --monitor names their monitoring pages")
		return nil
	}
	pages, unread := a.conf.pages(ctx)
	if err = syncs(pages); err != nil {
		return &problem{
			what: "the servers are not as safe as --sync says", where: err.Error(), exit: exitFailed, err: err,
			then: "set  sync_interval: always  in the servers' jetstream block, or, to live with the loss, start with --sync 2m",
		}
	}
	if unread != nil {
		log.Warn("durability unverified: a monitoring page does not answer", slog.Any("error", unread))
	}
	return nil
}

// enough is how many copies outlive the loss of a server, and go on without it.
const enough = 3

// warnOfCopies says loudly where servers are a cluster, and records lie on too
// few of them: what is created has one copy, unless somebody asks for more.
func warnOfCopies(ctx context.Context, b *bus.Bus, log *slog.Logger) {
	s, err := b.StreamState(ctx, subjects.StreamTasks)
	switch {
	case err != nil:
		log.Warn("durability unverified: the task stream does not say how many copies it has", slog.Any("error", err))
	case s.Cluster != "" && s.Replicas < enough:
		log.Warn("UNSAFE: the servers are a cluster, and records have too few copies: while one server is away work stands still, and what was acknowledged is lost with its disk; --replicas 3 copies what is there",
			slog.Int("copies", s.Replicas))
	}
}
