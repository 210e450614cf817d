package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
)

// pushShare is the part of the outbox that push notifications may fill: the rest
// is for what calls a human, and for what is said about deliveries. outboxAge is
// for how long what it holds is known.
const (
	pushShare = 0.8
	outboxAge = time.Second
)

// errNoRoom is returned while the outbox holds too much for push notifications.
var errNoRoom = errors.New("the outbox has no room for push notifications")

// roomless is what is known of an outbox that had no room.
type roomless struct {
	mu   sync.Mutex // guards what follows
	next time.Time  // when one task may find out whether it still is so; zero: there was room
	said time.Time
}

// saidEvery is how often it is said that push notifications wait, or were lost.
const saidEvery = time.Minute

// most is of how many tasks it is worth telling at now.
func (r *roomless) most(now time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.next.IsZero():
		return math.MaxInt
	case now.Before(r.next):
		return 0
	}
	return 1
}

// mayTell reports whether a task may be told of: while there is no room, one finds
// out from time to time, for all.
func (r *roomless) mayTell(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.next.IsZero():
		return true
	case now.Before(r.next):
		return false
	}
	r.next = now.Add(outboxAge)
	return true
}

// refused notes that there was no room at now; say reports whether to say so.
func (r *roomless) refused(now time.Time) (say bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = now.Add(outboxAge)
	if say = now.Sub(r.said) >= saidEvery; say {
		r.said = now
	}
	return say
}

// told notes that a task was told of, or that there was nothing to tell of it; then
// another one finds out.
func (r *roomless) told(stored bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case stored:
		r.next = time.Time{}
	case !r.next.IsZero():
		r.next = now
	}
}

// room returns errNoRoom where the outbox has none for a delivery of size bytes.
func (p *pusher) room(ctx context.Context, size int) error {
	s, err := p.outbox.get(time.Now(), outboxAge, func() (bus.StreamState, error) {
		p.taken.Store(0)
		return p.w.cfg.Bus.StreamState(ctx, subjects.StreamWebhooks)
	})
	switch {
	case err != nil:
		return err
	case s.MaxBytes <= 0 || float64(s.Bytes+p.taken.Load()+uint64(size)) <= pushShare*float64(s.MaxBytes):
		return nil
	}
	if p.roomless.refused(time.Now()) {
		p.w.log.Warn("push notifications wait: the outbox is full", slog.Uint64("bytes", s.Bytes), slog.Int64("max_bytes", s.MaxBytes))
	}
	return errNoRoom
}

// tell stores one delivery. Its id follows from what it is, so that it is one
// however often it is stored.
func (p *pusher) tell(ctx context.Context, what string, c *pushConfig, trace fleet.Trace, f frame) error {
	body, err := protojson.Marshal(f.msg)
	if err == nil {
		body, err = compact(body)
	}
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(what))
	d := c.delivery(hex.EncodeToString(sum[:20]), p.w.cfg.PushEndpoint)
	d.Body, d.Traceparent = body, trace.In(fleet.SpanTask, 0)
	data, err := fleet.Encode(d)
	if err != nil {
		return err
	}
	if err := p.room(ctx, len(data)); err != nil {
		return err
	}
	crash.Point("before_push")
	if _, err = p.w.cfg.Bus.Store(ctx, subjects.Webhook(d.Order, d.DeliveryID), data, string(d.DeliveryID), nil); err != nil {
		return err
	}
	p.taken.Add(uint64(len(data)))
	p.roomless.told(true, time.Now())
	crash.Point("after_push")
	return nil
}

// delivery is a delivery to the receiver, without its body.
func (p *pushConfig) delivery(id, endpoint string) *fleet.Delivery {
	d := &fleet.Delivery{
		Header:     fleet.Header{Type: fleet.TypeDelivery, ProtocolVersion: fleet.Version},
		DeliveryID: subjects.DeliveryID(id), Endpoint: endpoint, URL: p.URL,
		Headers: map[string]string{}, ContentType: "application/a2a+json", Order: string(p.TaskID), Schedule: fleet.SchedulePush, TaskID: p.TaskID,
	}
	if p.Scheme != "" {
		d.Headers["Authorization"] = strings.TrimSpace(p.Scheme + " " + p.Credentials)
	}
	if p.Token != "" {
		d.Headers["A2A-Notification-Token"] = p.Token
		d.Headers["X-A2A-Notification-Token"] = p.Token
	}
	return d
}

// sayLost says how many configs are gone whose receivers were not told all.
func (p *pusher) sayLost(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost == 0 || now.Sub(p.lostSaid) < saidEvery {
		return
	}
	p.w.log.Error("push notifications lost: nobody was told of the end of their tasks before its records went", slog.Int("configs", p.lost))
	p.lost, p.lostSaid = 0, now
}
