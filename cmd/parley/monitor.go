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

// errLazy is returned when a server acknowledges before it flushes.
var errLazy = errors.New("acknowledges writes before they are on the disk")

// syncs asks every server whose monitoring page is known whether it syncs
// before it acknowledges: errLazy for one that does not; other errors are of
// pages that do not answer.
func (c *config) syncs(ctx context.Context) error {
	var errs []error
	for _, address := range c.Monitor {
		v, err := readVarz(ctx, address)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !v.JetStream.Config.SyncAlways:
			errs = append(errs, fmt.Errorf("server %s %w (sync_interval %s)", v.Name, errLazy, time.Duration(v.JetStream.Config.SyncInterval)))
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
	err = a.conf.syncs(ctx)
	switch {
	case errors.Is(err, errLazy):
		return &problem{
			what: "the servers are not as safe as --sync says", where: err.Error(), exit: exitFailed, err: err,
			then: "set  sync_interval: always  in the servers' jetstream block, or, to live with the loss, start with --sync 2m",
		}
	case err != nil:
		log.Warn("durability unverified: a monitoring page does not answer", slog.Any("error", err))
	}
	return nil
}
