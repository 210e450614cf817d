package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/micro"
)

// ServiceFigures is what an instance of a service tells of itself.
type ServiceFigures struct {
	ID      string
	Started time.Time
	Data    json.RawMessage // of Service.Figures
}

// ServiceInfo is a running service of the fleet.
type ServiceInfo struct {
	Name, ID, Version string
	Kind              string // of the worker, as parley serve --workers names it
	Open              string // where its process lets everybody use the fleet, "": nowhere
	// ClockAhead is how far its clock is ahead of the servers', as it has learned.
	ClockAhead time.Duration
	Process    string    // the same for all services of a process
	Skipped    []Skipped // of its process
}

// Services asks for all running services of the fleet, and waits until no
// further one answers.
func (b *Bus) Services(ctx context.Context) ([]ServiceInfo, error) {
	subject, err := micro.ControlSubject(micro.InfoVerb, "", "")
	if err != nil {
		return nil, fmt.Errorf("ask all services: %w", err)
	}
	var all []ServiceInfo
	err = b.gather(ctx, subject, func(data []byte) error {
		var info micro.Info
		if err := json.Unmarshal(data, &info); err != nil {
			return err
		}
		if _, ours := info.Metadata[metaSync]; ours {
			ahead, _ := time.ParseDuration(info.Metadata[metaAhead]) // one of an earlier version does not say
			var skipped []Skipped
			_ = json.Unmarshal([]byte(info.Metadata[metaSkipped]), &skipped) // absent where there is none
			all = append(all, ServiceInfo{
				Name: info.Name, ID: info.ID, Version: cmp.Or(info.Metadata[MetaProgram], info.Version), Kind: info.Metadata[metaKind],
				Open: info.Metadata[metaOpen], ClockAhead: ahead, Process: info.Metadata[metaProcess], Skipped: skipped,
			})
		}
		return nil
	})
	if err != nil && !errors.Is(err, ErrNoResponders) {
		return nil, fmt.Errorf("ask all services: %w", err)
	}
	return all, nil
}

// figuresQuiet ends the wait for further instances, figuresFirst that for any.
const (
	figuresQuiet = 300 * time.Millisecond
	figuresFirst = 2 * time.Second
)

// ServiceFigures asks every running instance of a service, and waits until no
// further one answers. None is ErrNoResponders.
func (b *Bus) ServiceFigures(ctx context.Context, name string) ([]ServiceFigures, error) {
	subject, err := micro.ControlSubject(micro.StatsVerb, name, "")
	if err != nil {
		return nil, fmt.Errorf("ask service %s: %w", name, err)
	}
	var all []ServiceFigures
	err = b.gather(ctx, subject, func(data []byte) error {
		var s struct {
			ID      string          `json:"id"`
			Started time.Time       `json:"started"`
			Data    json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		all = append(all, ServiceFigures{ID: s.ID, Started: s.Started, Data: s.Data})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask service %s: %w", name, err)
	}
	return all, nil
}

// gather asks everybody at subject, and takes answers until no further one
// comes.
func (b *Bus) gather(ctx context.Context, subject string, take func(data []byte) error) error {
	c, err := b.Converse(subject, nil, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	some := false
	for patience := figuresFirst; ; patience = figuresQuiet {
		waiting, cancel := context.WithTimeout(ctx, patience)
		m, err := c.Next(waiting)
		cancel()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return mapError(ctx.Err())
		case errors.Is(err, ErrTimeout) && some:
			return nil
		default:
			return err
		}
		if err := take(m.Data); err != nil {
			return err
		}
		some = true
	}
}
