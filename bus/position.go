package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"parley/subjects"
)

// Position is the sequence up to which worker had seen to stream when that was
// last kept; 0 where it never was, or where the stream ends before it, since
// then it is another one: all is read again.
func (b *Bus) Position(ctx context.Context, worker, stream string) (uint64, error) {
	e, err := b.scratch().Get(ctx, worker)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the position: %w", err)
	}
	seq, err := strconv.ParseUint(string(e.Value), 10, 64)
	if err != nil {
		b.scratch().Skip(e, err) // and begin at the first message
		return 0, nil
	}
	state, err := b.StateFrom(ctx, stream, seq)
	if err != nil {
		return 0, fmt.Errorf("read the position: %w", err)
	}
	if state.LastSeq < seq {
		return 0, nil
	}
	return seq, nil
}

// KeepPosition keeps it for who comes next. Any process's word counts: what is
// read again has no effect twice.
func (b *Bus) KeepPosition(ctx context.Context, worker string, seq uint64) error {
	_, err := b.scratch().Put(ctx, worker, strconv.AppendUint(nil, seq, 10))
	return err
}

// scratch is the bucket of what workers write all the time and can make anew.
func (b *Bus) scratch() *KV {
	return &KV{b: b, stream: "KV_" + subjects.BucketScratch, prefix: "$KV." + subjects.BucketScratch + "."}
}
