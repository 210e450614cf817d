package bus

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
)

// Conversation is a request that may have many replies.
type Conversation struct {
	b   *Bus
	sub *nats.Subscription
}

// Converse sends a request that may have many replies: Next gives one after the
// other, in the order in which they were sent, until Close.
func (b *Bus) Converse(subject string, data []byte, h Header) (*Conversation, error) {
	inbox := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err == nil {
		err = sub.SetPendingLimits(pendingMessages, pendingBytes)
	}
	if err == nil {
		err = b.nc.PublishMsg(b.signed(&nats.Msg{Subject: subject, Reply: inbox, Header: nats.Header(h), Data: data}))
	}
	if err != nil {
		if sub != nil {
			_ = sub.Unsubscribe() // the first error says more
		}
		return nil, fmt.Errorf("request %s: %w", subject, mapError(err))
	}
	return &Conversation{b: b, sub: sub}, nil
}

// Next waits for the next reply. Errors: ErrNoResponders, ErrTimeout for the
// context's deadline, ErrClosed, the context's.
func (c *Conversation) Next(ctx context.Context) (Msg, error) {
	m, err := c.sub.NextMsgWithContext(ctx)
	if err != nil {
		return Msg{}, wrap("next reply", err)
	}
	reply := fromNATS(c.b.nc, m)
	if reply.Unheard() {
		return Msg{}, fmt.Errorf("next reply: %w", ErrNoResponders)
	}
	return reply, nil
}

// Close ends the conversation: whoever replies learns that nobody listens.
func (c *Conversation) Close() { _ = c.sub.Unsubscribe() } // it fails only where it is closed already
