package bus

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Provisioning says how the streams, buckets and consumers are declared. A
// byte limit of 0 keeps what is there, and what is created gets the default; one
// that is too small for what a stream holds keeps what is there, too. The server
// reserves the limits of all streams on its disk.
type Provisioning struct {
	Mode     string // default create
	Replicas int    // 1, 3 or 5; 0 = keep what is there, 1 for what is created

	MaxBytes            int64 // of FLEET_TASKS, the disk guard; default 4 GiB
	InboxMaxBytes       int64 // default 256 MiB
	AnnounceMaxBytes    int64 // default 64 MiB
	DeadLetterMaxBytes  int64 // default 256 MiB
	WebhooksMaxBytes    int64 // of FLEET_WEBHOOKS; default 512 MiB
	EscalationsMaxBytes int64 // of FLEET_ESCALATIONS; default 256 MiB
	AuditMaxBytes       int64 // of FLEET_AUDIT, beyond which the oldest goes; default 512 MiB
	MeshMaxBytes        int64 // of FLEET_MESH; default 256 MiB
	RunsMaxBytes        int64 // of FLEET_RUNS; default 512 MiB
	BucketMaxBytes      int64 // of each bucket, and of what sessions hold; default 256 MiB

	AuditMaxAge time.Duration // of FLEET_AUDIT; default 90 days

	// Room is how many bytes the server can reserve, where that is known. If
	// the defaults come to more, what is created is smaller in proportion, as
	// long as all of it comes to MinRoom.
	Room int64
}

// MinRoom is what the defaults take at least, in bytes: with less, a fleet is
// full before it is of use.
const MinRoom = 256 << 20

// buckets counts the streams of BucketMaxBytes.
const buckets = 16

// sizes are the byte limits of the streams.
type sizes struct {
	tasks, inbox, announce, deadLetters, webhooks, escalations, audit, mesh, runs, bucket int64
}

// sizes are what is given, and defaults that fit into the rest of the room;
// small says that they had to be made to.
func (p Provisioning) sizes() (s sizes, small bool) {
	const mib = 1 << 20
	s = sizes{
		p.MaxBytes, p.InboxMaxBytes, p.AnnounceMaxBytes, p.DeadLetterMaxBytes, p.WebhooksMaxBytes, p.EscalationsMaxBytes,
		p.AuditMaxBytes, p.MeshMaxBytes, p.RunsMaxBytes, p.BucketMaxBytes,
	}
	room, byDefault := p.Room, int64(0)
	limits := []struct {
		size       *int64
		def, times int64
	}{
		{&s.tasks, 4096 * mib, 1},
		{&s.inbox, 256 * mib, 1},
		{&s.announce, 64 * mib, 1},
		{&s.deadLetters, 256 * mib, 1},
		{&s.webhooks, 512 * mib, 1},
		{&s.escalations, 256 * mib, 1},
		{&s.audit, 512 * mib, 1},
		{&s.mesh, 256 * mib, 1},
		{&s.runs, 512 * mib, 1},
		{&s.bucket, 256 * mib, buckets},
	}
	for _, l := range limits {
		if *l.size == 0 {
			byDefault += l.times * l.def
		} else {
			room -= l.times * *l.size
		}
	}
	part := 1.0
	if small = p.Room > 0 && room < byDefault; small {
		part = float64(max(room, MinRoom)) / float64(byDefault)
	}
	for _, l := range limits {
		if *l.size == 0 {
			*l.size = int64(part * float64(l.def))
		}
	}
	return s, small
}

// fullAt is the part of a stream's limit that may be in use already where the
// limit is lowered: the rest is for what was accepted to come to its end.
const fullAt = 0.8

// holdsTooMuch reports whether the limit that is wanted of a stream is too small
// for what it holds: where a stream discards what is new, it would refuse every
// record, those of accepted work, too.
func (b *Bus) holdsTooMuch(ctx context.Context, have, want jetstream.StreamConfig) (bool, error) {
	if want.Discard != jetstream.DiscardNew || want.MaxBytes <= 0 || have.MaxBytes > 0 && have.MaxBytes <= want.MaxBytes {
		return false, nil
	}
	var s StreamState
	err := b.persist(ctx, func(ctx context.Context) (err error) {
		s, err = b.StreamState(ctx, have.Name)
		return err
	})
	if err != nil || float64(s.Bytes) <= fullAt*float64(want.MaxBytes) {
		return false, err
	}
	b.log.Warn("the stream holds too much for a smaller size, and keeps the one that it has", slog.String("stream", have.Name),
		slog.Uint64("holds", s.Bytes), slog.Int64("wanted", want.MaxBytes), slog.Int64("stays", have.MaxBytes))
	return true, nil
}

// mebibytes is a size as a person reads it.
func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
