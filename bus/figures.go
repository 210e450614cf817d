package bus

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamFigures are those of a stream of the fleet, or of the stream below a
// bucket, and of its durable consumers.
type StreamFigures struct {
	Name      string
	Msgs      uint64
	Bytes     uint64
	MaxBytes  int64 // 0 or less: no limit
	DropsOld  bool  // when it is full; otherwise it takes nothing new
	InMemory  bool  // and not on files
	Replicas  int
	Cluster   string    // of servers, its name; "" on a single server
	Leader    string    // server name, "" on a single server
	Behind    []string  // servers whose copy is not up to date, or that are not there
	First     time.Time // when the oldest message came; zero: there is none
	Asked     time.Time // by the clock of the leader, when it was asked
	Consumers []ConsumerFigures

	consumed bool // it has consumers, durable or not
}

// ConsumerFigures are those of a durable consumer.
type ConsumerFigures struct {
	Name        string
	Pending     uint64 // not delivered yet
	Unacked     int    // delivered and not acknowledged yet
	MaxUnacked  int    // no more are delivered then; 0 or less: no limit
	Redelivered int
	Moved       time.Time // when it was last done with everything up to some message; zero: never
}

// OtherServers counts the addresses of servers that the client knows, beside the
// one that it is connected to. A server may have several.
func (b *Bus) OtherServers() int {
	here, err := url.Parse(b.nc.ConnectedUrlRedacted())
	return len(slices.DeleteFunc(b.nc.Servers(), func(server string) bool {
		return err == nil && strings.HasSuffix(server, "://"+here.Host)
	}))
}

// paging is what a list of JetStream's API says of itself.
type paging struct {
	Total  int `json:"total"`
	Offset int `json:"offset"`
	Limit  int `json:"limit"`
	// Missing did not answer the server in time, and count in Total.
	Missing []string `json:"missing"`
}

// next is where the next page begins, 0 for none.
func (p *paging) next() int {
	if end := p.Offset + p.Limit; p.Limit > 0 && end < p.Total {
		return end
	}
	return 0
}

// StreamFigures asks for all streams that the fleet keeps, and their durable
// consumers. Where some do not answer, the figures are those of the others, and
// the error names them.
func (b *Bus) StreamFigures(ctx context.Context) ([]StreamFigures, error) {
	all, err := b.Streams(ctx)
	errs := []error{err}
	for i := range all {
		if f := &all[i]; f.consumed {
			f.Consumers, err = b.consumerFigures(ctx, f.Name)
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

// Streams is StreamFigures without those of the consumers.
func (b *Bus) Streams(ctx context.Context) ([]StreamFigures, error) {
	var all []StreamFigures
	var silent []string
	for offset := 0; ; {
		var resp struct {
			paging
			Streams []jetstream.StreamInfo `json:"streams"`
			Error   *jetstream.APIError    `json:"error"`
		}
		if err := b.apiCall(ctx, "STREAM.LIST", map[string]int{"offset": offset}, &resp, &resp.Error); err != nil {
			return all, fmt.Errorf("list streams: %w", err)
		}
		for i := range resp.Streams {
			// Where all servers of a stream are away, somebody else answers for it.
			if s := &resp.Streams[i]; ours(s.Config.Name) && !slices.Contains(resp.Missing, s.Config.Name) {
				all = append(all, figuresOf(s))
			}
		}
		for _, name := range resp.Missing {
			if ours(name) {
				silent = append(silent, name)
			}
		}
		if offset = resp.next(); offset == 0 {
			return all, unanswered("streams", silent)
		}
	}
}

// ours reports whether the fleet keeps a stream.
func ours(stream string) bool {
	return strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(stream, "KV_"), "OBJ_"), "FLEET_")
}

// unanswered is that those did not answer, nil for none.
func unanswered(what string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("%w: %s that do not answer: %s", ErrTimeout, what, strings.Join(names, ", "))
}

func figuresOf(s *jetstream.StreamInfo) StreamFigures {
	f := StreamFigures{
		Name: s.Config.Name, Msgs: s.State.Msgs, Bytes: s.State.Bytes, MaxBytes: s.Config.MaxBytes, DropsOld: s.Config.Discard == jetstream.DiscardOld,
		InMemory: s.Config.Storage == jetstream.MemoryStorage, Replicas: s.Config.Replicas, Asked: s.TimeStamp, consumed: s.State.Consumers > 0,
	}
	if s.State.Msgs > 0 {
		f.First = s.State.FirstTime
	}
	if c := s.Cluster; c != nil {
		f.Cluster, f.Leader = c.Name, c.Leader
		for _, r := range c.Replicas {
			if r.Offline || !r.Current {
				f.Behind = append(f.Behind, r.Name)
			}
		}
	}
	return f
}

// consumerFigures asks for the durable consumers of a stream.
func (b *Bus) consumerFigures(ctx context.Context, stream string) ([]ConsumerFigures, error) {
	var all []ConsumerFigures
	var silent []string
	for offset := 0; ; {
		var resp struct {
			paging
			Consumers []jetstream.ConsumerInfo `json:"consumers"`
			Error     *jetstream.APIError      `json:"error"`
		}
		if err := b.apiCall(ctx, "CONSUMER.LIST."+stream, map[string]int{"offset": offset}, &resp, &resp.Error); err != nil {
			return all, fmt.Errorf("list the consumers of %s: %w", stream, err)
		}
		for i := range resp.Consumers {
			if c := &resp.Consumers[i]; c.Config.Durable != "" {
				all = append(all, ConsumerFigures{Name: c.Name, Pending: c.NumPending, Unacked: c.NumAckPending, MaxUnacked: c.Config.MaxAckPending, Redelivered: c.NumRedelivered, Moved: moved(c)})
			}
		}
		silent = append(silent, resp.Missing...)
		if offset = resp.next(); offset == 0 {
			return all, unanswered("consumers of "+stream, silent)
		}
	}
}

// moved is when the consumer last finished with something, zero when never.
func moved(c *jetstream.ConsumerInfo) time.Time {
	if c.AckFloor.Last == nil {
		return time.Time{}
	}
	return c.AckFloor.Last.UTC()
}
