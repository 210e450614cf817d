package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
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
		if why, ok := errors.AsType[*url.Error](err); ok {
			err = why.Err
		}
		return nil, fmt.Errorf("the server whose page is %s does not answer: %w", address, err)
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
	pages, errs := make([]*varz, len(c.Monitor)), make([]error, len(c.Monitor))
	var all sync.WaitGroup
	for i, address := range c.Monitor {
		all.Go(func() { pages[i], errs[i] = readVarz(ctx, address) })
	}
	all.Wait()
	return slices.DeleteFunc(pages, func(v *varz) bool { return v == nil }), errors.Join(errs...)
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

// checkSync refuses to begin on servers that do not keep what --sync says. What
// cannot be known is said once the workers run, see safety.
func (a *app) checkSync(ctx context.Context) error {
	always, _, err := a.conf.sync()
	if err != nil || !always {
		return err
	}
	pages, _ := a.conf.pages(ctx)
	if err = syncs(pages); err != nil {
		return &problem{
			what: "the servers are not as safe as --sync says", where: err.Error(), exit: exitFailed, err: err,
			then: "set  sync_interval: always  in the servers' jetstream block, or, to live with the loss, start with --sync 2m",
		}
	}
	return nil
}
