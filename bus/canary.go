package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"parley/subjects"
)

// canaryKey is where Canary writes. All processes share it: what is there is
// of no use to anybody.
const canaryKey = "canary"

// Canary writes a value into a bucket of the fleet's, reads it again from the
// leader, and has the task stream commit something: what servers say of
// themselves, stream info alone, does not show that a write is taken. The read
// must give what was written, or something newer; when that was stored is how
// Now learns the time. The error names the stream. Where ctx has no deadline it
// has five seconds.
func (b *Bus) Canary(ctx context.Context) error {
	ctx, cancel := withDefaultTimeout(ctx, readTry)
	defer cancel()
	began := time.Now()
	k := b.scratch()
	wrote, err := k.Put(ctx, canaryKey, strconv.AppendInt(nil, time.Now().UnixNano(), 10))
	if err != nil {
		return fmt.Errorf("canary: write to %s: %w", k.stream, err)
	}
	e, err := k.Get(ctx, canaryKey)
	if err != nil {
		return fmt.Errorf("canary: read from %s: %w", k.stream, err)
	}
	if e.Revision < wrote {
		return fmt.Errorf("canary: %s: revision %d was written, and %d is read", k.stream, wrote, e.Revision)
	}
	b.clock.learn(began, e.Time)
	return b.Commits(ctx, subjects.StreamTasks)
}

const (
	// noMessage is a sequence that no stream ever comes to.
	noMessage uint64 = math.MaxUint64
	// errNotDeleted says that a message cannot be deleted, and notThere in which words
	// that no such sequence is there yet. In others it is what keeps the stream from
	// taking anything: a store of which one write has failed answers each by that
	// until its server is started again.
	errNotDeleted jetstream.ErrorCode = 10057
	notThere                          = "stream store EOF"
)

// noSubject is what no message of the fleet has.
const noSubject = "canary"

// Commits has the leader of stream commit and apply what changes nothing: the
// deletion of a message that cannot be there or, of a bucket, from which none may
// be deleted, the purge of a subject that has none. The error names the stream.
//
// Each stream of a cluster has a Raft group of its own, which may be wedged
// while those of all others work. The deletion goes through it as a write does,
// and is answered once a majority has it. A message of the canary's own would
// say a little more (that there is room for it), but every reader of the stream
// would have to pass over it, workers of older versions too, for whom the last
// sequence is always a record's.
func (b *Bus) Commits(ctx context.Context, stream string) error {
	ctx, cancel := withDefaultTimeout(ctx, readTry)
	defer cancel()
	try := b.deletesNothing
	if strings.HasPrefix(stream, "KV_") {
		try = b.purgesNothing
	}
	if err := try(ctx, stream); err != nil {
		return fmt.Errorf("canary: commit to %s: %w", stream, err)
	}
	return nil
}

func (b *Bus) purgesNothing(ctx context.Context, stream string) error {
	return b.purge(ctx, stream, purgeRequest{Filter: noSubject})
}

func (b *Bus) deletesNothing(ctx context.Context, stream string) error {
	var resp struct {
		Error *jetstream.APIError `json:"error"`
	}
	err := b.apiCall(ctx, "STREAM.MSG.DELETE."+stream, map[string]any{"seq": noMessage, "no_erase": true}, &resp, &resp.Error)
	switch {
	case resp.Error != nil && isNotThere(resp.Error):
		return nil
	case err != nil:
		return err
	}
	return errors.New("the server says that it has deleted what cannot be there")
}

// isNotThere reports whether a deletion was refused for the want of what was to be
// deleted. Only the words tell: one code stands for all reasons.
func isNotThere(err *jetstream.APIError) bool {
	return err.ErrorCode == errNotDeleted && err.Description == notThere
}

// Written are the streams that a worker of that kind writes, and those that
// others write which it looks after. Who only leaves dead letters and log lines is
// as ready without.
func Written(worker string) []string {
	var all []string
	for _, a := range catalogue(Provisioning{}, sizes{}) {
		if w := cmp.Or(a.taker, a.stream.Metadata["writer"]); w == worker || w == anyWorker {
			all = append(all, a.stream.Name)
		}
	}
	return all
}
