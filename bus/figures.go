package bus

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamFigures are those of a stream of the fleet, or of the stream below a
// bucket, and of its durable consumers.
type StreamFigures struct {
	Name      string
	Msgs      uint64
	Bytes     uint64
	MaxBytes  int64 // 0 or less: no limit
	Replicas  int
	Consumers []ConsumerFigures
}

// ConsumerFigures are those of a durable consumer.
type ConsumerFigures struct {
	Name        string
	Pending     uint64 // not delivered yet
	Unacked     int    // delivered and not acknowledged yet
	Redelivered int
}

// paging is what a list of JetStream's API says of itself.
type paging struct {
	Total  int `json:"total"`
	Offset int `json:"offset"`
	Limit  int `json:"limit"`
}

// StreamFigures asks for all streams that the fleet keeps.
func (b *Bus) StreamFigures(ctx context.Context) ([]StreamFigures, error) {
	var all []StreamFigures
	for offset := 0; ; {
		var resp struct {
			paging
			Streams []jetstream.StreamInfo `json:"streams"`
			Error   *jetstream.APIError    `json:"error"`
		}
		if err := b.apiCall(ctx, "STREAM.LIST", map[string]int{"offset": offset}, &resp, &resp.Error); err != nil {
			return nil, fmt.Errorf("list streams: %w", err)
		}
		for i := range resp.Streams {
			s := &resp.Streams[i]
			if !strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(s.Config.Name, "KV_"), "OBJ_"), "FLEET_") {
				continue
			}
			f := StreamFigures{Name: s.Config.Name, Msgs: s.State.Msgs, Bytes: s.State.Bytes, MaxBytes: s.Config.MaxBytes, Replicas: s.Config.Replicas}
			if s.State.Consumers > 0 {
				var err error
				if f.Consumers, err = b.consumerFigures(ctx, f.Name); err != nil {
					return nil, err
				}
			}
			all = append(all, f)
		}
		offset += len(resp.Streams)
		if len(resp.Streams) == 0 || offset >= resp.Total {
			return all, nil
		}
	}
}

// consumerFigures asks for the durable consumers of a stream.
func (b *Bus) consumerFigures(ctx context.Context, stream string) ([]ConsumerFigures, error) {
	var all []ConsumerFigures
	for offset := 0; ; {
		var resp struct {
			paging
			Consumers []jetstream.ConsumerInfo `json:"consumers"`
			Error     *jetstream.APIError      `json:"error"`
		}
		if err := b.apiCall(ctx, "CONSUMER.LIST."+stream, map[string]int{"offset": offset}, &resp, &resp.Error); err != nil {
			return nil, fmt.Errorf("list the consumers of %s: %w", stream, err)
		}
		for i := range resp.Consumers {
			if c := &resp.Consumers[i]; c.Config.Durable != "" {
				all = append(all, ConsumerFigures{Name: c.Name, Pending: c.NumPending, Unacked: c.NumAckPending, Redelivered: c.NumRedelivered})
			}
		}
		offset += len(resp.Consumers)
		if len(resp.Consumers) == 0 || offset >= resp.Total {
			return all, nil
		}
	}
}
