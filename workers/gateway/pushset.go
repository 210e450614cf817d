package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
)

// set stores a config. In the place of one with the same id it goes on where that
// one was.
func (p *pusher) set(ctx context.Context, c *pushConfig) error {
	if err := c.check(p.w.cfg.PushEndpoint); err != nil {
		return err
	}
	for range setTries {
		all, err := p.stored(ctx, c.TaskID)
		if err != nil {
			return err
		}
		key := pushKey(c.TaskID, c.ID)
		old, there := all[key]
		switch {
		case there && old.From != c.From:
			return badField("id", "another caller's config has it")
		case !there && len(all) >= maxPushConfigs:
			return faultf(kindInvalidParams, fmt.Sprintf("a task has at most %d push notification configs", maxPushConfigs))
		}
		ttl := max(time.Until(c.Until), time.Minute)
		crash.Point("before_push_config")
		if there {
			next := *c
			next.Sent, next.Done = min(old.Sent, c.Sent), old.Done
			_, err = p.kv.UpdateFor(ctx, key, fleet.MustEncode(next), old.rev, ttl)
		} else {
			_, err = p.kv.Create(ctx, key, fleet.MustEncode(c), ttl)
		}
		crash.Point("after_push_config")
		if !errors.Is(err, bus.ErrExists) && !errors.Is(err, bus.ErrConflict) { // otherwise somebody has just changed it
			return err
		}
	}
	return changing()
}

// setTries is how often a config is changed while others change the same.
const setTries = 20

func changing() error {
	f := faultf(kindUnavailable, "the push notification config is being changed just now; repeat the call")
	f.retry = time.Second
	return f
}

// check refuses a config that no delivery could be made of.
func (p *pushConfig) check(endpoint string) error {
	d := p.delivery("probe", endpoint)
	d.Body = json.RawMessage(`{}`)
	_, err := fleet.DecodeDelivery(fleet.MustEncode(d))
	if err == nil {
		return nil
	}
	e := subjects.AsError(err)
	field := map[bool]string{true: "url", false: "authentication"}[strings.HasPrefix(e.Pointer, "/url")]
	return badField(field, e.Message)
}
