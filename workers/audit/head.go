package audit

import (
	"context"
	"errors"
	"fmt"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/audit"
)

// readAtOnce is how many entries are read at a time.
const readAtOnce = 100

// load reads the end of the audit: what has come since the last time, or, at
// the beginning, back to its last block. Foreign entries are skipped.
func (c *chain) load(ctx context.Context) error {
	last, err := c.b.Last(ctx, subjects.StreamAudit, subjects.Audit)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		c.head, c.seq = nil, 0
		return nil
	case err != nil:
		return fmt.Errorf("read the end of the audit: %w", err)
	case c.seq == 0 || last.Seq < c.seq: // another stream than before
		return c.find(ctx, last.Seq)
	}
	err = c.entries(ctx, c.seq+1, func(m bus.Msg) {
		c.seq = m.Seq
		b, err := audit.Decode(m.Data)
		if err == nil {
			err = audit.Check(c.head, b)
		}
		if err != nil {
			c.b.Skip(m, err)
			return
		}
		c.head = b
	})
	if err != nil {
		return fmt.Errorf("read the end of the audit: %w", err)
	}
	return nil
}

// link is a sealed block, as far as the chain needs it.
type link struct {
	hash, prev  string
	first, next uint64
	seq         uint64
}

// find looks for the last block among the entries up to last: the one with the
// highest lines among those that follow another one. Where there are none it is
// the oldest sealed block. It looks at few entries first, and at more and more
// if those are foreign.
func (c *chain) find(ctx context.Context, last uint64) error {
	state, err := c.b.StreamState(ctx, subjects.StreamAudit)
	if err != nil {
		return fmt.Errorf("read the end of the audit: %w", err)
	}
	for n := uint64(8); ; n *= 8 {
		from := max(last, n) - n + 1
		all := from <= state.FirstSeq
		best, err := c.newest(ctx, from, all)
		if err != nil {
			return fmt.Errorf("read the end of the audit: %w", err)
		}
		if best == 0 && !all {
			continue
		}
		c.head, c.seq = nil, last
		if best == 0 {
			return nil
		}
		m, err := c.b.Get(ctx, subjects.StreamAudit, best)
		if err != nil {
			return fmt.Errorf("read the last block: %w", err)
		}
		if c.head, err = audit.Decode(m.Data); err != nil {
			return fmt.Errorf("read the last block: %w", err)
		}
		c.seq = best
		return c.load(ctx) // names what is foreign behind it
	}
}

// newest is the sequence of the last block from an entry on; 0 if none is found.
// alone says that a block counts which follows no other one.
func (c *chain) newest(ctx context.Context, from uint64, alone bool) (uint64, error) {
	var links []link
	nexts := make(map[string]uint64) // by hash
	err := c.entries(ctx, from, func(m bus.Msg) {
		b, err := audit.Decode(m.Data)
		if err == nil {
			err = audit.Check(nil, b)
		}
		if err != nil {
			c.b.Skip(m, err)
			return
		}
		links = append(links, link{b.Hash, b.Prev, b.First, b.Next(), m.Seq})
		nexts[b.Hash] = b.Next()
	})
	if err != nil || len(links) == 0 {
		return 0, err
	}
	var best link
	for _, l := range links {
		if next, ok := nexts[l.prev]; ok && next == l.first && l.next > best.next {
			best = l
		}
	}
	if best.seq == 0 && alone {
		best = links[0]
	}
	return best.seq, nil
}

// entries gives all entries from a sequence on to f.
func (c *chain) entries(ctx context.Context, from uint64, f func(bus.Msg)) error {
	for {
		msgs, more, err := c.b.History(ctx, subjects.StreamAudit, subjects.Audit, from, readAtOnce)
		if err != nil {
			return err
		}
		for _, m := range msgs {
			from = m.Seq + 1
			f(m)
		}
		if !more {
			return nil
		}
	}
}
