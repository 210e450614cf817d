package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"parley/bus"
	"parley/bus/auth"
	"parley/bus/embedded"
	"parley/subjects"
	"parley/workers"
	"parley/workers/access"
)

// door is who may enter, and who tells the audit of those who may not.
type door struct {
	tenant  string
	trust   *embedded.Trust
	creds   string // of the workers
	refused func(embedded.Refusal)

	dir    *auth.Directory // nil: everybody may
	access *access.Worker
	bus    *bus.Bus // set before access runs
}

// openDoor is that of a broker that asks nobody, that has the workers asked, or
// that is elsewhere.
func openDoor(log *slog.Logger) (d *door, err error) {
	d = &door{}
	d.access, err = access.New(access.Config{Notes: d.notes(log), Whose: proven})
	return d, err
}

// proven is whom the callout has let in under a name, which is the key here.
func proven(name string) (subjects.AgentID, bool) {
	id, err := subjects.ParseAgentID(name)
	if err != nil {
		return access.Unknown, true
	}
	return id, true
}

// calledOut is the door of a broker that has the workers asked. They tell of
// connections themselves.
func calledOut(log *slog.Logger) (*door, error) {
	d, err := openDoor(log)
	if err != nil {
		return nil, err
	}
	d.refused = func(r embedded.Refusal) {
		if r.Action != access.Connect {
			d.access.Refused(access.Refusal{Key: r.User, Action: r.Action, Subject: r.Subject, Address: r.Address})
		}
	}
	return d, nil
}

// door reads the settings' directory of identities, if they name one. Its
// humans are operators.
func (a *app) door(log *slog.Logger) (*door, error) {
	switch {
	case a.conf.Callout:
		return calledOut(log)
	case a.conf.Auth == "":
		return openDoor(log)
	}
	dir, err := auth.Open(a.conf.Auth, a.now)
	if err != nil {
		return nil, authProblem(err)
	}
	operator, err := dir.OperatorJWT()
	if err != nil {
		return nil, authProblem(err)
	}
	d := &door{
		tenant: a.conf.Tenant, dir: dir, creds: dir.Creds(a.conf.Tenant, auth.Worker),
		trust: &embedded.Trust{Operator: operator, System: dir.System(), Accounts: dir.Accounts()},
	}
	if !slices.Contains(dir.Tenants(), d.tenant) {
		return nil, usage("there is no tenant %q in %s", d.tenant, a.conf.Auth).next("parley auth ls  lists everybody; --tenant names another")
	}
	if err := private("the workers' credentials", d.creds); err != nil {
		return nil, err
	}
	for _, u := range dir.Users(d.tenant) {
		if u.Role == subjects.RoleOperator && !slices.Contains(a.conf.Operators, u.ID) {
			a.conf.Operators = append(a.conf.Operators, u.ID)
		}
	}
	d.access, err = access.New(access.Config{Notes: d.notes(log), Whose: whose(dir, d.tenant)})
	if err != nil {
		return nil, err
	}
	d.refused = func(r embedded.Refusal) {
		d.access.Refused(access.Refusal{Key: r.Key, Action: r.Action, Subject: r.Subject, Address: r.Address})
	}
	return d, nil
}

func (d *door) notes(log *slog.Logger) *workers.Notes {
	return workers.NewNotes(d, log.With(slog.String("component", "access")))
}

// Store stores a line of the audit, on the bus that there is by then.
func (d *door) Store(ctx context.Context, subject string, line []byte, id string, h bus.Header) (uint64, error) {
	return d.bus.Store(ctx, subject, line, id, h)
}

// whose names a tenant's identities by their keys, those that were added since
// included.
func whose(dir *auth.Directory, tenant string) func(key string) (subjects.AgentID, bool) {
	var mu sync.Mutex // a closure that anybody may call
	return func(key string) (subjects.AgentID, bool) {
		mu.Lock()
		defer mu.Unlock()
		u, ok := dir.Whose(key)
		if !ok && key != "" {
			if again, err := dir.Again(); err == nil {
				dir = again
				u, ok = dir.Whose(key)
			}
		}
		if !ok {
			return access.Unknown, true
		}
		return subjects.AgentID(u.ID), u.Tenant == tenant
	}
}

// workers are what the door needs to run.
func (d *door) workers(b *bus.Bus) []workers.Worker {
	d.bus = b
	return []workers.Worker{{Name: "access", Run: d.access.Run}}
}

// context is how the nats command line connects: as the tenant's operator.
func (d *door) context(url string) natsContext {
	if d.dir == nil {
		return natsContext{URL: url}
	}
	return natsContext{URL: url, Creds: d.dir.Creds(d.tenant, auth.Operator), Inbox: subjects.InboxPrefix(auth.Operator)}
}
