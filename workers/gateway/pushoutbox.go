package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
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

// room returns errNoRoom where the outbox has none for a delivery of size bytes.
func (p *pusher) room(ctx context.Context, size int) error {
	over := func(s bus.StreamState) bool {
		return s.MaxBytes > 0 && float64(s.Bytes+p.taken.Load()+uint64(size)) > pushShare*float64(s.MaxBytes)
	}
	s, err := p.outbox.get(time.Now(), outboxAge, func() (bus.StreamState, error) {
		p.taken.Store(0)
		s, err := p.w.cfg.Bus.StreamState(ctx, subjects.StreamWebhooks)
		if err == nil && over(s) {
			p.w.log.Warn("push notifications wait: the outbox is full", slog.Uint64("bytes", s.Bytes), slog.Int64("max_bytes", s.MaxBytes))
		}
		return s, err
	})
	if err == nil && over(s) {
		err = errNoRoom
	}
	return err
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
