package callout

import (
	"context"
	"errors"
	"sync"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/identity"
)

// remember is how long what was used is remembered: a proof counts from one
// window before its time until one after it.
const remember = 2*identity.Window + time.Minute

// used remembers what this process has seen, per stream, since streams are read
// long after they were written. The zero value is ready.
type used struct {
	mu      sync.Mutex
	streams map[string]*generations // guarded by mu
}

// generations are two maps: what is older than the older one is forgotten.
type generations struct {
	young, old map[string]string
	turned     time.Time
}

// note notes that once was used for what at a time, and returns what it was
// used for before, if it was.
func (u *used) note(stream, once, what string, at time.Time) (before string, again bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.streams == nil {
		u.streams = map[string]*generations{}
	}
	g := u.streams[stream]
	if g == nil {
		g = &generations{turned: at}
		u.streams[stream] = g
	}
	switch age := at.Sub(g.turned); {
	case age > 2*remember:
		g.young, g.old, g.turned = nil, nil, at
	case age > remember:
		g.young, g.old, g.turned = nil, g.young, at
	}
	if before, again = g.young[once]; again {
		return before, true
	}
	if before, again = g.old[once]; again {
		return before, true
	}
	if g.young == nil {
		g.young = map[string]string{}
	}
	g.young[once] = what
	return "", false
}

// correct says that once was used for something else first, by another process;
// nothing: that it is not known whether it was.
func (u *used) correct(stream, once, what string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	g := u.streams[stream]
	switch {
	case g == nil || g.young == nil:
	case what == "":
		delete(g.young, once)
	default:
		g.young[once] = what
	}
}

// useOnce notes for all processes that once is used for what, and returns what
// it was used for before, if it was.
func (i *Identities) useOnce(ctx context.Context, once, what string) (before string, again bool, err error) {
	_, err = i.nonces.Create(ctx, once, []byte(what), 0)
	if !errors.Is(err, bus.ErrExists) {
		if err != nil {
			err = unavailable(err)
		}
		crash.Point("after_nonce")
		return "", false, err
	}
	e, err := i.nonces.Get(ctx, once)
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		return "", true, unavailable(err)
	}
	return string(e.Value), true, nil
}

// replayed is how a proof is refused that was used before.
func replayed() error {
	return subjects.Errorf(subjects.CodeAuthFailed, "the signature was used before").At("/nonce").
		WithRemedy("sign each message and each connection anew")
}
