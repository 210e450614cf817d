package bus

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"parley/subjects"
)

// canaryKey is where Canary writes. All processes share it: what is there is
// of no use to anybody.
const canaryKey = "canary"

// Canary writes a value into a bucket of the fleet's and reads it again from
// the leader: what servers say of themselves, stream info alone, does not show
// that a write is taken. The read must give what was written, or something
// newer; when that was stored is how Now learns the time. Where ctx has no
// deadline it has five seconds.
func (b *Bus) Canary(ctx context.Context) error {
	ctx, cancel := withDefaultTimeout(ctx, readTry)
	defer cancel()
	began := time.Now()
	k := &KV{b: b, stream: "KV_" + subjects.BucketWorkers, prefix: "$KV." + subjects.BucketWorkers + "."}
	wrote, err := k.Put(ctx, canaryKey, strconv.AppendInt(nil, time.Now().UnixNano(), 10))
	if err != nil {
		return fmt.Errorf("canary: write: %w", err)
	}
	e, err := k.Get(ctx, canaryKey)
	if err != nil {
		return fmt.Errorf("canary: read: %w", err)
	}
	if e.Revision < wrote {
		return fmt.Errorf("canary: revision %d was written, and %d is read", wrote, e.Revision)
	}
	b.clock.learn(began, e.Time)
	return nil
}
